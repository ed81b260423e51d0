"""Storing a file: whatever its source does, it is stored entirely, or refused without a trace."""

from __future__ import annotations

import io
import itertools
import os
import stat
import threading

import pytest
import trio

from hermes.config import AttachmentLimits
from hermes.errors import ActorStopped, AttachmentRefused, StoreError, StoreFull
from hermes.messages import Attachment, Inbound
from hermes.store.files.contents import CHUNK
from hermes.store.files.problems import storing
from tests.support.attachments import blob_names, content, digest, put, staged_names
from tests.support.stores import KINDS, open_kind

LIMIT = 3 * CHUNK
LIMITS = AttachmentLimits(message_bytes=LIMIT)
ASYNC = ("threads", "inline")
BIG = bytes(range(256)) * 4096 * 2  # two chunks


class Endless(io.RawIOBase):
    """A file object without an end, such as /dev/zero."""

    def __init__(self):
        super().__init__()
        self.given = 0

    def read(self, size=-1):
        self.given += size
        return bytes(size)


class Failing(io.BytesIO):
    """A file object that fails after its first bytes."""

    def __init__(self, error):
        super().__init__(b"some bytes")
        self.error = error

    def read(self, size=-1):
        if self.tell():
            raise self.error
        return super().read(size)


class NotReady(io.RawIOBase):
    """A file object that does not block, and has nothing to read."""

    def read(self, size=-1):
        return None


def closed():
    file = io.BytesIO(b"hello")
    file.close()
    return file


async def endless():
    while True:
        yield b"x" * 1000


async def chunks(*given):
    for each in given:
        if isinstance(each, Exception):
            raise each
        yield each


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def opened(kind, path, world):
    """Open a store with a small limit for files."""
    options = {"clock": world.clock} if kind == "sync" else {"clock": world.clock, "limits": LIMITS}
    return lambda: open_kind(kind, path, **options)


def nothing_is_left(path, sql):
    """Check that there is neither a file nor a row."""
    assert staged_names(path) == blob_names(path) == set()
    assert sql("SELECT count(*) FROM files") == sql("SELECT count(*) FROM blobs") == [[0]]


REFUSED = {
    "empty": (lambda folder: Attachment(data=b""), "empty"),
    "a text": (lambda folder: Attachment(data="text"), "cannot be read"),
    "a text file": (lambda folder: Attachment(file=io.StringIO("text")), "binary mode"),
    "a closed file": (lambda folder: Attachment(file=closed()), "cannot be read"),
    "nothing yet": (lambda folder: Attachment(file=NotReady()), "no data yet"),
    "an I/O error": (lambda folder: Attachment(file=Failing(OSError(5, "broken"))), "broken"),
    "an error": (lambda folder: Attachment(file=Failing(RuntimeError("odd"))), "odd"),
    "a missing file": (lambda folder: Attachment(path=folder / "none"), "No such file"),
    "a directory": (lambda folder: Attachment(path=folder), "directory"),
    "a device": (lambda folder: Attachment(path="/dev/zero"), "not a regular file"),
    "a null byte": (lambda folder: Attachment(path="a\0b"), "null"),
    "a URL": (lambda folder: Attachment(url="https://example.com/a.png"), "content"),
    "too few bytes": (lambda folder: Attachment(data=b"12345", size=6), "5 bytes instead of 6"),
    "too many bytes": (lambda folder: Attachment(data=b"12345", size=4), "more than"),
    "no size": (lambda folder: Attachment(data=b"12345", size=-1), "more than"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_an_unusable_source_is_refused_in_one_sentence(opened, path, sql, tmp_path, case):
    make, words = REFUSED[case]
    async with opened() as store:
        with pytest.raises(AttachmentRefused) as refused:
            await store.put_file(make(tmp_path), session_key="k")
        text = str(refused.value)
        assert words in text
        assert "\n" not in text
        nothing_is_left(path, sql)
        assert (await put(store)).size == 5  # the store goes on


async def test_a_fifo_is_refused_without_waiting_for_a_writer(opened, path, sql, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with opened() as store:
        with pytest.raises(AttachmentRefused, match="not a regular file"):
            await store.put_file(Attachment(path=fifo), session_key="k")
        nothing_is_left(path, sql)


async def test_a_file_is_read_from_where_it_stands_and_stays_open(opened):
    file = io.BytesIO(b"head and body")
    file.seek(5)
    async with opened() as store:
        stored = await store.put_file(Attachment(file=file, name="x"), session_key="k")
        assert await content(store, stored.id) == b"and body"
        assert not file.closed


async def test_a_named_file_is_stored_with_its_name(opened, tmp_path):
    source = tmp_path / "report.bin"
    source.write_bytes(BIG)
    async with opened() as store:
        stored = await store.put_file(Attachment(path=str(source), size=len(BIG)), session_key="k")
        assert (stored.name, stored.size) == ("report.bin", len(BIG))
        assert await content(store, stored.id) == BIG
        assert source.read_bytes() == BIG


@pytest.mark.parametrize("umask", [0o000, 0o777])
@pytest.mark.sqlite_only("looks at the folder of attached files")
async def test_only_the_owner_can_read_the_files_whatever_the_umask_is(opened, path, umask):
    async with opened() as store:
        before = os.umask(umask)
        try:
            stored = await put(store)
            assert await content(store, stored.id) == b"hello"
        finally:
            os.umask(before)
    root = path.with_name(f"{path.name}.blobs")
    folders = [root, *root.iterdir()]
    assert {stat.S_IMODE(each.stat().st_mode) for each in folders} == {0o700}
    assert {stat.S_IMODE(each.stat().st_mode) for each in root.glob("*/*")} == {0o600}


async def test_reading_is_bounded_by_the_file(opened, kind):
    async with opened() as store:
        stored = await put(store, b"0123456789")

        async def read(**where):
            if kind == "sync":
                return await store.read_file(stored.id, session_key="k", **where)
            return await (await store.open_file(stored.id, session_key="k")).read(**where)

        assert await read(offset=3, size=4) == b"3456"
        assert await read(offset=8) == b"89"
        assert await read(offset=8, size=10**15) == b"89"
        assert await read(offset=10) == await read(offset=10**15) == await read(size=0) == b""
        for wrong in ({"offset": -1}, {"size": -1}):
            with pytest.raises(ValueError, match="cannot be read"):
                await read(**wrong)


async def test_a_closed_store_refuses_files_before_it_reads_them(opened, path, kind):
    async with opened() as store:
        pass
    file = io.BytesIO(b"hello")
    with pytest.raises(ActorStopped):
        await store.put_file(Attachment(file=file), session_key="k")
    assert file.tell() == 0
    assert blob_names(path) == staged_names(path) == set()


@pytest.mark.parametrize("kind", ["sync"], indirect=True)
async def test_a_synchronous_store_cannot_store_chunks(opened, path, sql):
    async with opened() as store:
        with pytest.raises(AttachmentRefused, match="asynchronous"):
            await store.put_file(Attachment(chunks=endless()), session_key="k")


# Streams

STREAMS = {
    "no end": (lambda: Attachment(chunks=endless()), "larger than"),
    "no end, but a size": (lambda: Attachment(chunks=endless(), size=10), "more than"),
    "a size over the limit": (lambda: Attachment(chunks=endless(), size=LIMIT + 1), "larger than"),
    "nothing": (lambda: Attachment(chunks=chunks()), "empty"),
    "empty chunks": (lambda: Attachment(chunks=chunks(b"", b"")), "empty"),
    "truncated": (lambda: Attachment(chunks=chunks(b"1", b"2"), size=3), "2 bytes instead of 3"),
    "an error": (lambda: Attachment(chunks=chunks(b"1", OSError("gone"))), "gone"),
    "a silent error": (lambda: Attachment(chunks=chunks(b"1", KeyError())), "KeyError"),
    "a text": (lambda: Attachment(chunks=chunks(b"1", "2")), "binary"),
    "None": (lambda: Attachment(chunks=chunks(b"1", None, b"2")), "no data"),
    "a file without an end": (lambda: Attachment(file=Endless()), "larger than"),
}


@pytest.mark.parametrize("kind", ASYNC, indirect=True)
@pytest.mark.parametrize("case", STREAMS)
async def test_a_bad_stream_is_refused_in_one_sentence(opened, path, sql, case):
    make, words = STREAMS[case]
    attachment = make()
    async with opened() as store:
        with pytest.raises(AttachmentRefused, match=words):
            await store.put_file(attachment, session_key="k")
        nothing_is_left(path, sql)
        if attachment.chunks is not None and case != "a size over the limit":  # never begun
            assert attachment.chunks.ag_frame is None  # it was closed


@pytest.mark.parametrize("kind", ASYNC, indirect=True)
@pytest.mark.parametrize("size", [1, 1000, 65536, CHUNK, len(BIG)])
async def test_chunks_of_any_size_are_stored_as_they_are(opened, path, size):
    data = BIG if size > 1 else BIG[:5000]
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    async with opened() as store:
        attachment = Attachment(chunks=chunks(b"", *pieces), size=len(data))
        stored = await store.put_file(attachment, session_key="k")
        assert await content(store, stored.id) == data
    assert blob_names(path) == {digest(data)}
    assert staged_names(path) == set()


async def test_an_endless_file_object_is_read_up_to_the_limit_only(path, world):
    file = Endless()
    async with open_kind("threads", path, clock=world.clock, limits=LIMITS) as store:
        with pytest.raises(AttachmentRefused, match="larger than"):
            await store.put_file(Attachment(file=file), session_key="k")
    assert file.given <= LIMIT + CHUNK


# Cancellation


class Countdown(trio.abc.Instrument):
    """Cancels a scope after a number of task steps."""

    def __init__(self, scope, steps):
        self.scope, self.steps = scope, steps

    def before_task_step(self, task):
        self.steps -= 1
        if self.steps == 0:
            self.scope.cancel()


async def cancelled_after(store, steps, attachment, **options):
    """Store a file and cancel that after some steps. Returns the file if it was stored."""
    stored = None
    with trio.CancelScope() as scope:
        countdown = Countdown(scope, steps)
        trio.lowlevel.add_instrument(countdown)
        try:
            stored = await store.put_file(attachment, session_key="k", **options)
        finally:
            trio.lowlevel.remove_instrument(countdown)
    return stored


SOURCES = {
    "data": lambda: Attachment(data=BIG),
    "file": lambda: Attachment(file=io.BytesIO(BIG)),
    "chunks": lambda: Attachment(chunks=chunks(BIG[:CHUNK], BIG[CHUNK:])),
}


@pytest.mark.parametrize("kind", ASYNC, indirect=True)
@pytest.mark.parametrize("source", SOURCES)
async def test_storing_can_be_cancelled_at_every_step(opened, path, sql, source):
    async with opened() as store:
        for steps in itertools.count(1):
            stored = await cancelled_after(store, steps, SOURCES[source]())
            assert staged_names(path) == set()
            if stored is not None:
                break
            assert sql("SELECT count(*) FROM files") == [[0]]
        assert steps > 3
        assert await content(store, stored.id) == BIG


@pytest.mark.parametrize("kind", ASYNC, indirect=True)
async def test_a_cancelled_file_of_a_turn_is_not_kept_by_its_message(opened, sql, world, path):
    async with opened() as store:
        turn_id = (await store.accept(Inbound("k", "e1", "hello"))).receipt.inbox_id
        for steps in itertools.count(1):
            if await cancelled_after(store, steps, Attachment(data=BIG), turn_id=turn_id):
                break
            assert sql("SELECT count(*) FROM inbox_files") == [[0]]
        assert sql("SELECT inbox_id FROM inbox_files") == [[turn_id]]


class Blocking(io.RawIOBase):
    """A pipe that has some bytes, and then blocks after it has called a function."""

    def __init__(self, blocked):
        super().__init__()
        self.blocked, self.begun, self.released = blocked, False, threading.Event()
        self.ends = os.pipe()

    def fileno(self):
        return self.ends[0]

    def close(self):
        while self.ends:
            end, *self.ends = self.ends
            os.close(end)
        super().close()

    def read(self, size=-1):
        if not self.begun:
            self.begun = True
            return b"begun"
        self.blocked()
        self.released.wait()
        return b""


async def test_a_read_that_blocks_forever_can_be_cancelled(path, world, sql):
    token = trio.lowlevel.current_trio_token()
    async with open_kind("threads", path, clock=world.clock) as store:
        with trio.CancelScope() as scope:
            source = Blocking(lambda: token.run_sync_soon(scope.cancel))
            await store.put_file(Attachment(file=source), session_key="k")
        assert scope.cancelled_caught
        nothing_is_left(path, sql)
        source.released.set()  # the abandoned thread ends
        assert (await put(store)).size == 5
        source.close()


async def test_reads_that_block_take_no_threads_of_other_files(path, world):
    threads = trio.to_thread.current_default_thread_limiter()
    token = trio.lowlevel.current_trio_token()
    async with open_kind("threads", path, clock=world.clock) as store:
        with trio.CancelScope() as scope:
            source = Blocking(lambda: token.run_sync_soon(scope.cancel))
            await store.put_file(Attachment(file=source), session_key="k")
        assert threads.borrowed_tokens == 0
        source.released.set()  # the abandoned thread ends
        source.close()


# A file system that fails


def test_a_full_disk_and_an_io_error_are_errors_of_the_store():
    for number, kind in ((28, StoreFull), (122, StoreFull), (5, StoreError)):
        with pytest.raises(kind) as raised, storing():
            raise OSError(number, os.strerror(number))
        assert type(raised.value) is kind
        assert "attachment" in str(raised.value)


@pytest.mark.sqlite_only("looks at the folder of attached files")
async def test_a_blob_folder_that_cannot_be_used_is_an_error_of_the_store(opened, path, sql):
    path.with_name(f"{path.name}.blobs").write_text("in the way")
    async with opened() as store:
        with pytest.raises(StoreError, match="could not be stored"):
            await put(store)
        assert sql("SELECT count(*) FROM files") == [[0]]


@pytest.mark.sqlite_only("looks at the folder of attached files")
async def test_a_blob_that_cannot_be_moved_to_its_place_leaves_no_row(opened, path, sql):
    root = path.with_name(f"{path.name}.blobs")
    root.mkdir()
    (root / digest(b"hello")[:2]).write_text("in the way")
    async with opened() as store:
        with pytest.raises(StoreError, match="could not be stored"):
            await put(store)
        assert sql("SELECT count(*) FROM files") == [[0]]
        assert staged_names(path) == set()
        other = await put(store, b"other")
        assert await content(store, other.id) == b"other"
