"""Replies that were not sent, or may have been sent, when a runtime ended."""

from __future__ import annotations

import itertools

import trio
from trio.testing import wait_all_tasks_blocked

from hermes import Config, Inbound, Source
from hermes.messages import Outbound, TurnCommit
from hermes.store import SessionStore
from hermes.testing import (
    MemoryAdapter,
)
from tests.support.killed_programs import run_until_killed, table_rows
from tests.support.outbox import GatedAdapter
from tests.support.runtime import SECONDS, with_threads

IN_SEND = """
async def main():
    async with open_runtime(path, agent=echo, adapters=[Stuck(good=1)]) as runtime:
        for n in range(4):
            await runtime.ask("k", str(n), source=chat("c"))
        say("all committed")
        await trio.sleep_forever()

trio.run(main)
"""


@with_threads
async def test_a_reply_whose_send_was_in_flight_is_sent_again_and_marked_and_the_order_kept(
    start, path
):
    said = run_until_killed(path, IN_SEND, "all committed")
    assert "sending 2 echo: 1" in said
    left = [row for row in table_rows(path, "id, state", "outbox") if row[1] != "sent"]
    first = left[0][0]
    adapter = MemoryAdapter()
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter]) as runtime:
            await runtime.ask("k", "4", source=Source("memory", chat_id="c"))
            await adapter.wait_sent(6 - first)
    assert adapter.texts == [f"echo: {n}" for n in range(first - 1, 5)]
    recovered = [row.outbox_id for row in adapter.sent if row.recovered]
    assert recovered == [id_ for id_, state in left if state == "sending"]
    assert 2 in recovered
    assert set(table_rows(path, "state", "outbox")) == {("sent",)}


async def test_one_blocked_lane_delays_no_other_lane(start):
    class Picky(MemoryAdapter):
        async def send(self, row):
            if row.body["chat_id"] == "stuck":
                await trio.sleep_forever()
            await super().send(row)

    adapter = Picky()
    config = Config(drain_timeout=0.01)
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter], config=config) as runtime:
            for chat in ("stuck", "free", "stuck", "free"):
                await runtime.ask(chat, "x", source=Source("memory", chat_id=chat))
            await adapter.wait_sent(2)
    assert [row.body["chat_id"] for row in adapter.sent] == ["free", "free"]


async def test_a_send_that_fails_is_retried_with_growing_delays(start, autojump_clock):
    times = []

    class Down(MemoryAdapter):
        async def send(self, row):
            times.append(trio.current_time())
            await super().send(row)

    adapter = Down(errors=[OSError("down") for _ in range(9)])
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=Source("memory", chat_id="c"))
        await runtime.ask("k", "two", source=Source("memory", chat_id="c"))
        await adapter.wait_sent(2)
    assert adapter.texts == ["echo: one", "echo: two"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[:9] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [row.recovered for row in adapter.sent] == [True, False]  # the platform may have it


@with_threads
async def test_replies_beyond_what_a_lane_holds_are_sent_in_order_too(start):
    """If an adapter is down for long, the rest waits in the store."""
    gate = trio.Event()

    class Slow(MemoryAdapter):
        async def send(self, row):
            await gate.wait()
            await super().send(row)

    adapter = Slow()
    with trio.fail_after(60):
        async with start(adapters=[adapter]) as runtime:
            for n in range(130):  # a lane holds 100
                await runtime.ask("k", str(n), source=Source("memory", chat_id="c"))
            gate.set()
            await adapter.wait_sent(130)
    assert adapter.texts == [f"echo: {n}" for n in range(130)]


async def test_very_many_replies_that_an_earlier_process_left_are_sent_in_order(start, path):
    """More than twice the capacity of a lane, so that they are fetched in several pages."""
    bodies = [{"platform": "memory", "text": str(n)} for n in range(350)]
    with SessionStore(path) as store:
        accepted = store.accept(Inbound("k", "e", "one"))
        store.commit_turn(
            TurnCommit(
                session_key="k",
                session_id=accepted.receipt.session_id,
                epoch=accepted.receipt.epoch,
                revision=0,
                inbox_ids=[accepted.receipt.inbox_id],
                outbox=[Outbound("lane", body) for body in bodies],
            )
        )
    adapter = MemoryAdapter()
    with trio.fail_after(60):
        async with start(adapters=[adapter]):
            await adapter.wait_sent(350)
    assert adapter.texts == [str(n) for n in range(350)]
    assert set(table_rows(path, "state", "outbox")) == {("sent",)}


async def test_a_reply_that_was_sent_before_the_end_is_not_sent_again_by_the_next_start(
    start, path
):
    adapter = GatedAdapter()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:

            async def open_gate():
                await wait_all_tasks_blocked()
                adapter.gate.set()

            async with start(adapters=[adapter]) as runtime:
                await runtime.ask("k", "one", source=Source("memory", chat_id="c"))
                await adapter.sending.wait()
                nursery.start_soon(open_gate)
        assert adapter.texts == ["echo: one"]
        again = MemoryAdapter()
        async with start(adapters=[again]) as runtime:
            await runtime.ask("k", "two", source=Source("memory", chat_id="c"))
            await again.wait_sent(1)
    assert again.texts == ["echo: two"]
    assert table_rows(path, "state", "outbox") == [("sent",), ("sent",)]


@with_threads
async def test_a_reply_that_is_not_sent_before_the_end_is_sent_by_the_next_start(start, path):
    adapter = GatedAdapter()
    with trio.fail_after(SECONDS):
        async with start(adapters=[adapter], config=Config(drain_timeout=0.01)) as runtime:
            await runtime.ask("k", "one", source=Source("memory", chat_id="c"))
            await adapter.sending.wait()
        assert adapter.sent == []
        again = MemoryAdapter()
        async with start(adapters=[again]) as runtime:
            await again.wait_sent(1)
    assert again.texts == ["echo: one"]
    assert again.sent[0].recovered
