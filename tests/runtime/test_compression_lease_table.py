"""Compression with a lease table of any shape, and with a store that cannot rotate."""

from __future__ import annotations

import contextlib

import apsw
import pytest

from hermes.errors import StoreBusy, StoreError
from hermes.messages import Skipped, Usage
from hermes.protocols import Summary
from hermes.store import SessionStore
from tests.support.compression import (
    ScriptedCompressor,
    failing,
    lineage,
    question,
    sent_to_users,
    talk,
)
from tests.support.store_proxy import Proxy

pytestmark = pytest.mark.sqlite_only(
    "other programs change this table in the file of hermes-agent only"
)

LEASES = (
    "CREATE TABLE leases (session_id TEXT PRIMARY KEY, holder TEXT, token INTEGER NOT NULL, "
    "expires REAL NOT NULL, ttl REAL NOT NULL)"
)
SHAPES = {
    "no table": "",
    "other columns": "CREATE TABLE leases (name TEXT)",
    "no holder": "CREATE TABLE leases (session_id TEXT PRIMARY KEY, token INTEGER, expires REAL, "
    "ttl REAL)",
    "no token": "CREATE TABLE leases (session_id TEXT PRIMARY KEY, holder TEXT, expires REAL, "
    "ttl REAL)",
    "no key": LEASES.replace(" PRIMARY KEY", ""),
    "texts": "CREATE TABLE leases (session_id TEXT PRIMARY KEY, holder TEXT, token TEXT, "
    "expires TEXT, ttl TEXT)",
    "a required column": LEASES.replace("ttl REAL NOT NULL", "ttl REAL, owner TEXT NOT NULL"),
    "a view": "CREATE VIEW leases AS SELECT 'x' AS session_id, 'y' AS holder, 1 AS token, "
    "2.0 AS expires, 3.0 AS ttl",
    "a view with a live holder of every session": "CREATE VIEW leases AS SELECT id AS session_id, "
    "'elsewhere' AS holder, 99 AS token, 5010.0 AS expires, 30.0 AS ttl FROM sessions",
    "a view of a missing table": "CREATE VIEW leases AS SELECT * FROM gone",
    "inserting raises": f"{LEASES}; CREATE TRIGGER t BEFORE INSERT ON leases "
    "BEGIN SELECT raise(ABORT, 'no'); END",
    "inserting is ignored": f"{LEASES}; CREATE TRIGGER t BEFORE INSERT ON leases "
    "BEGIN SELECT raise(IGNORE); END",
    "updating raises": f"{LEASES}; CREATE TRIGGER t BEFORE UPDATE ON leases "
    "BEGIN SELECT raise(ABORT, 'no'); END",
    "updating fails late": f"{LEASES}; CREATE TRIGGER t AFTER UPDATE ON leases "
    "BEGIN INSERT INTO gone VALUES (1); END",
    "inserting rolls back": f"{LEASES}; CREATE TRIGGER t BEFORE INSERT ON leases "
    "BEGIN SELECT raise(ROLLBACK, 'no'); END",
    "a holder is required": LEASES.replace("holder TEXT", "holder TEXT NOT NULL"),
    "a holder is required or rolls back": LEASES.replace(
        "holder TEXT", "holder TEXT NOT NULL ON CONFLICT ROLLBACK"
    ),
    "updating stops halfway": f"{LEASES}; CREATE TRIGGER t BEFORE UPDATE ON leases "
    "BEGIN SELECT raise(FAIL, 'no'); END",
    "updating rolls back": f"{LEASES}; CREATE TRIGGER t AFTER UPDATE ON leases "
    "BEGIN SELECT raise(ROLLBACK, 'no'); END",
    "deleting raises": f"{LEASES}; CREATE TRIGGER t BEFORE DELETE ON leases "
    "BEGIN SELECT raise(ABORT, 'no'); END",
    "deleting rolls back": f"{LEASES}; CREATE TRIGGER t BEFORE DELETE ON leases "
    "BEGIN SELECT raise(ROLLBACK, 'no'); END",
}


def reshape(path, statements):
    """Replace the lease table, through another connection."""
    with contextlib.closing(open_again(path)) as db:
        db.execute(f"DROP TABLE leases; {statements}")


def open_again(path):
    """Return another connection to the file."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(10_000)
    return db


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_lease_table_of_a_wrong_shape_does_not_prevent_compression(small, path, shape):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        reshape(path, SHAPES[shape])
        reply = await runtime.ask("k", question(10))
        assert (reply.status, reply.text) == ("complete", f"echo: {question(10)}")
        assert reply.session_id != parent
        await talk(runtime, 2, first=11)
        assert len(compressor) == 1
        await runtime.conversation("k").compress()
    assert lineage(path)[0] == parent


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_lease_table_that_changes_during_the_summary_does_not_prevent_compression(
    small, path, shape
):
    async def then(_):
        reshape(path, SHAPES[shape])

    compressor = ScriptedCompressor(then)
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        reply = await runtime.ask("k", question(10))
        assert (reply.status, reply.text) == ("complete", f"echo: {question(10)}")
        assert reply.session_id != parent
        compressor.then = None
        await talk(runtime, 2, first=11)
    assert len(compressor) == 1
    assert len(lineage(path)) == 2


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_lease_that_could_not_be_released_does_not_block_the_next_attempt(
    small, path, shape
):
    compressor = ScriptedCompressor(failing(RuntimeError("no")))
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        reshape(path, SHAPES[shape])
        assert (await runtime.conversation("k").compress()).failed
        compressor.then = None
        change = await runtime.conversation("k").compress()
        assert (change.changed, change.old_session_id) == (True, parent)
    assert len(compressor) == 2
    assert len(lineage(path)) == 2


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_session_is_deleted_although_the_lease_table_has_a_wrong_shape(small, path, shape):
    async with small() as runtime:
        session_id = (await talk(runtime, 2))[-1].session_id
        await runtime.ask("other", question(0))
        with SessionStore(path) as store:
            store.try_acquire_compression_lock(session_id, "elsewhere")
            rows = store.snapshot(lambda tx: tx.all("SELECT * FROM leases"))
        reshape(path, SHAPES[shape])
        with contextlib.suppress(apsw.Error), contextlib.closing(open_again(path)) as db:
            db.executemany("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", rows)
        assert await runtime.admin.delete(session_id) == 4
        assert await runtime.conversation("k").history() == []
        assert len(await runtime.admin.sessions()) == 1


async def test_the_lease_of_a_session_is_deleted_with_it(small, path):
    async with small() as runtime:
        session_id = (await talk(runtime, 2))[-1].session_id
        with SessionStore(path) as store:
            store.try_acquire_compression_lock(session_id, "elsewhere")
            await runtime.admin.delete(session_id)
            assert store.snapshot(lambda tx: tx.all("SELECT * FROM leases")) == []


async def paid(_):
    return Summary("short", [Usage(cost=0.25)])


@pytest.mark.parametrize(
    "error", [StoreError("nothing was stored"), StoreBusy("try again"), AttributeError("rotate")]
)
async def test_a_failing_rotation_counts_for_the_breaker(small_behind, path, world, error):
    async def rotate(real, rotation):
        raise error

    compressor = ScriptedCompressor(paid)
    wrap = lambda store: Proxy(store, rotate=rotate)  # noqa: E731
    async with small_behind(wrap, compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        replies = await talk(runtime, 4, first=10)
        assert {(reply.status, reply.session_id) for reply in replies} == {("complete", parent)}
        assert len(compressor) == 1
        assert (await runtime.conversation("k").status()).compression_note is not None
        world.pass_time(61)
        await runtime.ask("k", question(14))
        assert len(compressor) == 2
        change = await runtime.conversation("k").compress()
        assert (change.changed, change.failed) == (False, True)
    assert [kind for kind, _ in sent_to_users(path)].count("notice") == 2
    with SessionStore(path) as store:
        assert [call.cost for call in store.get_usage(parent)] == [0.25] * 3


async def test_a_refused_rotation_counts_for_the_breaker(small_behind, caplog):
    async def rotate(real, rotation):
        return Skipped("the lease was lost", holder="elsewhere")

    compressor = ScriptedCompressor(paid)
    wrap = lambda store: Proxy(store, rotate=rotate)  # noqa: E731
    async with small_behind(wrap, compressor=compressor) as runtime:
        await talk(runtime, 14)
        assert len(compressor) == 1
        note = (await runtime.conversation("k").status()).compression_note
    assert "another compression is running" in note
    assert "was not compressed: the lease was lost (elsewhere)" in caplog.text


async def test_the_breaker_works_although_its_state_cannot_be_stored(small_behind):
    async def fail(real, *args):
        raise StoreError("nothing was stored")

    compressor = ScriptedCompressor(paid)
    wrap = lambda store: Proxy(store, rotate=fail, set_meta=fail)  # noqa: E731
    async with small_behind(wrap, compressor=compressor) as runtime:
        replies = await talk(runtime, 14)
    assert {reply.status for reply in replies} == {"complete"}
    assert len(compressor) == 1
