"""A process that is killed, a block that is left in a hurry: what the next start makes of it."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import CompressionConfig, Config, Inbound, Source
from hermes.actors.runtime import running
from hermes.embed.trio_host import plain_description
from hermes.errors import AlreadyAnswered, Draining, HermesError, StoreBusy
from hermes.events import TextDelta, TurnEnded
from hermes.messages import Outbound, TurnCommit, TurnResult
from hermes.store import SessionStore, inline, open_store
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    MemoryAdapter,
    ScriptedAgent,
    forever,
    texts_of,
)
from tests.conftest import foreign

ROOT = Path(__file__).parents[2]
SECONDS = 30
inline_only = pytest.mark.parametrize("workers", ["inline"])


PROGRAM = """
import faulthandler, os, sys
import trio
from hermes import Config, Inbound, Source, TurnResult, open_runtime

path = sys.argv[1]
faulthandler.dump_traceback_later(25, exit=True)  # where it hangs, if it hangs

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

async def hang(turn):
    say("turn", turn.turn_id, turn.text)
    await trio.sleep_forever()

async def echo(turn):
    return f"echo: {turn.text}"

class Stuck:
    platform = "memory"
    def __init__(self, good=0):
        self.left = good
    async def send(self, row):
        say("sending", row.outbox_id, row.body["text"])
        self.left -= 1
        if self.left < 0:
            await trio.sleep_forever()

def chat(name):
    return Source("memory", chat_id=name)

"""


def killed(path, body, last):
    """Run the program until it says so, and kill it there; returns all it said."""
    said = []
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM + body, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        for line in child.stdout:
            said.append(line.strip())
            if said[-1] == last:
                break
        else:
            pytest.fail(f"it never said {last!r}: {child.stderr.read()}")
        child.kill()
    assert child.returncode == -signal.SIGKILL
    return said


def rows(path, columns, table="inbox"):
    return [tuple(row) for row in foreign(path, f"SELECT {columns} FROM {table} ORDER BY id")]


async def history(runtime, key="k"):
    return texts_of(await runtime.history(key))


async def wait_ended(events, number):
    """Wait until so many turns have ended."""
    async for envelope in events:
        number -= isinstance(envelope.event, TurnEnded)
        if not number:
            return


async def outcome(ask):
    """What becomes of an asker: the reply or the error."""
    try:
        return await ask()
    except HermesError as error:
        return error


class Held(ScriptedAgent):
    """An agent that tells when a turn begins, and holds it until the gate is opened."""

    def __init__(self):
        super().__init__()
        self.gate = trio.Event()
        self.began = trio.Event()

    async def run(self, turn):
        self.turns.append(turn)
        self.began.set()
        turn.emit(TextDelta("half"))
        await self.gate.wait()
        return TurnResult(text=f"echo: {turn.text}")


# Killed


ACCEPT = """
async def build(spec):
    say("building")
    await trio.sleep_forever()

async def main():
    async with open_runtime(path, agent=build) as runtime:
        receipt = await runtime.submit(Inbound("k", "e1", "one"))
        say("accepted", receipt.inbox_id)
        await trio.sleep_forever()

trio.run(main)
"""
IN_TURN = """
async def main():
    async with open_runtime(path, agent=hang) as runtime:
        await runtime.ask("k", "one", event_id="e1")

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


@pytest.mark.parametrize(
    ("body", "last", "runs"),
    [(ACCEPT, "accepted 1", 1), (IN_TURN, "turn 1 one", 1), (COMMITTED, "replied 1", 0)],
    ids=["accepted", "in mid-turn", "committed"],
)
async def test_a_message_has_one_committed_turn_wherever_the_process_was_killed(
    start, path, body, last, runs
):
    killed(path, body, last)
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=lambda _: agent) as runtime:
            with runtime.events("k") as events:
                if runs:
                    await wait_ended(events, 1)
            assert await history(runtime) == [("user", "one"), ("assistant", "echo: one")]
            assert (await runtime.submit(Inbound("k", "e1", "one"))).inbox_id == 1
            with pytest.raises(AlreadyAnswered):
                await runtime.ask("k", "one", event_id="e1")
            assert len(await runtime.history("k")) == 2
    assert [(turn.turn_id, turn.text) for turn in agent.turns] == [(1, "one")] * runs
    assert rows(path, "state") == [("done",)]


async def test_a_turn_that_runs_again_has_its_id_although_more_has_come_meanwhile(start, path):
    killed(path, IN_TURN, "turn 1 one")
    with SessionStore(path) as other:
        for n in (2, 3):
            other.accept(Inbound("k", f"e{n}", f"text {n}"))
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=lambda _: agent) as runtime:
            with runtime.events("k") as events:
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


async def test_what_waited_when_the_process_was_killed_is_answered_in_order(start, path):
    killed(path, WAITING, "three wait")
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=lambda _: agent) as runtime:
            with runtime.events("k") as events:
                await wait_ended(events, 1)
                assert (await runtime.ask("k", "4")).text == "echo: 4"
    said = [message.content for turn in agent.turns for message in turn.input]
    assert said == list("1234")


async def test_a_message_that_comes_at_once_after_the_restart_waits_for_those_before_it(
    start_proxy, path
):
    killed(path, WAITING, "three wait")
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


async def test_one_slow_conversation_holds_up_no_other_after_a_restart(start, path):
    killed(path, SEVERAL, "all wait")
    slow = Held()

    def build(spec):
        return slow if spec.session_key == "slow" else ScriptedAgent()

    with trio.fail_after(SECONDS):
        async with start(agent=build) as runtime:
            await slow.began.wait()
            assert (await runtime.ask("new", "hello")).text == "echo: hello"
            for key in ("quick", "quicker"):
                assert (await runtime.ask(key, "again")).text.endswith("echo: again")
                assert ("user", f"from {key}") in await history(runtime, key)
            assert await runtime.history("slow") == []
            slow.gate.set()
            with runtime.events("slow") as events:
                await wait_ended(events, 1)


async def test_work_that_was_begun_three_times_is_parked_and_reported(start, path):
    """The message that kills the process must not kill it for ever."""
    body = IN_TURN.replace('runtime.ask("k", "one", ', 'runtime.ask("k", "one", source=chat("c"), ')
    for _ in range(3):
        killed(path, body, "turn 1 one")
    assert rows(path, "state, attempts") == [("open", 3)]
    adapter, agent = MemoryAdapter(), ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=lambda _: agent, adapters=[adapter]) as runtime:
            await adapter.wait_sent(1)
            assert "3 times" in adapter.texts[0]
            assert adapter.sent[0].body["kind"] == "notice"
            assert adapter.sent[0].body["chat_id"] == "c"
            assert (await runtime.ask("k", "two")).text == "echo: two"
            assert await history(runtime) == [("user", "two"), ("assistant", "echo: two")]
    assert [turn.text for turn in agent.turns] == ["two"]
    assert rows(path, "state, body IS NOT NULL")[0] == ("parked", 1)


async def test_only_the_message_that_was_begun_too_often_is_parked(start, path):
    killed(path, WAITING, "three wait")
    foreign(path, "UPDATE inbox SET attempts = 3 WHERE id = 2")
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=lambda _: agent) as runtime:
            with runtime.events("k") as events:
                await wait_ended(events, 2)
    assert [message.content for turn in agent.turns for message in turn.input] == ["1", "3"]
    assert rows(path, "state") == [("done",), ("parked",), ("done",)]


# Replies


IN_SEND = """
async def main():
    async with open_runtime(path, agent=echo, adapters=[Stuck(good=1)]) as runtime:
        for n in range(4):
            await runtime.ask("k", str(n), source=chat("c"))
        say("all committed")
        await trio.sleep_forever()

trio.run(main)
"""


async def test_a_reply_whose_send_was_in_flight_is_sent_again_and_marked_and_the_order_kept(
    start, path
):
    said = killed(path, IN_SEND, "all committed")
    assert "sending 2 echo: 1" in said
    left = [row for row in rows(path, "id, state", "outbox") if row[1] != "sent"]
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
    assert set(rows(path, "state", "outbox")) == {("sent",)}


async def test_one_lane_that_stands_still_holds_up_no_other_lane(start):
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


@inline_only
async def test_a_send_that_fails_is_tried_again_after_longer_and_longer_pauses(
    start, autojump_clock
):
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


async def test_replies_beyond_what_a_lane_holds_are_sent_in_order_too(start):
    """An adapter that is down for long: the rest waits in the store."""
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
    """More than twice of what a lane holds, so that it is fetched in several pieces."""
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
    assert set(rows(path, "state", "outbox")) == {("sent",)}


class Leaving(MemoryAdapter):
    """A platform that takes its time, until the runtime is left."""

    def __init__(self):
        super().__init__()
        self.sending = trio.Event()
        self.gate = trio.Event()

    async def send(self, row):
        self.sending.set()
        await self.gate.wait()
        await super().send(row)


@inline_only
async def test_a_reply_that_was_sent_before_the_end_is_not_sent_again_by_the_next_start(
    start, path
):
    adapter = Leaving()
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
    assert rows(path, "state", "outbox") == [("sent",), ("sent",)]


async def test_a_reply_that_is_not_sent_before_the_end_is_sent_by_the_next_start(start, path):
    adapter = Leaving()
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


# Drained


async def test_a_drain_finishes_what_runs_and_what_waits_and_takes_nothing_new(start):
    agent, outcomes = Held(), {}
    with trio.fail_after(SECONDS):
        async with start(agent=lambda _: agent) as runtime, trio.open_nursery() as nursery:

            async def note(name, ask):
                outcomes[name] = await outcome(ask)

            nursery.start_soon(note, "first", lambda: runtime.ask("k", "one"))
            await agent.began.wait()
            await runtime.submit(Inbound("k", "e", "two"))
            nursery.start_soon(note, "drain", runtime.drain)
            while not runtime.statistics().draining:
                await trio.lowlevel.checkpoint()
            for refused in (
                lambda: runtime.ask("k", "three"),
                lambda: runtime.ask("new", "three"),
                lambda: runtime.submit(Inbound("k", "f", "three")),
                lambda: runtime.steer("k", "three"),
                lambda: runtime.new_session("k"),
            ):
                with pytest.raises(Draining):
                    await refused()
            agent.gate.set()
        async with start() as runtime:
            said = [text for role, text in await history(runtime) if role == "user"]
            assert said == ["one", "two"]
    assert outcomes["first"].text == "echo: one"
    assert outcomes["drain"] is None
    assert [turn.text for turn in agent.turns] == ["one", "two"]
    assert agent.closed == 1


async def test_a_host_may_drain_and_go_on_with_its_own_work(start):
    with trio.fail_after(SECONDS):
        async with start() as runtime:
            await runtime.ask("k", "one")
            await runtime.drain()
            await trio.lowlevel.checkpoint()
            with pytest.raises(Draining):
                await runtime.ask("k", "two")
            assert len(await runtime.history("k")) == 2
            await runtime.drain()
            done = True
    assert done


@pytest.mark.parametrize("way", ["leaving", "drain"])
async def test_a_drain_that_takes_too_long_interrupts_and_leaves_the_messages_for_the_next_start(
    start, path, way
):
    agent, outcomes = Held(), []
    with trio.fail_after(SECONDS):
        async with (
            trio.open_nursery() as nursery,
            start(agent=lambda _: agent, config=Config(drain_timeout=0.01)) as runtime,
        ):

            async def ask():
                outcomes.append(await outcome(lambda: runtime.ask("k", "one")))

            nursery.start_soon(ask)
            await agent.began.wait()
            await runtime.submit(Inbound("k", "e", "two"))
            if way == "drain":
                await runtime.drain(0)
        assert [state for (state,) in rows(path, "state")] == ["open", "open"]
        assert isinstance(outcomes[0], HermesError)
        again = ScriptedAgent()
        async with start(agent=lambda _: again) as runtime:
            with runtime.events("k") as events:
                await wait_ended(events, 1)
            said = [("user", "one"), ("user", "two"), ("assistant", "echo: one\n\ntwo")]
            assert await history(runtime) == said
    assert [turn.turn_id for turn in [*agent.turns, *again.turns]] == [1, 1]
    assert agent.closed == 1


@pytest.mark.parametrize("how", ["plain", "group"])
async def test_an_agent_that_raises_when_the_runtime_is_left_leaves_its_message_for_the_next_start(
    start, path, how
):
    async def tool():
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in cleanup")

    async def cross(turn):
        began.set()
        if how == "plain":
            await tool()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tool)
            await trio.sleep_forever()

    began = trio.Event()
    config = Config(drain_timeout=0)
    with trio.fail_after(SECONDS):
        async with start(agent=lambda _: ScriptedAgent([[cross]]), config=config) as runtime:
            await runtime.submit(Inbound("k", "e", "one"))
            await began.wait()
            for _ in range(5):
                await trio.lowlevel.checkpoint()
    assert rows(path, "state") == [("open",)]


async def test_an_adapter_whose_helper_raises_when_the_runtime_is_left_harms_nobody(start, path):
    class Cross(MemoryAdapter):
        async def send(self, row):
            async def helper():
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError("in cleanup")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(helper)
                sending.set()

    sending, again = trio.Event(), MemoryAdapter()
    with trio.fail_after(SECONDS):
        async with start(adapters=[Cross()], config=Config(drain_timeout=0)) as runtime:
            await runtime.ask("k", "one", source=Source("memory", chat_id="c"))
            await sending.wait()
            for _ in range(5):
                await trio.lowlevel.checkpoint()
        async with start(adapters=[again]):
            await again.wait_sent(1)
    assert again.sent[0].recovered


@inline_only
async def test_a_drain_does_not_fail_because_much_waits(start):
    agent = Held()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, start(agent=lambda _: agent) as runtime:

            async def open_gate():
                await wait_all_tasks_blocked()
                agent.gate.set()

            await runtime.submit(Inbound("k", "e", "first"))
            await agent.began.wait()
            for n in range(80):
                await runtime.submit(Inbound("k", f"e{n}", str(n)))
            nursery.start_soon(open_gate)
    assert sum(len(turn.input) for turn in agent.turns) == 81


async def test_a_drain_does_not_fail_because_an_actor_does(start_proxy, path):
    async with open_store(path, open_worker=inline()) as store:
        async with running(
            store, build=CountingBuilder(), describe=plain_description, config=Config()
        ) as runtime:
            await runtime.ask("k", "before")
    gate, entered = trio.Event(), trio.Event()

    async def fail(real, *args):
        entered.set()
        await gate.wait()
        raise RuntimeError("my own")

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:

            async def open_gate():
                await wait_all_tasks_blocked()
                gate.set()

            async with start_proxy(load=fail) as runtime:
                await runtime.submit(Inbound("k", "e", "one"))
                await entered.wait()
                nursery.start_soon(open_gate)
    assert rows(path, "state")[-1] == ("open",)


async def test_a_drain_waits_for_a_command_that_is_answered_beside(start_proxy):
    gate, entered, outcomes = trio.Event(), trio.Event(), []

    async def slow(real, *args):
        entered.set()
        await gate.wait()
        return await real(*args)

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, start_proxy(get_usage=slow) as runtime:

            async def ask():
                outcomes.append(await outcome(lambda: runtime.ask("k", "/usage")))

            async def open_gate():
                await wait_all_tasks_blocked()
                gate.set()

            nursery.start_soon(ask)
            await entered.wait()
            nursery.start_soon(open_gate)
    assert outcomes[0].status == "command"


@inline_only
async def test_a_drain_waits_for_a_compression_that_runs(start, autojump_clock):
    config = Config(compression=CompressionConfig(window=2000, max_output=100, share=0.99))
    outcomes = []
    async with (
        trio.open_nursery() as nursery,
        start(
            agent=lambda _: ScriptedAgent(["so " * 200] * 4),
            config=config,
            compressor=DeterministicCompressor(delay=10),
        ) as runtime,
    ):
        for n in range(4):
            await runtime.ask("k", f"text {n} " * 20)
        before = (await runtime.history("k"))[0].id

        async def compress():
            outcomes.append(await outcome(lambda: runtime.compress("k")))

        nursery.start_soon(compress)
        await trio.sleep(1)
    assert not isinstance(outcomes[0], HermesError)
    async with start() as runtime:
        assert (await runtime.history("k"))[0].id != before


@inline_only
async def test_a_runtime_on_a_full_disk_can_be_left(start, autojump_clock):
    full = False
    began = 0.0

    def faults():
        return "full" if full and trio.current_time() < began + 1000 else None

    async with start(open_worker=inline(faults)) as runtime:
        await runtime.ask("k", "one")
        full = True
        began = trio.current_time()
    assert trio.current_time() - began < 100


# The host's block


class Mine(Exception):
    """The host's own error."""


@pytest.mark.parametrize(
    "error",
    [Mine("mine"), ExceptionGroup("mine", [Mine("a"), Mine("b")]), SystemExit(3)],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_block_comes_out_as_itself_and_the_message_is_answered_later(
    start, path, error
):
    agent = Held()
    with trio.fail_after(SECONDS):
        with pytest.raises(type(error)) as raised:
            async with start(agent=lambda _: agent) as runtime:
                await runtime.submit(Inbound("k", "e", "one"))
                await agent.began.wait()
                raise error
        assert raised.value is error
        assert agent.closed == 1
        assert rows(path, "state, attempts") == [("open", 1)]
        again = ScriptedAgent()
        async with start(agent=lambda _: again) as runtime:
            with runtime.events("k") as events:
                await wait_ended(events, 1)
            assert await history(runtime) == [("user", "one"), ("assistant", "echo: one")]
    assert [turn.turn_id for turn in [*agent.turns, *again.turns]] == [1, 1]


async def test_a_cancelled_block_ends_at_once_and_the_message_is_answered_later(start, path):
    agent = Held()
    with trio.fail_after(SECONDS):
        with trio.CancelScope() as scope:
            async with start(agent=lambda _: agent) as runtime:
                await runtime.submit(Inbound("k", "e", "one"))
                await agent.began.wait()
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert agent.closed == 1
        async with start() as runtime:
            with runtime.events("k") as events:
                await wait_ended(events, 1)
            assert await history(runtime) == [("user", "one"), ("assistant", "echo: one")]


class Countdown(trio.abc.Instrument):
    """Cancels a scope after so many steps of any task."""

    def __init__(self, scope, steps):
        self.scope, self.steps = scope, steps

    def before_task_step(self, task):
        self.steps -= 1
        if self.steps == 0:
            self.scope.cancel()


@inline_only
async def test_whenever_the_block_is_cancelled_everything_is_given_back_at_once(
    start, path, autojump_clock
):
    """At every step from the opening to the end; each accepted message is answered once."""
    cancelled, slow = 0, []
    for steps in range(1, 120, 2):
        began = trio.current_time()
        with trio.CancelScope() as scope:
            countdown = Countdown(scope, steps)
            trio.lowlevel.add_instrument(countdown)
            try:
                async with start(config=Config(max_attempts=100)) as runtime:
                    await runtime.ask("k", f"text {steps}", event_id=f"e{steps}")
            finally:
                trio.lowlevel.remove_instrument(countdown)
        cancelled += scope.cancelled_caught
        if trio.current_time() - began > 1:
            slow.append(steps)
    async with start(config=Config(max_attempts=100)) as runtime:
        await wait_all_tasks_blocked()
        asked = [text for role, text in await history(runtime) if role == "user"]
    assert slow == []
    assert 10 < cancelled < 60
    assert len(asked) == len(set(asked)) == len(rows(path, "id"))
    assert set(rows(path, "state")) == {("done",)}


async def test_an_error_of_the_block_comes_out_although_an_actor_fails_with_it(start_proxy, path):
    entered = trio.Event()

    async def fail(real, *args, **kwargs):
        try:
            entered.set()
            await trio.sleep_forever()
        finally:
            raise RuntimeError("not mine")

    error = Mine("mine")
    with trio.fail_after(SECONDS), pytest.raises(Mine) as raised:
        async with start_proxy(lambda _: ScriptedAgent([forever()]), commit_turn=fail) as runtime:
            await runtime.submit(Inbound("k", "e", "one"))
            await wait_all_tasks_blocked()
            raise error
    assert raised.value is error


@inline_only
async def test_a_store_that_is_busy_at_the_start_is_reported_as_such(start, path):
    """`recover_outbox` is the first thing that a runtime writes."""
    SessionStore(path).close()
    commits = 0

    def faults():
        nonlocal commits
        commits += 1
        return "busy" if commits == 1 else None

    with trio.fail_after(SECONDS), pytest.raises(StoreBusy):
        async with start(open_worker=inline(faults)):
            pass


def test_ctrl_c_in_mid_turn_ends_the_process_and_the_message_stays(path):
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM + IN_TURN, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "turn 1 one\n"
        child.send_signal(signal.SIGINT)
        _, complaint = child.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in complaint
    assert "TrioInternalError" not in complaint
    assert child.returncode in {-signal.SIGINT, 1}
    assert rows(path, "state") == [("open",)]


@inline_only
async def test_however_much_an_earlier_process_left_is_answered_in_order(start, path, world):
    """More than one page of the inbox, which was once all that an actor looked at."""
    count = 2500
    with SessionStore(path, clock=world.clock) as store:
        for number in range(count):
            store.accept(Inbound("k", f"e{number}", f"{number}"), max_queued=count)
    agent = ScriptedAgent()
    async with start(agent=lambda _: agent, config=Config(max_queued=count)) as runtime:
        await wait_ended_all(runtime)
        rows = [text for role, text in await history(runtime) if role == "user"]
        await runtime.ask("k", "and one more")
    assert rows == [f"{number}" for number in range(count)]
    with SessionStore(path, clock=world.clock) as store:
        assert not store.open_inbox()


async def wait_ended_all(runtime):
    with trio.fail_after(SECONDS):
        while await runtime._context.store.open_inbox("k"):
            await trio.lowlevel.checkpoint()
