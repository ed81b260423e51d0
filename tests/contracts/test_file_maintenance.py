"""Attached files in maintenance: what a sweep, a prune and a deletion leave, and what `check` says.

A file is stored with a wrong date, by different processes, and in every kind of store.
"""

from __future__ import annotations

import io
import os
import shutil

import pytest

from hermes.errors import StoreError, UnknownFile
from hermes.messages import Attachment, Inbound, Message, Outbound, Source, TurnCommit
from hermes.store import SessionStore
from hermes.store.attachments import sweep
from hermes.store.files.staging import stage
from hermes.store.sqlite.blobs import INCOMING, BlobFolder
from tests.support.stores import KINDS, AwaitedStore, open_kind

pytestmark = pytest.mark.sqlite_only("looks at the folder of attached files")

KEY = "agent:main:telegram:dm:1"
HOUR, DAY = 3600.0, 86_400.0
YEAR = 365 * DAY
TEXT = b"a note\n" * 100


@pytest.fixture
def blobs(path):
    """List the names of the blobs on disk, staged ones included."""
    folder = path.with_name(f"{path.name}.blobs")
    return lambda: sorted(each.name for each in folder.rglob("*") if each.is_file())


def put(store, data=TEXT, name="note.txt", key=KEY):
    return store.put_file(Attachment(data=data, name=name), session_key=key)


def inbound(*files, event="e1"):
    parts = tuple(file.part for file in files)
    return Inbound(
        session_key=KEY, event_id=event, text="look", parts=parts, source=Source(platform="test")
    )


def named(store, file, session_id="s"):
    """Append a message with a file to a session."""
    store.append_message(session_id, "user", "look", parts=[file.part])


def recorded(sql):
    """How many references there are, of sessions, messages and replies."""
    tables = ("session_files", "inbox_files", "outbox_files")
    return [sql(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


@pytest.fixture
def session(store):
    store.create_session("s", "test", session_key=KEY)


# References


def test_a_deleted_session_drops_its_references_and_a_sweep_its_files(store, world, sql, session):
    file = put(store)
    named(store, file)
    world.pass_time(2 * HOUR)
    assert store.sweep_files() == 0
    store.delete_session("s")
    assert recorded(sql) == [0, 0, 0]
    assert store.sweep_files() == 1
    with pytest.raises(UnknownFile):
        store.get_file(file.id, session_key=KEY)


def test_a_file_is_kept_while_another_session_names_it(store, world, blobs, session):
    named(store, put(store))
    branched = store.branch("s")
    store.delete_session("s")
    world.pass_time(2 * HOUR)
    assert (store.sweep_files(), len(blobs())) == (0, 1)
    store.delete_session(branched)
    assert (store.sweep_files(), blobs()) == (1, [])


def test_content_is_kept_while_another_file_has_the_same(store, world, blobs, session):
    named(store, put(store, name="one.txt"))
    put(store, name="two.txt")
    world.pass_time(2 * HOUR)
    assert (store.sweep_files(), len(blobs())) == (0, 1)
    store.delete_session("s")
    assert (store.sweep_files(), blobs()) == (1, [])


def test_a_prune_and_a_sweep_delete_the_files_of_old_sessions(store, world, blobs, session):
    named(store, put(store))
    store.end_session("s", "closed")
    world.pass_time(100 * DAY)
    assert store.prune_sessions(90).session_ids == ("s",)
    assert (store.sweep_files(), blobs()) == (1, [])


def test_the_files_of_open_parked_and_dead_rows_are_kept_until_the_rows_are_forgotten(
    store, world, sql, blobs
):
    waiting, parked, replied = (put(store, f"{n}".encode()) for n in range(3))
    store.accept(inbound(waiting, event="e1"))
    second = store.accept(inbound(parked, event="e2")).receipt
    third = store.accept(inbound(event="e3")).receipt
    store.park_inbox([second.inbox_id], "too often")
    head = store.head(third.session_id)
    commit = TurnCommit(
        session_key=KEY,
        session_id=third.session_id,
        epoch=third.epoch,
        revision=head.revision,
        inbox_ids=[third.inbox_id],
        rows=[Message("user", "look")],
        outbox=[Outbound("lane", {"text": "here", "files": [replied.part]})],
    )
    store.commit_turn(commit)
    [row] = store.pending_outbox()
    store.mark_dead([row.outbox_id], "blocked")
    world.pass_time(29 * DAY)
    assert (store.forget_closed(), store.sweep_files(), len(blobs())) == (0, 0, 3)
    assert recorded(sql) == [0, 2, 1]
    world.pass_time(2 * DAY)
    assert store.forget_closed() == 3
    assert recorded(sql) == [0, 1, 0]
    assert (store.sweep_files(), len(blobs())) == (2, 1)


def test_no_deletion_scans_a_table_of_references(store):
    def plan(statement, *values):
        rows = store.snapshot(lambda tx: tx.all(f"EXPLAIN QUERY PLAN {statement}", *values))
        return [row[-1] for row in rows if not row[-1].startswith("CORRELATED")]

    deletions = [
        plan("DELETE FROM inbox WHERE id = 1"),
        plan("DELETE FROM outbox WHERE id = 1"),
        plan("DELETE FROM sessions WHERE no = 1"),
        plan("DELETE FROM files WHERE id = 'x'"),
        plan("DELETE FROM blobs WHERE hash = 'x'"),
        plan(sweep._FILES, 0.0, ""),
        plan(sweep._BLOBS, ""),
    ]
    assert [step for steps in deletions for step in steps if not step.startswith("SEARCH")] == []
    assert [len(steps) for steps in deletions] == [2, 2, 8, 4, 2, 4, 2]


# Clocks


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_a_sweep_with_a_wrong_date_deletes_no_upload_of_this_hour(store, world, blobs, jump):
    file = put(store)
    world.pass_time(300)
    world.now += jump
    assert (store.sweep_files(), len(blobs())) == (0, 1)
    store.accept(inbound(file))
    world.now -= jump
    assert store.sweep_files() == 0
    assert store.read_file(file.id, session_key=KEY) == TEXT


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_an_upload_of_a_wrong_date_is_spared_when_the_date_is_right_again(store, world, jump):
    world.now += jump
    file = put(store)
    world.now -= jump
    world.pass_time(300)
    assert store.sweep_files() == 0
    store.accept(inbound(file))


def test_a_file_from_before_a_restart_of_the_machine_is_old_an_hour_after_it(store, world):
    world.steady = 90 * DAY
    put(store)
    world.now, world.steady = world.now + 60, 60.0
    assert store.sweep_files() == 0
    world.pass_time(HOUR)
    assert store.sweep_files() == 1


def test_a_file_is_spared_for_an_hour_of_the_steady_clock(store, world):
    put(store)
    world.pass_time(HOUR)
    assert store.sweep_files() == 0
    world.pass_time(1)
    assert store.sweep_files() == 1


# Content


def test_a_sweep_looks_at_every_row_in_steps(store, world, blobs, session):
    for number in range(2 * sweep.STEP + 1):
        put(store, f"{number}".encode(), key=f"{KEY}:{number // 500}")
    named(store, put(store, b"kept"))
    world.pass_time(2 * HOUR)
    assert store.sweep_files() == 2 * sweep.STEP + 1
    assert len(blobs()) == 1
    assert store.sweep_files() == 0


def test_content_without_a_row_is_removed_and_other_files_are_not(store, world, path, blobs):
    put(store)
    folder = path.with_name(f"{path.name}.blobs")
    (folder / "ab").mkdir(exist_ok=True)
    for name in ("ab/" + "ab" * 32, "ab/README", "ab" * 32, "incoming/abc"):
        (folder / name).write_bytes(b"left by a process that was killed")
        os.utime(folder / name, (world.now, world.now))
    assert store.sweep_files() == 0
    world.pass_time(2 * HOUR)
    assert store.sweep_files() == 3
    assert blobs() == ["README", "ab" * 32]


def test_files_that_are_being_staged_are_not_swept(store, world, path, blobs):
    put(store)
    folder = store.snapshot(lambda tx: tx.db.blobs)
    new = folder.new_file()
    new.write_bytes(b"half")
    os.utime(new, (world.now, world.now))
    world.pass_time(2 * HOUR)
    with folder.hold():
        assert store.sweep_files() == 1
        assert blobs() == [new.name]
    assert (store.sweep_files(), blobs()) == (1, [])


def test_an_upload_that_takes_days_is_not_swept(path, store, world, blobs):
    class Slow(io.BytesIO):
        def read(self, size):
            world.pass_time(10 * DAY)
            with SessionStore(path, clock=world.clock) as other:
                assert other.sweep_files() == 0
            return super().read(size)

    file = store.put_file(Attachment(file=Slow(TEXT)), session_key=KEY)
    assert store.read_file(file.id, session_key=KEY) == TEXT


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_store_sweeps(kind, path, world, blobs):
    async with open_kind(kind, path, clock=world.clock) as store:
        kept = await store.put_file(Attachment(data=TEXT), session_key=KEY)
        await store.put_file(Attachment(data=b"unused"), session_key=KEY)
        await store.accept(inbound(kept))
        world.pass_time(2 * HOUR)
        assert await store.sweep_files() == 1
        assert len(blobs()) == 1
    with SessionStore(path, clock=world.clock) as again:
        assert again.read_file(kept.id, session_key=KEY) == TEXT


# Checks


@pytest.fixture
def blob(store, session, path):
    """The content of a file that a session names."""
    named(store, put(store))
    [blob] = BlobFolder(path).all_blobs()
    return blob


def only_file(sql):
    return sql("SELECT id FROM files")[0][0]


def test_a_sound_store_has_no_problems_with_files_of_every_kind(store, world, session):
    named(store, put(store))
    store.accept(inbound(put(store, b"waiting")))
    parked = store.accept(inbound(put(store, b"parked"), event="e2")).receipt
    store.park_inbox([parked.inbox_id], "too often")
    store.branch("s")
    store.rewind("s", store.get_messages("s")[0].id)
    put(store, b"unused")
    assert store.integrity_check(full=True) == []


def test_lost_content_is_a_problem(store, blob, sql):
    blob.unlink()
    assert store.integrity_check() == [f"the content of {only_file(sql)} is missing: {blob}"]


def test_content_of_another_size_is_a_problem(store, blob, sql):
    blob.write_bytes(b"short")
    found = f"the content of {only_file(sql)} has 5 bytes instead of 700: {blob}"
    assert store.integrity_check() == [found]


def test_changed_content_is_found_if_it_is_read(store, blob, sql):
    blob.write_bytes(TEXT[::-1])
    assert store.integrity_check() == []
    damaged = f"the content of {only_file(sql)} is damaged: {blob}"
    assert store.integrity_check(full=True) == [damaged]


def test_content_that_cannot_be_read_is_a_problem(store, blob, sql):
    blob.unlink()
    blob.parent.rmdir()
    blob.parent.write_bytes(b"a file instead of a folder")
    [problem] = store.integrity_check(full=True)
    assert problem == (f"the content of {only_file(sql)} cannot be read: {blob}: Not a directory")


def test_a_removed_folder_is_one_problem(store, blob, path):
    put(store, b"another")
    shutil.rmtree(BlobFolder(path).path)
    folder = f"{path}.blobs"
    assert store.integrity_check() == [f"{folder} does not exist, and so the content of 2 files"]


def test_many_problems_are_shortened(store, session, path):
    for number in range(25):
        named(store, put(store, f"{number}".encode()))
    for each in BlobFolder(path).all_blobs():
        each.unlink()
    problems = store.integrity_check()
    assert len(problems) == 21
    assert problems[-1] == "there are 5 more problems of attached files"


def test_references_that_are_not_recorded_are_problems(store, session, sql):
    kept, waiting, replied = (put(store, f"{n}".encode()) for n in range(3))
    named(store, kept)
    receipt = store.accept(inbound(waiting)).receipt
    store.post(KEY, "here", Source(), [Outbound("lane", {"files": [replied.part]})])
    [reply] = store.pending_outbox()
    assert recorded(sql) == [1, 1, 1]
    for table in ("session_files", "inbox_files", "outbox_files"):
        sql(f"DELETE FROM {table}")
    assert store.integrity_check() == [
        f"session s names {kept.id}, which is not recorded",
        f"message {receipt.inbox_id} names {waiting.id}, which is not recorded",
        f"reply {reply.outbox_id} names {replied.id}, which is not recorded",
    ]


def test_references_without_a_name_are_problems(store, session, sql):
    file = put(store)
    receipt = store.accept(inbound()).receipt
    store.post(KEY, "here", Source(), [Outbound("lane", {"text": "here"})])
    [reply] = store.pending_outbox()
    for table, number in (
        ("session_files", 1),
        ("inbox_files", receipt.inbox_id),
        ("outbox_files", reply.outbox_id),
    ):
        sql(f"INSERT INTO {table} VALUES (?, ?)", number, file.id)
    sql("DROP TRIGGER finished_messages_need_no_files")
    sql("UPDATE inbox SET state = 'done', body = NULL")
    assert store.integrity_check() == [
        f"session s does not name {file.id}, but that is recorded",
        f"message {receipt.inbox_id} does not name {file.id}, but that is recorded",
        f"reply {reply.outbox_id} does not name {file.id}, but that is recorded",
    ]


def test_files_of_a_running_turn_are_no_problem(store, session):
    receipt = store.accept(inbound()).receipt
    file = put(store)
    sql = "INSERT INTO inbox_files VALUES (?, ?)"
    store.transact(lambda tx: tx.run(sql, receipt.inbox_id, file.id))
    assert store.integrity_check() == []


def test_a_file_of_another_size_than_its_content_is_a_problem(store, blob, sql):
    sql("UPDATE files SET size = 1")
    assert store.integrity_check() == [f"{only_file(sql)} has another size than its content"]


def test_content_that_nothing_names_is_no_problem_but_counted(store, world, blob):
    put(store, b"unused")
    assert store.integrity_check() == []
    assert store.snapshot(sweep.unused) == ("", 0, 0)
    world.pass_time(2 * HOUR)
    assert store.snapshot(sweep.unused) == ("", 1, 6)
    assert store.sweep_files() == 1
    assert store.snapshot(sweep.unused) == ("", 0, 0)


# A folder that is removed or cannot be used


async def read(store, file):
    """Read a file from any kind of store."""
    if isinstance(store, AwaitedStore):
        return await store.read_file(file.id, session_key=KEY)
    return await (await store.open_file(file.id, session_key=KEY)).read()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_removed_folder_costs_its_files_and_nothing_else(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        lost = await store.put_file(Attachment(data=TEXT), session_key=KEY)
        await store.accept(inbound(lost))
        shutil.rmtree(f"{path}.blobs")
        with pytest.raises(UnknownFile, match=f"the file {lost.id} was deleted"):
            await read(store, lost)
        world.pass_time(2 * HOUR)
        assert await store.sweep_files() == 0
        kept = await store.put_file(Attachment(data=b"new"), session_key=KEY)
        assert await read(store, kept) == b"new"
        await store.accept(inbound(kept, event="e2"))
        again = await store.put_file(Attachment(data=TEXT), session_key=KEY)
        assert await read(store, lost) == await read(store, again) == TEXT


@pytest.mark.parametrize("kind", KINDS)
async def test_a_folder_that_cannot_be_used_is_one_sentence(kind, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await store.put_file(Attachment(data=TEXT), session_key=KEY)
        shutil.rmtree(f"{path}.blobs")
        path.with_name(f"{path.name}.blobs").write_bytes(b"not a folder")
        with pytest.raises(StoreError, match=f"{file.id} cannot be read: Not a directory"):
            await read(store, file)
        with pytest.raises(StoreError, match="the attachment could not be stored: "):
            await store.put_file(Attachment(data=b"new"), session_key=KEY)
        world.pass_time(2 * HOUR)
        assert await store.sweep_files() == 0
        await store.accept(inbound())
        assert len(await store.open_inbox(KEY)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [0, 3])
async def test_content_that_was_cut_is_not_read(kind, left, path, world):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await store.put_file(Attachment(data=TEXT), session_key=KEY)
        [blob] = BlobFolder(path).all_blobs()
        blob.write_bytes(TEXT[:left])
        with pytest.raises(StoreError, match=f"{file.id} cannot be read: its content is damaged"):
            await read(store, file)


def test_a_file_is_not_swept_before_its_row_is_stored_whatever_the_date(store, path):
    staged = stage(BlobFolder(path), Attachment(data=TEXT), len(TEXT))
    file = BlobFolder(path).path / INCOMING / staged.upload.id
    os.utime(file, (0, 0))
    assert store.sweep_files() == 0
    assert file.exists()
    staged.discard()
    file.write_bytes(TEXT)
    os.utime(file, (0, 0))
    assert store.sweep_files() == 1  # nobody is about to store it


def test_a_sweep_follows_no_links(store, world, path, tmp_path):
    put(store)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    incoming = BlobFolder(path).path / "incoming"
    incoming.rmdir()
    incoming.symlink_to(other)
    os.utime(other / "thesis.txt", (0, 0))
    world.pass_time(2 * HOUR)
    assert store.sweep_files() == 1
    assert (other / "thesis.txt").exists()


def test_a_sweep_goes_on_after_what_it_cannot_delete(store, world, path, caplog):
    put(store)
    folder = BlobFolder(path).path / "incoming" / "a folder"
    folder.mkdir()
    os.utime(folder, (0, 0))
    world.pass_time(2 * HOUR)
    assert store.sweep_files() == 1
    [message] = caplog.messages
    assert message.startswith(f"{folder} was not swept: ")
