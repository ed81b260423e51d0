"""After a crash, every accepted message gets exactly one committed turn."""

from __future__ import annotations

import pytest
import trio

from hermes import Config, Inbound
from hermes.errors import AlreadyAnswered
from hermes.store import SessionStore
from hermes.testing import (
    MemoryAdapter,
    ScriptedAgent,
    inspect,
)
from tests.support.conversations import GatedAgent, history, wait_ended
from tests.support.killed_programs import IN_TURN, run_until_killed, table_rows
from tests.support.processes import foreign
from tests.support.runtime import SECONDS, with_threads

ACCEPT = """
async def build(spec):
    say("building")
    await trio.sleep_forever()

async def main():
    async with open_runtime(path, build_agent=build) as runtime:
        receipt = await runtime.submit(Inbound("k", "e1", "one"))
        say("accepted", receipt.inbox_id)
        await trio.sleep_forever()

trio.run(main)
"""
COMMITTED = """
async def main():
    async with open_runtime(path, agent=echo) as runtime:
        reply = await runtime.ask("k", "one", event_id="e1")
        say("replied", reply.turn_id)
        await trio.sleep_forever()

trio.run(main)
"""


async def test_a_stop_that_a_crash_left_cancels_what_waited_before_it(start, path):
    with SessionStore(path) as store:
        receipts = [
            store.accept(Inbound("k", f"e{number}", text, command=text.startswith("/"))).receipt
            for number, text in enumerate(("one", "two", "/stop", "three"))
        ]
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent) as runtime:
            replies = [await runtime.wait(receipt) for receipt in receipts]
    assert [reply.status for reply in replies] == ["refused", "refused", "command", "complete"]
    assert [turn.text for turn in agent.turns] == ["three"]


async def test_a_fresh_message_waits_for_what_a_crash_left_behind_two_stops(start_proxy, path):
    with SessionStore(path) as store:
        for number, text in enumerate(("/stop", "/stop", "old")):
            store.accept(Inbound("k", f"e{number}", text, command=text.startswith("/")))
    agent, gate = ScriptedAgent(), trio.Event()

    async def slow(real, *args, **kwargs):  # so that the fresh message wakes the actor
        await gate.wait()
        return await real(*args, **kwargs)

    config = Config(merge_messages=False)
    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, config=config, waiting_keys=slow) as runtime:
            assert (await runtime.ask("k", "fresh")).text == "echo: fresh"
            gate.set()
    assert [turn.text for turn in agent.turns] == ["old", "fresh"]


@with_threads
@pytest.mark.parametrize(
    ("body", "last", "runs"),
    [(ACCEPT, "accepted 1", 1), (IN_TURN, "turn 1 one", 1), (COMMITTED, "replied 1", 0)],
    ids=["accepted", "in mid-turn", "committed"],
)
async def test_a_message_has_one_committed_turn_wherever_the_process_was_killed(
    start, path, body, last, runs
):
    run_until_killed(path, body, last)
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent) as runtime:
            with runtime.subscribe("k") as events:
                if runs:
                    await wait_ended(events, 1)
            assert await history(runtime) == [("user", "one"), ("assistant", "echo: one")]
            again = Inbound("k", "e1", "one", per_conversation=True)
            assert (await runtime.submit(again)).inbox_id == 1
            with pytest.raises(AlreadyAnswered):
                await runtime.ask("k", "one", event_id="e1")
            assert len(await runtime.conversation("k").history()) == 2
    assert [(turn.turn_id, turn.text) for turn in agent.turns] == [(1, "one")] * runs
    assert table_rows(path, "state") == [("done",)]


async def test_a_turn_that_runs_again_keeps_its_id_although_more_messages_have_arrived(start, path):
    run_until_killed(path, IN_TURN, "turn 1 one")
    with SessionStore(path) as other:
        for n in (2, 3):
            other.accept(Inbound("k", f"e{n}", f"text {n}"))
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent) as runtime:
            with runtime.subscribe("k") as events:
                await wait_ended(events, 1)
    [turn] = agent.turns
    assert turn.turn_id == 1
    assert [message.content for message in turn.input] == ["one", "text 2", "text 3"]


WAITING = """
async def main():
    async with open_runtime(path, agent=hang) as runtime:
        for n in range(1, 4):
            await runtime.submit(Inbound("k", f"e{n}", str(n)))
        say("three wait")
        await trio.sleep_forever()

trio.run(main)
"""


@with_threads
async def test_messages_that_waited_when_the_process_was_killed_are_answered_in_order(start, path):
    run_until_killed(path, WAITING, "three wait")
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent) as runtime:
            with runtime.subscribe("k") as events:
                await wait_ended(events, 1)
                assert (await runtime.ask("k", "4")).text == "echo: 4"
    said = [message.content for turn in agent.turns for message in turn.input]
    assert said == list("1234")


async def test_a_message_right_after_the_restart_waits_for_earlier_ones(start_proxy, path):
    run_until_killed(path, WAITING, "three wait")
    agent, gate = ScriptedAgent(), trio.Event()

    async def slow(real, *args, **kwargs):  # the look for what was left unfinished
        await gate.wait()
        return await real(*args, **kwargs)

    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, waiting_keys=slow) as runtime:
            await runtime.ask("k", "4")
            gate.set()
            await runtime.ask("k", "5")
    said = [message.content for turn in agent.turns for message in turn.input]
    assert said == list("12345")


SEVERAL = """
async def main():
    async with open_runtime(path, agent=hang) as runtime:
        for key in ("slow", "quick", "quicker"):
            await runtime.submit(Inbound(key, key, f"from {key}"))
        say("all wait")
        await trio.sleep_forever()

trio.run(main)
"""


@with_threads
async def test_one_slow_conversation_delays_no_other_after_a_restart(start, path):
    run_until_killed(path, SEVERAL, "all wait")
    slow = GatedAgent()

    def build(spec):
        return slow if spec.session_key == "slow" else ScriptedAgent()

    with trio.fail_after(SECONDS):
        async with start(build_agent=build) as runtime:
            await slow.began.wait()
            assert (await runtime.ask("new", "hello")).text == "echo: hello"
            for key in ("quick", "quicker"):
                assert (await runtime.ask(key, "again")).text.endswith("echo: again")
                assert ("user", f"from {key}") in await history(runtime, key)
            assert await runtime.conversation("slow").history(include_waiting=False) == []
            slow.gate.set()
            with runtime.subscribe("slow") as events:
                await wait_ended(events, 1)


async def test_work_that_was_started_three_times_is_parked_and_reported(start, path):
    """A message that kills the process must not do so forever."""
    body = IN_TURN.replace('runtime.ask("k", "one", ', 'runtime.ask("k", "one", source=chat("c"), ')
    for _ in range(3):
        run_until_killed(path, body, "turn 1 one")
    assert table_rows(path, "state, attempts") == [("open", 3)]
    adapter, agent = MemoryAdapter(), ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent, adapters=[adapter]) as runtime:
            await adapter.wait_sent(1)
            assert "3 times" in adapter.texts[0]
            assert adapter.sent[0].body["kind"] == "notice"
            assert adapter.sent[0].body["chat_id"] == "c"
            assert (await runtime.ask("k", "two")).text == "echo: two"
            assert await history(runtime) == [("user", "two"), ("assistant", "echo: two")]
    assert [turn.text for turn in agent.turns] == ["two"]
    assert table_rows(path, "state, body IS NOT NULL")[0] == ("parked", 1)


async def test_only_the_message_that_was_started_too_often_is_parked(start, path):
    run_until_killed(path, WAITING, "three wait")
    foreign(path, "UPDATE inbox SET attempts = 3 WHERE id = 2")
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent) as runtime:
            with runtime.subscribe("k") as events:
                await wait_ended(events, 2)
    assert [message.content for turn in agent.turns for message in turn.input] == ["1", "3"]
    assert table_rows(path, "state") == [("done",), ("parked",), ("done",)]


DEADLY = """
async def deadly(turn):
    if "2" in [message.content for message in turn.input]:
        say("dies")
        await trio.sleep_forever()
    return "alive"

async def main():
    async with open_runtime(path, agent=deadly) as runtime:
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("linger", [0.0, 0.01])
async def test_a_message_that_kills_the_process_does_not_take_those_that_waited_with_it(
    start, path, linger
):
    with SessionStore(path) as store:
        for n in range(1, 4):
            store.accept(Inbound("k", f"e{n}", str(n), linger=linger))
    for _ in range(3):
        run_until_killed(path, DEADLY, "dies")
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent) as runtime:
            await wait_ended_all(runtime)
    assert [turn.text for turn in agent.turns] == ["3"]
    assert table_rows(path, "state") == [("done",), ("parked",), ("done",)]


async def test_any_number_of_messages_left_by_an_earlier_process_is_answered_in_order(
    start, path, world
):
    """More than one page of the inbox."""
    count = 2500
    with SessionStore(path, clock=world.clock) as store:
        for number in range(count):
            store.accept(Inbound("k", f"e{number}", f"{number}"), max_queued=count)
    agent = ScriptedAgent()
    async with start(build_agent=lambda _: agent, config=Config(max_queued=count)) as runtime:
        await wait_ended_all(runtime)
        asked = [text for role, text in await history(runtime) if role == "user"]
        await runtime.ask("k", "and one more")
    assert asked == [f"{number}" for number in range(count)]
    with SessionStore(path, clock=world.clock) as store:
        assert not store.open_inbox()


async def wait_ended_all(runtime):
    with trio.fail_after(SECONDS):
        while await inspect(runtime).store.open_inbox("k"):
            await trio.lowlevel.checkpoint()
