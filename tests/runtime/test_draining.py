"""The end of a runtime: draining, errors and cancellation of the block, Ctrl-C."""

from __future__ import annotations

import contextlib
import signal

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import CompressionConfig, Config, Inbound, Source
from hermes.actors.runtime import open_actors
from hermes.embed.agent import default_spec
from hermes.errors import ActorStopped, Draining, HermesError, StoreBusy
from hermes.messages import Receipt
from hermes.store import SessionStore, open_store
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    MemoryAdapter,
    ScriptedAgent,
    forever,
    inline,
    inspect,
)
from tests.support.conversations import GatedAgent, history, reply_or_error, wait_ended
from tests.support.held_turns import held_runtime
from tests.support.killed_programs import IN_TURN, start_program, table_rows
from tests.support.runtime import SECONDS, with_threads


@with_threads
async def test_a_drain_finishes_running_and_waiting_work_and_accepts_nothing_new(start):
    agent, outcomes = GatedAgent(), {}
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent) as runtime, trio.open_nursery() as nursery:

            async def note(name, ask):
                outcomes[name] = await reply_or_error(ask)

            nursery.start_soon(note, "first", lambda: runtime.ask("k", "one"))
            await agent.began.wait()
            await runtime.submit(Inbound("k", "e", "two"))
            nursery.start_soon(note, "drain", runtime.drain)
            while not inspect(runtime).supervisor.draining:
                await trio.lowlevel.checkpoint()
            for refused in (
                lambda: runtime.ask("k", "three"),
                lambda: runtime.ask("new", "three"),
                lambda: runtime.submit(Inbound("k", "f", "three")),
                lambda: runtime.conversation("k").steer("three"),
                lambda: runtime.conversation("k").new(),
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


async def test_a_host_may_drain_and_continue_its_own_work(start):
    with trio.fail_after(SECONDS):
        async with start() as runtime:
            await runtime.ask("k", "one")
            await runtime.drain()
            await trio.lowlevel.checkpoint()
            with pytest.raises(ActorStopped):
                await runtime.ask("k", "two")
            assert len(await runtime.conversation("k").history()) == 2
            await runtime.drain()
            done = True
    assert done


@with_threads
@pytest.mark.parametrize("way", ["leaving", "drain"])
async def test_a_drain_that_takes_too_long_interrupts_and_leaves_the_messages_for_the_next_start(
    start, path, way
):
    agent, outcomes = GatedAgent(), []
    with trio.fail_after(SECONDS):
        async with (
            trio.open_nursery() as nursery,
            start(build_agent=lambda _: agent, config=Config(drain_timeout=0.01)) as runtime,
        ):

            async def ask():
                outcomes.append(await reply_or_error(lambda: runtime.ask("k", "one")))

            nursery.start_soon(ask)
            await agent.began.wait()
            await runtime.submit(Inbound("k", "e", "two"))
            if way == "drain":
                await runtime.drain(0)
        assert [state for (state,) in table_rows(path, "state")] == ["open", "open"]
        assert isinstance(outcomes[0], HermesError)
        again = ScriptedAgent()
        async with start(build_agent=lambda _: again) as runtime:
            with runtime.subscribe("k") as events:
                await wait_ended(events, 1)
            said = [("user", "one"), ("user", "two"), ("assistant", "echo: one\n\ntwo")]
            assert await history(runtime) == said
    assert [turn.turn_id for turn in [*agent.turns, *again.turns]] == [1, 1]
    assert agent.closed == 1


@with_threads
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
        async with start(build_agent=lambda _: ScriptedAgent([[cross]]), config=config) as runtime:
            await runtime.submit(Inbound("k", "e", "one"))
            await began.wait()
            for _ in range(5):
                await trio.lowlevel.checkpoint()
    assert table_rows(path, "state") == [("open",)]


@with_threads
async def test_an_adapter_whose_child_task_raises_at_the_end_affects_nothing_else(start, path):
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


async def test_a_drain_does_not_fail_because_of_many_waiting_messages(start):
    agent = GatedAgent()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, start(build_agent=lambda _: agent) as runtime:

            async def open_gate():
                await wait_all_tasks_blocked()
                agent.gate.set()

            await runtime.submit(Inbound("k", "e", "first"))
            await agent.began.wait()
            for n in range(80):
                await runtime.submit(Inbound("k", f"e{n}", str(n)))
            nursery.start_soon(open_gate)
    assert sum(len(turn.input) for turn in agent.turns) == 81


async def test_a_drain_does_not_fail_if_an_actor_fails(start_proxy, path):
    async with open_store(path, open_worker=inline()) as store:
        async with open_actors(
            store, build=CountingBuilder(), agent_spec=default_spec, config=Config()
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
    assert table_rows(path, "state")[-1] == ("open",)


async def test_a_drain_waits_for_a_command_that_runs_beside_a_turn(start_proxy):
    gate, entered, outcomes = trio.Event(), trio.Event(), []

    async def slow(real, *args):
        entered.set()
        await gate.wait()
        return await real(*args)

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery, start_proxy(get_usage=slow) as runtime:

            async def ask():
                outcomes.append(await reply_or_error(lambda: runtime.ask("k", "/usage")))

            async def open_gate():
                await wait_all_tasks_blocked()
                gate.set()

            nursery.start_soon(ask)
            await entered.wait()
            nursery.start_soon(open_gate)
    assert outcomes[0].status == "command"


async def test_a_drain_waits_for_a_running_compression(start, autojump_clock):
    config = Config(compression=CompressionConfig(window=2000, max_output=100, share=0.99))
    outcomes = []
    async with (
        trio.open_nursery() as nursery,
        start(
            build_agent=lambda _: ScriptedAgent(["so " * 200] * 4),
            config=config,
            compressor=DeterministicCompressor(delay=10),
        ) as runtime,
    ):
        for n in range(4):
            await runtime.ask("k", f"text {n} " * 20)
        before = (await runtime.conversation("k").history())[0].id

        async def compress():
            outcomes.append(await reply_or_error(lambda: runtime.conversation("k").compress()))

        nursery.start_soon(compress)
        await trio.sleep(1)
    assert not isinstance(outcomes[0], HermesError)
    async with start() as runtime:
        assert (await runtime.conversation("k").history())[0].id != before


@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_a_runtime_on_a_full_disk_can_be_closed(start, autojump_clock):
    full = False
    began = 0.0

    def faults():
        return "full" if full and trio.current_time() < began + 1000 else None

    async with start(open_worker=inline(faults)) as runtime:
        await runtime.ask("k", "one")
        full = True
        began = trio.current_time()
    assert trio.current_time() - began < 100


# The block of the host


@pytest.mark.parametrize("seconds", [float("nan"), -1, "x"])
async def test_a_drain_with_an_invalid_time_changes_nothing(start, seconds):
    async with start() as runtime:
        with pytest.raises(ValueError, match="a drain takes a number of seconds"):
            await runtime.drain(seconds)
        assert (await runtime.ask("k", "hello")).text == "echo: hello"


class Mine(Exception):
    """The host's own error."""


@with_threads
@pytest.mark.parametrize(
    "error",
    [Mine("mine"), ExceptionGroup("mine", [Mine("a"), Mine("b")]), SystemExit(3)],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_block_propagates_unchanged_and_the_message_is_answered_later(
    start, path, error
):
    agent = GatedAgent()
    with trio.fail_after(SECONDS):
        with pytest.raises(type(error)) as raised:
            async with start(build_agent=lambda _: agent) as runtime:
                await runtime.submit(Inbound("k", "e", "one"))
                await agent.began.wait()
                raise error
        assert raised.value is error
        assert agent.closed == 1
        assert table_rows(path, "state, attempts") == [("open", 0)]
        again = ScriptedAgent()
        async with start(build_agent=lambda _: again) as runtime:
            with runtime.subscribe("k") as events:
                await wait_ended(events, 1)
            assert await history(runtime) == [("user", "one"), ("assistant", "echo: one")]
    assert [turn.turn_id for turn in [*agent.turns, *again.turns]] == [1, 1]


@with_threads
async def test_a_cancelled_block_ends_at_once_and_the_message_is_answered_later(start, path):
    agent = GatedAgent()
    with trio.fail_after(SECONDS):
        with trio.CancelScope() as scope:
            async with start(build_agent=lambda _: agent) as runtime:
                await runtime.submit(Inbound("k", "e", "one"))
                await agent.began.wait()
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert agent.closed == 1
        async with start() as runtime:
            with runtime.subscribe("k") as events:
                await wait_ended(events, 1)
            assert await history(runtime) == [("user", "one"), ("assistant", "echo: one")]


class Countdown(trio.abc.Instrument):
    """Cancels a scope after a number of task steps."""

    def __init__(self, scope, steps):
        self.scope, self.steps = scope, steps

    def before_task_step(self, task):
        self.steps -= 1
        if self.steps == 0:
            self.scope.cancel()


async def test_whenever_the_block_is_cancelled_everything_is_released_at_once(
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
    assert len(asked) == len(set(asked)) == len(table_rows(path, "id"))
    assert set(table_rows(path, "state")) == {("done",)}


async def test_an_error_of_the_block_propagates_although_an_actor_fails_with_it(start_proxy, path):
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


@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_a_store_that_is_busy_at_the_start_is_reported_as_such(start, path):
    """Its first transactions release leases and recover the outbox."""
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
    with start_program(path, IN_TURN) as child:
        assert child.stdout.readline() == "turn 1 one\n"
        child.send_signal(signal.SIGINT)
        _, complaint = child.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in complaint
    assert "TrioInternalError" not in complaint
    assert child.returncode in {-signal.SIGINT, 1}
    assert table_rows(path, "state") == [("open",)]


# Those who wait for a drain, and those who wait for a reply


@with_threads
async def test_all_who_wait_for_a_reply_get_one_or_an_error(start):
    async with held_runtime(start) as here:
        asked = await here.send("one")
        await here.agent.wait_started()
        streamed, failed = trio.Event(), []

        async def stream():
            with pytest.raises(ActorStopped):
                async with here.runtime.stream("other", "two") as stream:
                    streamed.set()
                    async for _ in stream:
                        pass
            failed.append("stream")

        here.nursery.start_soon(stream)
        await streamed.wait()
        with here.runtime.subscribe() as events:
            await here.runtime.drain(0)
            await here.settle()
            with pytest.raises(ActorStopped):
                await asked.wait()
            assert failed == ["stream"]
            async for _ in events:  # it has ended
                pass
        assert inspect(here.runtime).waiting_callers == 0


@with_threads
async def test_two_drains_at_once_are_one(start):
    async with held_runtime(start) as here:
        reply = await here.send("one")
        await here.agent.wait_started()
        ended = []

        async def drain():
            await here.runtime.drain()
            ended.append(reply.done)

        for _ in range(2):
            here.nursery.start_soon(drain)
        await here.settle()
        assert ended == []
        here.agent.release(0)
        assert (await reply.wait()).status == "complete"
        await here.runtime.drain()
        assert ended == [True, True]


class Drains:
    """Drains in tasks of their own, which a test can cancel one by one."""

    def __init__(self, here):
        self.here, self.scopes, self.ended = here, [], []

    async def start(self, *seconds):
        number = len(self.scopes)
        self.scopes.append(trio.CancelScope())
        self.here.nursery.start_soon(self._drain, number, seconds)
        await wait_all_tasks_blocked()

    async def _drain(self, number, seconds):
        with self.scopes[number]:
            await self.here.runtime.drain(*seconds)
            self.ended.append(number)

    async def cancel(self, *numbers):
        for number in numbers:
            self.scopes[number].cancel()
        await wait_all_tasks_blocked()


@pytest.mark.parametrize("cancelled", [(0,), (1,), (0, 1), (1, 0)])
async def test_a_drain_goes_on_while_anybody_waits_for_it(start, cancelled):
    async with held_runtime(start) as here:
        reply = await here.send("one")
        await here.agent.wait_started()
        drains = Drains(here)
        for _ in range(3):
            await drains.start()
        for number in cancelled:
            await drains.cancel(number)
        assert not reply.done
        here.agent.release(0)
        assert (await reply.wait()).text == "answer 0"
        await here.runtime.wait_stopped()
        await wait_all_tasks_blocked()
        assert sorted(drains.ended) == sorted({0, 1, 2} - {*cancelled})


@pytest.mark.parametrize("together", [True, False])
async def test_a_drain_stops_turns_when_the_last_one_who_waits_is_cancelled(start, together):
    async with held_runtime(start) as here:
        reply = await here.send("one")
        await here.agent.wait_started()
        drains = Drains(here)
        await drains.start()
        await drains.start()
        if together:
            await drains.cancel(0, 1)
        else:
            await drains.cancel(0)
            await drains.cancel(1)
        assert here.runtime.admin.running_turns() == {}
        assert (await here.inbox())[0][1:] == ("open", 0)
        with pytest.raises(Draining):
            await here.runtime.ask("k", "two")
        assert not reply.done
        await here.runtime.drain()
        with pytest.raises(ActorStopped):
            await reply.wait()


async def test_of_several_drains_the_time_of_the_first_counts(start, autojump_clock):
    async with held_runtime(start) as here:
        reply = await here.send("one")
        await here.agent.wait_started()
        began, drains = trio.current_time(), Drains(here)
        await drains.start(20)
        await drains.start(0)
        await drains.cancel(0)
        with pytest.raises(ActorStopped):
            await reply.wait()
        assert trio.current_time() - began == pytest.approx(20, abs=1)


async def test_a_drain_after_a_cancelled_one_has_its_own_time(start, autojump_clock):
    class Slow(MemoryAdapter):
        async def send(self, row):
            await trio.sleep(50)
            await super().send(row)

    adapter = Slow()
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "one", source=Source("memory", chat_id="c"))
        with trio.move_on_after(1):
            await runtime.drain(2)
        await trio.sleep(10)
        await runtime.drain(100)
        assert len(adapter.sent) == 1


@pytest.mark.parametrize("how", ["raises", "is cancelled", "is cancelled while it drains"])
async def test_a_failing_block_ends_the_wait_of_other_drains(start, recorder, autojump_clock, how):
    agent = GatedAgent()

    async def drain(runtime, task_status):
        task_status.started()
        await runtime.drain(1000)

    hooks = {"on_session_finalize": [recorder.named("finalize")]}
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        with trio.CancelScope() as scope, contextlib.suppress(Mine):
            async with start(build_agent=lambda _: agent, hooks=hooks) as runtime:
                await runtime.submit(Inbound("k", "e", "one"))
                await agent.began.wait()
                await nursery.start(drain, runtime)
                await wait_all_tasks_blocked()
                if how == "raises":
                    raise Mine
                if how == "is cancelled":
                    scope.cancel()
                    await trio.sleep_forever()
                scope.deadline = trio.current_time() + 5
        assert trio.current_time() - began < 20
    assert [name for name, *_ in recorder.calls] == ["finalize"]


class LateCommits:
    """Replaced verbs: the first acceptance begins only when the runtime has been drained."""

    def __init__(self):
        self.entered, self.release = trio.Event(), trio.Event()

    async def __call__(self, real, *args, **kwargs):
        self.entered.set()
        await self.release.wait()
        return await real(*args, **kwargs)


@pytest.mark.parametrize("way", ["submit", "ask", "stream"])
async def test_a_message_that_is_accepted_while_the_runtime_ends_is_answered_later(
    start, start_proxy, path, caplog, way
):
    accept, outcomes = LateCommits(), []

    async def stream(runtime):
        async with runtime.stream("k", "one", event_id="e") as stream:
            async for _ in stream:
                pass

    ways = {
        "submit": lambda runtime: runtime.submit(Inbound("k", "e", "one", per_conversation=True)),
        "ask": lambda runtime: runtime.ask("k", "one", event_id="e"),
        "stream": stream,
    }
    with trio.fail_after(SECONDS):
        async with start_proxy(accept=accept) as runtime, trio.open_nursery() as nursery:

            async def send():
                outcomes.append(await reply_or_error(lambda: ways[way](runtime)))

            nursery.start_soon(send)
            await accept.entered.wait()
            await runtime.drain()
            accept.release.set()
        assert table_rows(path, "state") == [("open",)]
        if way == "submit":
            assert outcomes[0].inbox_id == 1
        else:
            assert isinstance(outcomes[0], ActorStopped)
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []
        async with start() as runtime:
            reply = await runtime.wait(Receipt(1, "k", "s", 1, 0.0))
            assert reply.text == "echo: one"


async def test_a_subscription_that_begins_after_a_drain_has_ended(start):
    async with start() as runtime:
        await runtime.ask("k", "hello")
        await runtime.drain()
        with trio.fail_after(SECONDS):
            for events in (runtime.subscribe(), runtime.subscribe("k")):
                with events:
                    assert [event async for event in events] == []


async def test_a_drain_that_was_cancelled_can_be_repeated(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        with trio.move_on_after(0):
            await here.runtime.drain()
        with trio.fail_after(SECONDS):
            await here.runtime.drain()


async def test_a_turn_cannot_drain_its_own_runtime(start):
    async def agent(turn):
        with pytest.raises(HermesError, match="a turn or a hook cannot wait for the end"):
            await runtime.wait_stopped()
        with pytest.raises(HermesError, match="a turn or a hook cannot drain"):
            await runtime.drain()
        return "refused"

    async with start(agent=agent) as runtime:
        assert (await runtime.ask("k", "hello")).text == "refused"
