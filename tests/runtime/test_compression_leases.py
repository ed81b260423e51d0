"""Compression leases: one summary at a time, and compression without them."""

from __future__ import annotations

import pytest
import trio

from hermes.errors import StoreBusy
from hermes.store import SessionStore
from hermes.testing import CountingBuilder
from tests.support.compression import (
    DROP_LEASES,
    HOLD,
    Gate,
    RecordingAgent,
    ScriptedCompressor,
    at_length,
    during_compression,
    elsewhere,
    lineage,
    problems,
    question,
    talk,
)
from tests.support.runtime import threads_only
from tests.support.store_proxy import Through


@threads_only
async def test_a_lease_held_elsewhere_stops_a_request_before_the_summary(small, path, world):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        before = await runtime.conversation("k").history()
        assert elsewhere(path, world, HOLD, session_id=parent, seconds=30)
        change = await runtime.conversation("k").compress()
        assert (change.changed, change.session_id) == (False, parent)
        assert change.detail == "Not compressed: another compression is running."
        said = await runtime.ask("k", "/compress")
        assert said.text == change.detail
        assert await runtime.conversation("k").history() == before
        world.pass_time(31)
        assert (await runtime.conversation("k").compress()).changed
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert problems(path) == []


@threads_only
async def test_a_turn_is_answered_while_a_lease_is_held_elsewhere(small, path, world):
    compressor = ScriptedCompressor()
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        parent = (await talk(runtime))[-1].session_id
        elsewhere(path, world, HOLD, session_id=parent, seconds=30)
        reply = await runtime.ask("k", question(10))
        assert (reply.text, reply.session_id) == (f"echo: {question(10)}", parent)
        assert len(agent.shown[-1]) == 20
        assert len(compressor) == 0
        world.pass_time(31)
        await runtime.ask("k", question(11))
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert problems(path) == []


async def test_two_keys_of_one_session_pay_for_one_summary_at_a_time(small):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        await runtime.admin.switch("other", parent)
        async with during_compression(gate, runtime.conversation("k").compress) as changes:
            with trio.fail_after(20):
                change = await runtime.conversation("other").compress()
        assert [each.changed for each in changes] == [True]
    assert not change.changed
    assert change.detail == "Not compressed: another compression is running."
    assert len(compressor) == 1


@threads_only
async def test_a_lease_of_another_holder_is_not_released(small, path, world):
    async with small() as runtime:
        parent = (await talk(runtime))[-1].session_id
        elsewhere(path, world, HOLD, session_id=parent, seconds=30)
        await runtime.conversation("k").compress()
    with SessionStore(path, clock=world.clock) as store:
        assert store.get_compression_lock_holder(parent) == "elsewhere"


@threads_only
async def test_a_lease_lost_during_the_summary_cannot_rotate(small, path, world):
    gate = Gate()
    async with small(compressor=ScriptedCompressor(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with during_compression(gate, runtime.conversation("k").compress) as changes:
            assert not elsewhere(path, world, HOLD, session_id=parent, seconds=30)
            world.pass_time(31)
            assert elsewhere(path, world, HOLD, session_id=parent, seconds=30)
        assert (await runtime.ask("k", "hello")).session_id == parent
    assert [(each.changed, each.detail) for each in changes] == [
        (False, "Not compressed: another compression is running.")
    ]
    assert lineage(path) == [parent]
    with SessionStore(path, clock=world.clock) as store:
        assert store.get_compression_lock_holder(parent) == "elsewhere"
        assert store.get_session(parent).end_reason is None


async def test_a_long_summary_keeps_its_lease(small, path, world, autojump_clock):
    """The summary takes three times as long as a lease lasts, and nobody else can acquire it."""
    taken = []

    async def slowly(request):
        for step in range(20):
            await trio.sleep(5)
            world.pass_time(5)
            if step % 7 == 6:
                code, given = HOLD, {"session_id": request.session_id, "seconds": 30}
                taken.append(elsewhere(path, world, code, **given))

    async with small(compressor=ScriptedCompressor(slowly)) as runtime:
        await talk(runtime)
        assert (await runtime.conversation("k").compress()).changed
    assert taken == [False, False]
    assert problems(path) == []


@threads_only
async def test_without_a_lease_table_compression_still_works(small, path, world):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        elsewhere(path, world, DROP_LEASES)
        reply = await runtime.ask("k", question(10))
        assert reply.text == f"echo: {question(10)}"
        shorter = await runtime.conversation("k").history()
        assert reply.session_id != parent
        assert len(shorter) == 7
        await talk(runtime, 3, first=11)
        assert len(compressor) == 1
    assert len(lineage(path)) == 2


@threads_only
async def test_a_lease_table_dropped_during_the_summary_does_not_stop_it(small, path, world):
    gate = Gate()
    async with small(compressor=ScriptedCompressor(gate)) as runtime:
        await talk(runtime)
        async with during_compression(gate, runtime.conversation("k").compress) as changes:
            elsewhere(path, world, DROP_LEASES)
        await runtime.ask("k", question(10))
    assert [change.changed for change in changes] == [True]
    assert len(lineage(path)) == 2


class Without(Through):
    """A store without some of its verbs."""

    def __init__(self, store, *missing):
        super().__init__(store, _missing=missing)

    def __getattr__(self, name):
        if name in self._missing:
            raise AttributeError(f"'Store' object has no attribute '{name}'")
        return super().__getattr__(name)


LEASE_VERBS = (
    "acquire_lease", "try_acquire_compression_lock", "refresh_compression_lock",
    "release_compression_lock", "get_compression_lock_holder",
)  # fmt: skip


async def test_a_store_without_lease_verbs_is_compressed_too(small_behind, path):
    compressor = ScriptedCompressor()
    builder = CountingBuilder(lambda _: RecordingAgent())
    wrap = lambda store: Without(store, *LEASE_VERBS)  # noqa: E731
    async with small_behind(wrap, compressor=compressor, build=builder) as runtime:
        parent = (await talk(runtime))[-1].session_id
        before = await runtime.conversation("k").history()
        reply = await runtime.ask("k", question(10))
        assert reply.status == "complete"
        assert reply.session_id != parent
        assert len(compressor) == 1
        assert len(await runtime.conversation("k").history()) < len(before)
        await talk(runtime, 3, first=11)
    assert len(compressor) == 1
    assert len(builder) == 1
    assert len(lineage(path)) == 2
    assert problems(path) == []


@pytest.mark.parametrize(
    "missing",
    LEASE_VERBS,
)
async def test_a_store_without_one_lease_verb_is_compressed_too(
    small_behind, path, missing, autojump_clock
):
    """The summary takes longer than the lease, so that it has to be renewed."""

    async def slowly(_):
        await trio.sleep(100)

    compressor = ScriptedCompressor(slowly)
    wrap = lambda store: Without(store, missing)  # noqa: E731
    async with small_behind(wrap, compressor=compressor) as runtime:
        await talk(runtime)
        assert (await runtime.conversation("k").compress()).changed
        await runtime.ask("k", question(10))
    assert len(compressor) == 1
    assert len(lineage(path)) == 2


async def test_a_lease_is_released_although_the_store_is_busy_at_first(
    small_behind, path, autojump_clock
):
    class BusyOnce(Through):
        async def release_compression_lock(self, session_id, holder):
            if self.busy:
                raise self.busy.pop()
            return await self.store.release_compression_lock(session_id, holder)

    errors = [StoreBusy("another process holds the write lock")]
    wrap = lambda store: BusyOnce(store, busy=errors)  # noqa: E731
    async with small_behind(wrap, compressor=ScriptedCompressor(at_length)) as runtime:
        await talk(runtime)
        assert not (await runtime.conversation("k").compress()).changed
    assert errors == []
    assert problems(path) == []
