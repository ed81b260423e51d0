"""Work that joins the commit of others, or is committed without a flush soon after."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hermes.actors.kernel.deferred import DEFER_SECONDS
from hermes.errors import ActorStopped, StoreFailed
from hermes.store import SessionStore, open_store
from tests.support.faulty_vfs import Fault, FaultyVFS


def put(name):
    """A request that stores a row and returns its name."""

    def work(tx):
        tx.run("INSERT INTO meta (key, value) VALUES (?, 'x')", name)
        return name

    return work


async def names(store):
    rows = await store.snapshot(lambda tx: tx.all("SELECT key FROM meta WHERE key LIKE 'n:%'"))
    return sorted(key for (key,) in rows)


@pytest.fixture
def vfs():
    return FaultyVFS()


async def test_it_joins_the_commit_of_others(path, vfs, mock_clock):
    async with open_store(path, vfs=vfs.name) as store:
        await store.set_meta("a", "0")
        commits, flushes = store.statistics().commits, vfs.calls["xSync"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.transact_deferred, put("n:1"))
            await trio.testing.wait_all_tasks_blocked()
            assert store.statistics().commits == commits
            await store.transact(put("n:2"))
        assert store.statistics().commits == commits + 1
        assert vfs.calls["xSync"] == flushes + 1
        assert await names(store) == ["n:1", "n:2"]


async def test_it_is_committed_without_a_flush_if_nothing_else_is(path, vfs, mock_clock):
    async with open_store(path, vfs=vfs.name) as store:
        await store.set_meta("a", "0")
        flushes = vfs.calls["xSync"]
        for number in (1, 2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.transact_deferred, put(f"n:{number}"))
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(DEFER_SECONDS)
        assert await names(store) == ["n:1", "n:2"]
        assert vfs.calls["xSync"] == flushes


async def test_it_is_committed_before_the_store_is_closed(path, mock_clock):
    async with trio.open_nursery() as nursery:
        async with open_store(path) as store:
            nursery.start_soon(store.transact_deferred, put("n:last"))
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ActorStopped):
            await store.transact_deferred(put("n:never"))
    with SessionStore(path) as store:
        found = store.transact(lambda tx: tx.all("SELECT key FROM meta WHERE key LIKE 'n:%'"))
        assert found == [("n:last",)]


async def test_it_is_committed_if_the_block_of_the_store_is_cancelled(path):
    committed = []

    async def write(store, name):
        with trio.move_on_after(10, shield=True):
            committed.append(await store.transact_deferred(put(name)))

    async def write_when_cancelled(store, name):
        try:
            await trio.sleep_forever()
        finally:
            await write(store, name)

    with trio.CancelScope() as scope:
        async with open_store(path) as store, trio.open_nursery() as nursery:
            nursery.start_soon(write, store, "n:before")
            nursery.start_soon(write_when_cancelled, store, "n:after")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert sorted(committed) == ["n:after", "n:before"]


async def test_it_fails_with_the_store(path, vfs, mock_clock):
    outcomes = []

    async def ask(request, name):
        try:
            outcomes.append(await request(put(name)))
        except StoreFailed:
            outcomes.append(StoreFailed)

    with pytest.raises(StoreFailed):
        async with open_store(path, vfs=vfs.name) as store:
            await store.set_meta("a", "0")
            vfs.arm(Fault("xSync", "io", 1, lasting=True))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, store.transact_deferred, "n:1")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask, store.transact, "n:2")
            vfs.disarm()
    assert outcomes == [StoreFailed, StoreFailed]
