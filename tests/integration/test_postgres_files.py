"""Attached files as rows of PostgreSQL: chunks, unfinished uploads, and lost servers."""

from __future__ import annotations

import os

import pytest
import trio

from hermes.errors import StoreError, UnknownFile
from hermes.messages import Attachment, Inbound
from hermes.store import SessionStore, open_store
from hermes.store.files.contents import CHUNK
from hermes.store.files.staging import FileWriter, stage
from hermes.store.maintenance import file_checks
from hermes.store.postgres.address import parse
from hermes.store.postgres.driver import connect
from tests.support.attachments import HOUR, content, put

KEY = "k"
BIG = os.urandom(2 * CHUNK + 17)


@pytest.fixture
def store(postgres_url, world):
    with SessionStore(postgres_url, clock=world.clock) as opened:
        yield opened


@pytest.fixture
def rows(postgres_url):
    """Run SQL on a separate connection."""
    with connect(parse(postgres_url)) as db:
        yield lambda statement, *values: db.execute(statement, values).fetchall()


def contents_of(store):
    return store.snapshot(lambda tx: tx.db.blobs)


def test_a_file_is_stored_in_chunks_and_read_in_any_pieces(store, rows):
    file = store.put_file(Attachment(data=BIG, name="a.bin"), session_key=KEY)
    sizes = rows("SELECT n, octet_length(data) FROM file_chunks ORDER BY n")
    assert sizes == [(0, CHUNK), (1, CHUNK), (2, 17)]
    assert store.read_file(file.id, session_key=KEY) == BIG
    for offset, size in ((0, 1), (CHUNK - 1, 2), (CHUNK, CHUNK), (5, 2 * CHUNK), (len(BIG) - 1, 9)):
        read = store.read_file(file.id, session_key=KEY, offset=offset, size=size)
        assert read == BIG[offset : offset + size]


def test_equal_files_share_their_content_and_the_last_one_takes_it_along(store, rows):
    first, second = (store.put_file(Attachment(data=BIG), session_key=key) for key in "ab")
    assert rows("SELECT count(*) FROM file_contents") == [(1,)]
    assert store.discard_file(first.id, session_key="a")
    assert store.read_file(second.id, session_key="b") == BIG
    assert store.discard_file(second.id, session_key="b")
    for table in ("files", "blobs", "file_contents", "file_chunks"):
        assert rows(f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_refused_file_leaves_nothing(store, rows):
    with pytest.raises(Exception, match="instead of 6"):
        store.put_file(Attachment(data=b"12345", size=6), session_key=KEY)
    assert rows("SELECT count(*) FROM file_contents") == [(0,)]


def test_a_sweep_spares_an_upload_while_its_process_lives(store, world, rows, postgres_url):
    with SessionStore(postgres_url, clock=world.clock) as other:
        staged = stage(contents_of(other), Attachment(data=BIG), len(BIG))
        world.pass_time(10 * HOUR)
        assert store.sweep_files() == 0
    # Its connections are closed now, as after SIGKILL: nobody can finish it.
    assert store.sweep_files() == 1
    assert rows("SELECT count(*) FROM file_chunks") == [(0,)]
    with pytest.raises(StoreError, match="was not stored completely; send it again"):
        store.transact(lambda tx: tx.db.blobs.place(tx, staged))


def test_an_upload_that_lost_a_chunk_is_not_stored(store, rows):
    staged = stage(contents_of(store), Attachment(data=BIG), len(BIG))
    rows("DELETE FROM file_chunks WHERE n = 1 RETURNING 1")
    with pytest.raises(StoreError, match="was not stored completely"):
        store.transact(lambda tx: tx.db.blobs.place(tx, staged))
    staged.discard()


def test_content_that_is_lost_or_cut_is_found(store, rows):
    lost, cut = (
        store.put_file(Attachment(data=BIG + end), session_key=KEY) for end in (b"1", b"2")
    )
    of = "SELECT content_id FROM blobs b JOIN files f ON f.hash = b.hash WHERE f.id = $1"
    rows(f"DELETE FROM file_chunks WHERE content_id = ({of}) RETURNING 1", lost.id)
    rows(f"DELETE FROM file_chunks WHERE n = 2 AND content_id = ({of}) RETURNING 1", cut.id)
    problems = store.snapshot(file_checks.check)
    assert len(problems) == 2
    assert any(f"the content of {lost.id} is missing: blob " in each for each in problems)
    assert any(f"{cut.id} has {2 * CHUNK:,} bytes instead" in each for each in problems)
    with pytest.raises(StoreError, match="damaged"):
        store.read_file(cut.id, session_key=KEY)
    again = store.put_file(Attachment(data=BIG + b"2"), session_key=KEY)
    assert store.read_file(cut.id, session_key=KEY)[-1:] == b"2"
    assert store.discard_file(again.id, session_key=KEY)


def test_a_file_that_a_message_names_meanwhile_is_not_swept(store, world, rows, postgres_url):
    file = store.put_file(Attachment(data=b"here"), session_key=KEY)
    world.pass_time(2 * HOUR)
    with connect(parse(postgres_url)) as waiting:
        waiting.execute("BEGIN")
        waiting.execute("SELECT 1 FROM files FOR UPDATE")  # the sweep waits for its deletion
        accepted = []

        async def both():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, store.sweep_files)
                while not rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                    await trio.lowlevel.checkpoint()
                waiting.execute(
                    "INSERT INTO inbox (platform, account, event_id, scope, session_key, "
                    "session_id, epoch, accepted_at) VALUES ('t', '', 'e', '', 'k', 's', 1, 0)"
                )
                waiting.execute("INSERT INTO inbox_files SELECT max(id), $1 FROM inbox", [file.id])
                waiting.execute("COMMIT")
                accepted.append(True)

        trio.run(both)
    assert accepted
    assert store.read_file(file.id, session_key=KEY) == b"here"
    with SessionStore(postgres_url, clock=world.clock) as other:
        assert other.sweep_files() == 0


async def test_every_node_serves_a_file(postgres_url, world):
    async with open_store(postgres_url, clock=world.clock) as one:
        async with open_store(postgres_url, clock=world.clock) as two:
            file = await put(one, BIG, key=KEY)
            assert await content(two, file.id, key=KEY) == BIG
            await two.accept(Inbound(KEY, "e", "look", parts=(file.part,)))
            assert await two.discard_file(file.id, session_key=KEY) is False
            world.pass_time(2 * HOUR)
            assert await one.sweep_files() == 0


def test_a_restarted_server_costs_no_upload(postgres_server, world):
    with SessionStore(postgres_server.url, clock=world.clock) as store:
        writer = FileWriter(contents_of(store), len(BIG))
        writer.write(BIG[: CHUNK + 5])
        postgres_server.restart("immediate")
        writer.write(BIG[CHUNK + 5 :])
        staged = writer.finish()
        store.transact(lambda tx: tx.db.blobs.place(tx, staged))
        staged.discard()
        assert contents_of(store).read(staged.hash, 0, len(BIG)) == BIG
        with pytest.raises(UnknownFile):
            store.read_file("file_" + 32 * "0", session_key=KEY)
