"""Export and import of attached files: byte for byte the same, or refused with nothing left."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tracemalloc
from tempfile import TemporaryFile

import pytest
from hypothesis import given, strategies as st

from hermes.errors import BadImport, StoreError, UnknownFile, UnknownSession
from hermes.messages import Attachment, Imported, Message
from hermes.store import Clock, SessionStore
from hermes.store.maintenance.file_transfer import LINE_BYTES
from hermes.store.sqlite.blobs import BlobFolder
from tests.support.attachments import lose_contents
from tests.support.folders import quick_folder
from tests.support.stores import KINDS, open_kind

KEY = "agent:main:telegram:dm:1"
NOW = 1_800_000_000.0
SMALL = b"a small file\n"
LARGE = bytes(range(256)) * 8192 + b"the end"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x03\0\0\0\x05"


@pytest.fixture
def other(other_path):
    """A second store, to export from."""
    with SessionStore(other_path, clock=Clock(wall=lambda: NOW)) as opened:
        yield opened


def add(store, session_id, *contents, key=KEY):
    """A session with a message for each of these files. Returns the files."""
    if store.get_session(session_id) is None:
        store.create_session(session_id, "test", session_key=key)
    files = []
    for number, data in enumerate(contents):
        attachment = Attachment(data=data, name=f"Übung {number}.txt")
        files.append(store.put_file(attachment, session_key=key))
        store.append_message(session_id, "user", "look", parts=[files[-1].part])
    return files


def blobs_of(store):
    if store.path is None:
        return store.snapshot(
            lambda tx: {
                hash_: tx.db.blobs.read(hash_, 0, size)
                for hash_, size in tx.all("SELECT hash, size FROM blobs")
            }
        )
    return {each.name: each.read_bytes() for each in BlobFolder(store.path).all_blobs()}


def decoded(lines):
    return [json.loads(line) for line in lines]


# Round trips


@pytest.mark.parametrize("kind", KINDS)
async def test_an_import_gives_the_same_export_and_the_same_content(kind, path, world, other):
    first = add(other, "a", SMALL, LARGE, PNG)
    other.rewind("a", other.get_messages("a")[1].id)
    add(other, "a", b"after the rewind")
    add(other, "b", SMALL)
    lines = list(other.export_lines("a", "b"))
    async with open_kind(kind, path, clock=world.clock) as store:
        assert await store.import_sessions(lines) == Imported(2, 5)
    with SessionStore(path, clock=world.clock) as store:
        assert list(store.export_lines("a", "b")) == lines
        assert blobs_of(store) == blobs_of(other)
        for file in first:
            assert store.get_file(file.id, session_key=KEY) == other.get_file(
                file.id, session_key=KEY
            )
        assert store.integrity_check() == []
        world.pass_time(7200)
        assert store.sweep_files() == 0


@pytest.mark.parametrize("kind", ["threads", "inline"])
async def test_the_asynchronous_store_exports_the_same_lines(kind, other_path, world, other):
    add(other, "a", SMALL, LARGE)
    lines = list(other.export_lines("a"))
    other.close()
    async with open_kind(kind, other_path, clock=world.clock) as store:
        assert [line async for line in store.export_lines("a")] == lines


def test_a_file_is_a_line_per_megabyte_before_its_session(other):
    [file] = add(other, "a", LARGE)
    *lines, session = decoded(other.export_lines("a"))
    assert session["format"] == "hermes-session-1"
    assert [line["offset"] for line in lines] == [0, LINE_BYTES, 2 * LINE_BYTES]
    assert b"".join(base64.b64decode(line.pop("data")) for line in lines) == LARGE
    assert lines[0] == {
        "format": "hermes-file-1",
        "id": file.id,
        "hash": hashlib.sha256(LARGE).hexdigest(),
        "size": len(LARGE),
        "media_type": file.media_type,
        "name": "Übung 0.txt",
        "offset": 0,
    }
    assert lines[1] == {"format": "hermes-file-1", "id": file.id, "offset": LINE_BYTES}


def test_an_image_has_its_size_in_pixels(other):
    add(other, "a", PNG)
    line, _ = decoded(other.export_lines("a"))
    assert (line["media_type"], line["width"], line["height"]) == ("image/png", 3, 5)


def test_a_file_of_several_sessions_is_exported_once(other, store):
    add(other, "a", SMALL)
    branch = other.branch("a")
    lines = list(other.export_lines("a", branch))
    formats = [line["format"] for line in decoded(lines)]
    assert formats == ["hermes-file-1", "hermes-session-1", "hermes-session-1"]
    store.import_sessions(lines)
    assert list(store.export_lines("a", branch)) == lines
    store.delete_session("a")
    assert store.export_session(branch).startswith(lines[0])


def test_export_session_has_the_lines_of_its_files(other, store):
    add(other, "a", SMALL, LARGE)
    exported = other.export_session("a")
    assert exported.split("\n") == list(other.export_lines("a"))
    store.import_sessions(exported.split("\n"))
    assert store.export_session("a") == exported


def test_a_session_without_files_is_one_line(other):
    other.create_session("a", "test")
    other.append_message("a", "user", "hi")
    assert list(other.export_lines("a")) == [other.export_session("a")]
    assert "\n" not in other.export_session("a")


@pytest.mark.sqlite_only("damages a file")
def test_unknown_sessions_and_lost_content_cannot_be_exported(other):
    with pytest.raises(UnknownSession):
        list(other.export_lines("nobody"))
    [file] = add(other, "a", SMALL)
    [blob] = BlobFolder(other.path).all_blobs()
    blob.write_bytes(SMALL[::-1])
    with pytest.raises(StoreError, match=f"{file.id} cannot be exported: its content is damaged"):
        list(other.export_lines("a"))
    blob.write_bytes(SMALL[:-1])
    with pytest.raises(StoreError, match=f"{file.id} cannot be exported: its content is damaged"):
        list(other.export_lines("a"))
    blob.unlink()
    with pytest.raises(StoreError, match=f"{file.id} cannot be exported: No such file"):
        other.export_session("a")


def test_parts_of_other_programs_are_no_files(other, store):
    other.create_session("a", "test")
    parts = ({"type": "file", "file": {"filename": "a"}}, {"type": "image", "url": "https://x.y"})
    other.append_messages("a", [Message("user", parts=parts)])
    lines = list(other.export_lines("a"))
    exported = json.loads(lines[0])
    exported["messages"][0]["parts"].append({"type": "file", "file": "of a host"})
    store.import_sessions([json.dumps(exported)])
    assert len(store.get_messages("a")[0].parts) == 3
    assert list(store.export_lines("a")) == list(store.export_lines("a"))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(min_size=1, max_size=40)), max_size=8))
def test_random_files_are_the_same_after_a_round_trip(files):
    with quick_folder() as folder:
        with SessionStore(folder / "one.db") as one, SessionStore(folder / "two.db") as two:
            for session_id, data in files:
                add(one, session_id, data)
            ids = sorted({session_id for session_id, _ in files})
            lines = list(one.export_lines(*ids))
            two.import_sessions(lines)
            assert list(two.export_lines(*ids)) == lines
            assert blobs_of(two) == blobs_of(one)
            assert two.integrity_check() == []


def test_neither_an_export_nor_an_import_has_a_whole_file_in_memory(other, store):
    size = 24 * LINE_BYTES
    with TemporaryFile() as file:
        for _ in range(24):
            file.write(os.urandom(LINE_BYTES))
        file.seek(0)
        stored = other.put_file(Attachment(file=file), session_key=KEY)
    other.create_session("a", "test", session_key=KEY)
    other.append_message("a", "user", "look", parts=[stored.part])
    tracemalloc.start()
    try:
        assert store.import_sessions(other.export_lines("a")).sessions == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert blobs_of(store) == blobs_of(other)
    assert peak < size / 2


# Keys and ids


def test_imported_files_belong_to_the_key_of_the_session(other, store, sql):
    [file] = add(other, "a", SMALL)
    store.import_sessions(other.export_lines("a"))
    assert store.read_file(file.id, session_key=KEY) == SMALL
    assert sql("SELECT session_key FROM files") == [[KEY]]  # for the limits of the conversation
    with pytest.raises(UnknownFile):
        store.get_file(file.id, session_key="somebody else")


def test_a_file_that_exists_with_the_same_content_is_reused(other, store):
    add(other, "a", SMALL)
    lines = list(other.export_lines("a"))
    store.import_sessions(lines)
    again = [line.replace('"id":"a"', '"id":"b"') for line in lines]
    assert store.import_sessions(again) == Imported(1, 1)
    assert len(blobs_of(store)) == 1
    assert store.integrity_check() == []


def test_an_import_restores_lost_content(other, store, path):
    [file] = add(other, "a", SMALL)
    lines = list(other.export_lines("a"))
    store.import_sessions(lines)
    lose_contents(path)
    store.import_sessions([line.replace('"id":"a"', '"id":"b"') for line in lines])
    assert store.read_file(file.id, session_key=KEY) == SMALL


def test_exports_can_be_joined(other, store):
    add(other, "a", LARGE)
    branch = other.branch("a")
    lines = [*other.export_lines("a"), *other.export_lines(branch)]
    assert store.import_sessions(lines).sessions == 2
    assert len(blobs_of(store)) == 1


def test_files_that_no_session_names_are_not_stored(other, store):
    add(other, "a", SMALL)
    other.create_session("b", "test")
    [file, _], [session] = other.export_lines("a"), other.export_lines("b")
    store.import_sessions([file, session])
    assert blobs_of(store) == {}


def test_an_import_is_not_disturbed_by_a_sweep(other, store, world, path):
    add(other, "a", SMALL)
    file, session = other.export_lines("a")

    def lines():
        yield file
        world.pass_time(10 * 86_400)
        with SessionStore(path, clock=world.clock) as sweeping:
            assert sweeping.sweep_files() == 0
        yield session

    assert store.import_sessions(lines()).sessions == 1
    assert len(blobs_of(store)) == 1


# Refused


def change(line, **fields):
    return json.dumps({**json.loads(line), **fields})


def without(line, name):
    return json.dumps({key: value for key, value in json.loads(line).items() if key != name})


def bytes_of(data):
    return base64.b64encode(data).decode()


BAD = {
    "content": (lambda f, *r: [change(f, data=bytes_of(SMALL[::-1])), *r], "line 1 ends a file"),
    "size": (lambda f, *r: [change(f, size=12), *r], "line 1 has bytes after the end of its file"),
    "short": (lambda f, *r: [change(f, size=14), *r], "line 2 comes before the file of line 1 is"),
    "empty": (lambda f, *r: [change(f, data=""), *r], "line 1 has no bytes of its file"),
    "no size": (lambda f, *r: [without(f, "size"), *r], "line 1 begins a file, but has no hash, s"),
    "no hash": (lambda f, *r: [without(f, "hash"), *r], "line 1 begins a file, but has no hash, s"),
    "no type": (lambda f, *r: [without(f, "media_type"), *r], "line 1 begins a file, but has no h"),
    "newline": (lambda f, *r: [change(f, id=f"file_{'a' * 32}\n"), *r], "line 1 is not an exp"),
    "id": (lambda f, *r: [change(f, id="file_../../x"), *r], "line 1 is not an exp.*id"),
    "hash": (lambda f, *r: [change(f, hash="../x"), *r], "line 1 is not an exported file: .*hash"),
    "type": (lambda f, *r: [change(f, media_type="x\ny"), *r], "line 1 is not an .*media_type"),
    "data": (lambda f, *r: [change(f, data="%"), *r], "line 1 is not an exported file: Invalid ba"),
    "offset": (lambda f, *r: [change(f, offset=-1), *r], "line 1 is not an exp.*offset"),
    "middle": (lambda f, *r: [change(f, offset=5), *r], "line 1 does not follow the line"),
    "later": (lambda f, a, *r: [a, f, *r], "line 1 names file_[0-9a-f]{32}, which is not in the e"),
    "missing": (lambda f, a, *r: [a, *r], "line 1 names file_[0-9a-f]{32}, which is not in the ex"),
    "pixels": (lambda f, *r: [change(f, width=-1), *r], "line 1 is not an exported file: .*width"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_file_is_refused_and_leaves_nothing(name, other, store, sql):
    add(other, "a", SMALL)
    add(other, "b", LARGE)
    first, second = list(other.export_lines("a")), list(other.export_lines("b"))
    damage, message = BAD[name]
    lines = damage(first[0], first[1], second[0], second[-1])
    with pytest.raises(BadImport, match=f"^{message}"):
        store.import_sessions(lines)
    assert blobs_of(store) == {}
    assert [sql(f"SELECT count(*) FROM {table}") for table in ("files", "sessions")] == [[[0]]] * 2


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ((0, 2), "line 2 does not follow the line before it in its file"),
        ((0, 0), "line 2 comes before the file of line 1 is complete"),
        ((0, 1, 1), "line 3 does not follow the line before it in its file"),
        ((0, 1), "the export ends before the file of line 1 is complete"),
        ((0, 1, 3), "line 3 comes before the file of line 1 is complete"),
        ((1, 2), "line 1 does not follow the line before it in its file"),
        ((0, 1, 2, 2), "line 4 does not follow the line before it in its file"),
    ],
)
def test_lines_of_a_file_must_be_complete_and_in_order(chosen, message, other, store):
    add(other, "a", LARGE)
    lines = list(other.export_lines("a"))
    with pytest.raises(BadImport, match=f"^{message}$"):
        store.import_sessions([lines[number] for number in chosen])
    assert blobs_of(store) == {}


def test_an_id_that_is_in_use_for_another_content_is_refused(other, store, sql):
    [file] = add(other, "a", SMALL)
    [ours] = add(store, "mine", LARGE)
    lines = [line.replace(file.id, ours.id) for line in other.export_lines("a")]
    before = blobs_of(store)
    with pytest.raises(BadImport, match="line 1 has a file whose id has another content here"):
        store.import_sessions(lines)
    assert (blobs_of(store), store.get_session("a")) == (before, None)
    assert sql("SELECT count(*) FROM files") == [[1]]


def test_an_id_with_two_contents_in_one_export_is_refused(other, store):
    one, two = add(other, "a", SMALL, b"another")
    lines = [line.replace(two.id, one.id) for line in other.export_lines("a")]
    with pytest.raises(BadImport, match="line 2 has another content for the file of line 1"):
        store.import_sessions(lines)
    assert blobs_of(store) == {}


def test_an_invalid_session_after_files_leaves_nothing(other, store):
    add(other, "a", SMALL)
    file, _ = other.export_lines("a")
    with pytest.raises(BadImport, match="line 2 is not an exported session"):
        store.import_sessions([file, "{"])
    assert blobs_of(store) == {}
