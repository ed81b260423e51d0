"""What fails ends alone, or ends everything clearly; what is idle ends without anybody noticing."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import CompressionConfig, Config, Inbound, Source
from hermes.actors.runtime import running
from hermes.embed.trio_host import plain_description
from hermes.errors import ActorStopped, HermesError, StoreBusy, StoreFailed
from hermes.messages import Delivery, TurnResult
from hermes.store import SessionStore, inline, open_store
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    MemoryAdapter,
    ScriptedAgent,
    texts_of,
)
from tests.conftest import foreign

SECONDS = 30
inline_only = pytest.mark.parametrize("workers", ["inline"])


class Failing:
    """A verb that raises so many times for the sessions of some keys, and works after that."""

    def __init__(self, times, error=None):
        self.left = times
        self.error = error or RuntimeError("my own")
        self.sessions = None

    async def __call__(self, real, *args, **kwargs):
        if self.left and (self.sessions is None or args[0] in self.sessions):
            self.left -= 1
            raise self.error
        return await real(*args, **kwargs)


class Faults:
    """What goes wrong at the next commits."""

    def __init__(self):
        self.next = []
        self.until = 0.0
        self.kind = "full"

    def __call__(self):
        if self.next:
            return self.next.pop(0)
        return self.kind if trio.current_time() < self.until else None


class Asked:
    """A question on its way, and what became of it."""

    def __init__(self):
        self.reply = self.error = None
        self.done = trio.Event()

    async def run(self, ask):
        try:
            self.reply = await ask()
        except HermesError as error:
            self.error = error
        self.done.set()


class Held(ScriptedAgent):
    """An agent that holds each turn until the gate is opened."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate
        self.began = trio.Event()

    async def run(self, turn):
        self.turns.append(turn)
        self.began.set()
        await self.gate.wait()
        return TurnResult(text=f"echo: {turn.text}")


async def history(runtime, key="k"):
    return texts_of(await runtime.history(key))


@pytest.fixture
async def told(path, world):
    """A file with one conversation in it, whose transcript no actor holds."""
    async with open_store(path, clock=world.clock, open_worker=inline()) as store:
        async with running(
            store, build=CountingBuilder(), describe=plain_description, config=Config()
        ) as runtime:
            for key in ("k", "other"):
                await runtime.ask(key, "before")


BEFORE = [("user", "before"), ("assistant", "echo: before")]


# An actor that fails


async def test_an_actor_that_fails_ends_alone_and_a_fresh_one_answers(told, start_proxy, caplog):
    load, gate = Failing(1), trio.Event()
    other = Held(gate)
    builder = CountingBuilder(lambda spec: other if spec.session_key == "o" else ScriptedAgent())
    theirs = Asked()
    with trio.fail_after(SECONDS):
        async with (
            start_proxy(builder, load=load) as runtime,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(theirs.run, lambda: runtime.ask("o", "theirs"))
            await other.began.wait()
            reply = await runtime.ask("k", "mine")
            assert reply.text == "echo: mine"
            assert not theirs.done.is_set()
            gate.set()
            await theirs.done.wait()
            assert theirs.reply.text == "echo: theirs"
            assert await history(runtime) == [*BEFORE, ("user", "mine"), ("assistant", reply.text)]
    assert load.left == 0
    assert "the actor of k failed" in caplog.text
    assert [agent.closed for agent in builder.agents] == [1] * len(builder)


async def test_all_that_waited_for_a_failed_actor_is_answered_in_order_and_once(told, start_proxy):
    """Messages wake a new actor; a request, which is nowhere but in memory, is told the truth."""
    gate, entered = trio.Event(), trio.Event()

    async def fail_once(real, *args):
        if not entered.is_set():
            entered.set()
            await gate.wait()
            raise RuntimeError("my own")
        return await real(*args)

    builder = CountingBuilder()
    first, request, replies = Asked(), Asked(), []
    with trio.fail_after(SECONDS):
        async with start_proxy(builder, load=fail_once) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.run, lambda: runtime.ask("k", "one"))
                await entered.wait()
                for n in range(5):
                    await runtime.submit(Inbound("k", f"e{n}", str(n)))
                nursery.start_soon(request.run, lambda: runtime.new_session("k"))
                await wait_all_tasks_blocked()
                gate.set()
                await first.done.wait()
                replies.append(first.reply)
            assert isinstance(request.error, ActorStopped)
            said = [text for role, text in await history(runtime) if role == "user"]
            assert said == ["before", "one", *"01234"]
    [agent] = builder.agents
    assert [turn.turn_id for turn in agent.turns] == [3]


async def test_what_waits_for_an_actor_that_fails_again_and_again_is_refused_after_a_rest(
    told, start_proxy, sql, autojump_clock, caplog
):
    load = Failing(3)
    async with start_proxy(load=load) as runtime:
        began = trio.current_time()
        reply = await runtime.ask("k", "mine")
        assert reply.status == "refused"
        assert "3 times" in reply.text
        assert 60 <= trio.current_time() - began < 62
        assert load.left == 0
        assert "failed 3 times and rests" in caplog.text
        assert (await runtime.ask("k", "later")).text == "echo: later"
        assert await history(runtime) == [
            *BEFORE,
            ("user", "later"),
            ("assistant", "echo: later"),
        ]
    assert sql("SELECT state FROM inbox ORDER BY id") == [["done"], ["done"], ["parked"], ["done"]]


async def test_while_one_conversation_rests_the_others_go_on(told, start_proxy, autojump_clock):
    load, mine = Failing(3), Asked()
    async with start_proxy(load=load) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(mine.run, lambda: runtime.ask("k", "mine"))
        await trio.sleep(1)
        assert load.left == 0
        assert (await runtime.ask("other", "theirs")).text == "echo: theirs"
        assert trio.current_time() < 5
        assert not mine.done.is_set()
        await trio.sleep(70)
        assert mine.done.is_set()


async def test_failures_that_are_far_apart_need_no_rest(told, start_proxy, autojump_clock):
    load = Failing(0)
    async with start_proxy(load=load, config=Config(transcript_bytes=0)) as runtime:
        for n in range(5):
            runtime.passivate()  # so that the transcript is loaded again
            load.left = 1
            began = trio.current_time()
            assert (await runtime.ask("k", str(n))).text == f"echo: {n}"
            assert trio.current_time() - began < 1
            await trio.sleep(40)


async def test_a_new_message_does_not_cut_the_rest_short_and_is_answered_after_it(
    told, start_proxy, autojump_clock
):
    """The user is told that it rests, and nothing overtakes."""
    load, first, adapter = Failing(3), Asked(), MemoryAdapter()
    source = Source("memory", chat_id="c")
    config = Config(max_attempts=10)
    async with (
        start_proxy(load=load, config=config, adapters=[adapter]) as runtime,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(first.run, lambda: runtime.ask("k", "mine", source=source))
        await trio.sleep(10)
        assert load.left == 0
        assert len(adapter.texts) == 1
        assert "rests" in adapter.texts[0]
        with pytest.raises(HermesError, match="rests"):
            await runtime.new_session("k")
        reply = await runtime.ask("k", "second", source=source)
        assert trio.current_time() >= 60
        await first.done.wait()
        assert first.reply == reply
        said = [text for role, text in await history(runtime) if role == "user"]
        assert said == ["before", "mine", "second"]


async def test_a_rest_can_be_left(told, start_proxy, path, autojump_clock):
    async with start_proxy(load=Failing(3)) as runtime:
        await runtime.submit(Inbound("k", "e", "mine"))
        await trio.sleep(10)
    assert trio.current_time() < 20
    async with start_proxy(config=Config(max_attempts=10)) as runtime:
        await wait_all_tasks_blocked()
        assert (await history(runtime))[2:] == [("user", "mine"), ("assistant", "echo: mine")]


async def test_a_command_whose_own_code_fails_ends_alone(told, start_proxy):
    with trio.fail_after(SECONDS):
        async with start_proxy(get_usage=Failing(1)) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.submit, Inbound("k", "e", "/usage", command=True))
            assert (await runtime.ask("other", "theirs")).text == "echo: theirs"
            assert (await runtime.ask("k", "mine")).text == "echo: mine"


async def test_a_command_is_answered_once_though_the_actor_fails_beside_it(told, start_proxy):
    """The fresh actor finds its row open, and answers it; the one that was at it is too late."""
    gates = {"load": trio.Event(), "usage": trio.Event()}
    entered = {"load": trio.Event(), "usage": trio.Event()}

    async def fail_once(real, *args):
        if not entered["load"].is_set():
            entered["load"].set()
            await gates["load"].wait()
            raise RuntimeError("my own")
        return await real(*args)

    async def slow_once(real, *args):
        if not entered["usage"].is_set():
            entered["usage"].set()
            await gates["usage"].wait()
        return await real(*args)

    adapter, mine, command = MemoryAdapter(), Asked(), Asked()
    source = Source("memory", chat_id="c")
    with trio.fail_after(SECONDS):
        async with (
            start_proxy(load=fail_once, get_usage=slow_once, adapters=[adapter]) as runtime,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(mine.run, lambda: runtime.ask("k", "mine", source=source))
            await entered["load"].wait()
            nursery.start_soon(command.run, lambda: runtime.ask("k", "/usage", source=source))
            await entered["usage"].wait()
            gates["load"].set()
            await mine.done.wait()
            await wait_all_tasks_blocked()
            gates["usage"].set()
            await command.done.wait()
    assert len(adapter.texts) == 2


async def test_a_conversation_whose_messages_cannot_be_read_harms_no_other(
    told, start_proxy, path, autojump_clock
):
    async with open_store(path, open_worker=inline()) as store:
        await store.accept(Inbound("k", "e", "left by an earlier process"))

    async def unreadable(real, *args, **kwargs):
        if args == ("k",):
            raise RuntimeError("damaged")
        return await real(*args, **kwargs)

    async with start_proxy(open_inbox=unreadable) as runtime:
        for _ in range(3):
            await trio.sleep(50)
            assert (await runtime.ask("other", "theirs")).text == "echo: theirs"


async def test_a_message_that_cannot_be_read_any_more_harms_no_other(told, start_proxy, path):
    """One row was damaged, or written by a later version."""
    async with open_store(path, open_worker=inline()) as store:
        await store.accept(Inbound("k", "e1", "damaged"))
        await store.accept(Inbound("other", "e2", "whole"))
    foreign(path, "UPDATE inbox SET body = '{}' WHERE event_id = 'e1'")
    with trio.fail_after(SECONDS):
        async with start_proxy() as runtime:
            await wait_all_tasks_blocked()
            assert ("user", "whole") in await history(runtime, "other")
            assert (await runtime.ask("third", "hello")).text == "echo: hello"


@pytest.mark.parametrize("what", ["describe", "build"])
async def test_who_cannot_describe_or_build_an_agent_fails_that_turn_only(start, what):
    def fail(*_):
        if not failed:
            failed.append(1)
            raise LookupError("no such model")

    failed = []

    def build(spec):
        if what == "build":
            fail()
        return ScriptedAgent()

    def described(key, source):
        if what == "describe":
            fail()
        return plain_description(key, source)

    async with start(agent=build, describe=described) as runtime:
        reply = await runtime.ask("k", "one")
        assert reply.status == "failed"
        assert "no such model" in reply.text
        assert (await runtime.ask("k", "two")).text == "echo: two"


async def test_what_overflows_while_an_actor_fetches_the_rest_is_not_forgotten(start_proxy, path):
    async with open_store(path, open_worker=inline()) as store:
        await store.accept(Inbound("k", "e", "left by an earlier process"))
    gate, entered = trio.Event(), trio.Event()

    async def slow(real, *args):
        entered.set()
        await gate.wait()
        return await real(*args)

    with trio.fail_after(SECONDS):
        async with start_proxy(start_inbox=slow) as runtime:
            await entered.wait()
            for n in range(70):  # the mailbox holds 64
                await runtime.submit(Inbound("k", f"e{n}", str(n)))
            gate.set()
            await wait_all_tasks_blocked()
            assert await runtime._context.store.open_inbox() == []


# A store that has trouble


@pytest.mark.parametrize("kind", ["busy", "full"])
@inline_only
async def test_a_commit_that_fails_for_now_is_tried_again_and_the_agent_is_not(
    start, kind, autojump_clock
):
    faults = Faults()

    async def trouble(turn):
        faults.next = [kind] * 6

    agent = ScriptedAgent([[trouble, "well"]])
    async with start(agent=lambda _: agent, open_worker=inline(faults)) as runtime:
        reply = await runtime.ask("k", "one")
        assert (reply.text, reply.status) == ("well", "complete")
        assert await history(runtime) == [("user", "one"), ("assistant", "well")]
    assert faults.next == []
    assert len(agent.turns) == 1


@pytest.mark.parametrize("kind", ["busy", "full"])
@inline_only
async def test_a_message_is_refused_clearly_while_nothing_can_be_stored_and_taken_afterwards(
    start, kind, autojump_clock
):
    faults = Faults()
    async with start(open_worker=inline(faults)) as runtime:
        faults.next = [kind]
        with pytest.raises(HermesError, match="try again") as refused:
            await runtime.ask("k", "one", event_id="e")
        assert "nothing was stored" in str(refused.value)
        assert (await runtime.ask("k", "one", event_id="e")).text == "echo: one"
        assert len(await runtime.history("k")) == 2


@pytest.mark.parametrize("kind", ["busy", "full"])
@inline_only
async def test_an_answer_is_not_thrown_away_because_the_store_was_busy_for_long(
    start, kind, autojump_clock
):
    faults = Faults()

    async def trouble(turn):
        faults.kind, faults.until = kind, trio.current_time() + 40

    agent = ScriptedAgent([[trouble, "well"], "well"])
    async with start(agent=lambda _: agent, open_worker=inline(faults)) as runtime:
        reply = await runtime.ask("k", "one")
        assert (reply.text, reply.status) == ("well", "complete")


STORE_FAULTS = pytest.mark.parametrize("fault", ["unknown-present", "unknown-absent"])


@STORE_FAULTS
@inline_only
async def test_a_commit_of_unknown_fate_ends_the_block_and_each_message_is_answered_once(
    start, path, fault
):
    """The turn is on disk or it is not; the next start finds out, and nothing is said twice."""
    faults, agents = Faults(), []

    async def trouble(turn):
        faults.next = [fault]

    def build(spec):
        agents.append(ScriptedAgent([[trouble, "well"]] if spec.session_key == "k" else []))
        return agents[-1]

    with trio.fail_after(SECONDS):
        with pytest.raises(StoreFailed):
            async with start(agent=build, open_worker=inline(faults)) as runtime:
                await runtime.ask("other", "theirs")
                await runtime.ask("k", "one", event_id="e")
        again = ScriptedAgent(["well"])
        async with start(agent=lambda _: again) as runtime:
            await wait_all_tasks_blocked()
            assert await history(runtime) == [("user", "one"), ("assistant", "well")]
            assert len(await runtime.history("other")) == 2
            receipt = await runtime.submit(Inbound("k", "e", "one"))
            assert receipt.inbox_id == 2
            await wait_all_tasks_blocked()
            assert len(await runtime.history("k")) == 2
    assert [turn.turn_id for turn in again.turns] == ([] if fault == "unknown-present" else [2])
    assert [agent.closed for agent in agents] == [1, 1]


@STORE_FAULTS
@inline_only
async def test_an_acceptance_of_unknown_fate_is_never_answered_twice(start, fault):
    faults = Faults()
    with trio.fail_after(SECONDS):
        with pytest.raises(StoreFailed):
            async with start(open_worker=inline(faults)) as runtime:
                faults.next = [fault]
                await runtime.ask("k", "one", event_id="e")
        async with start() as runtime:
            await runtime.submit(Inbound("k", "e", "one"))
            await runtime.ask("k", "two")
            said = [text for role, text in await history(runtime) if role == "user"]
            assert said == ["one", "two"]


async def _stream(runtime):
    async with runtime.stream("stream", "one") as stream:
        async for _ in stream:
            pass


WAITERS = {
    "asks": lambda runtime: runtime.ask("k", "one"),
    "asks another": lambda runtime: runtime.ask("b", "one"),
    "requests": lambda runtime: runtime.new_session("k"),
    "streams": _stream,
}


@pytest.mark.parametrize("who", WAITERS)
@STORE_FAULTS
@inline_only
async def test_who_waits_elsewhere_when_the_store_fails_is_told_that_it_did(start, fault, who):
    """Such as the thread of a synchronous host, whom no cancellation reaches."""
    faults, gate, began = Faults(), trio.Event(), []

    async def hold(turn):
        began.append(turn)
        await gate.wait()
        if turn.session_key == "trigger":
            faults.next = [fault]
        else:
            await trio.sleep_forever()

    asked, trigger = Asked(), Asked()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            with pytest.raises(StoreFailed):
                async with start(
                    agent=lambda _: ScriptedAgent([[hold, "x"]]), open_worker=inline(faults)
                ) as runtime:
                    if who == "requests":
                        await runtime.submit(Inbound("k", "e", "one"))
                        await wait_all_tasks_blocked()
                    nursery.start_soon(asked.run, lambda: WAITERS[who](runtime))
                    nursery.start_soon(trigger.run, lambda: runtime.ask("trigger", "now"))
                    await wait_all_tasks_blocked()
                    assert len(began) == 2
                    gate.set()
                    await trio.sleep_forever()
    assert isinstance(trigger.error, HermesError)
    assert isinstance(asked.error, StoreFailed)


@inline_only
async def test_what_is_asked_of_a_runtime_whose_store_failed_is_refused_clearly(start):
    faults = Faults()
    with trio.fail_after(SECONDS):
        with pytest.raises(StoreFailed):
            async with start(open_worker=inline(faults)) as runtime:
                faults.next = ["unknown-absent"]
                await runtime.ask("k", "one")
        with pytest.raises(HermesError):
            await runtime.ask("k", "two")
        with pytest.raises(HermesError):
            await runtime.submit(Inbound("k", "e", "two"))
        with pytest.raises(HermesError):
            await runtime.new_session("k")


# Idle actors


@inline_only
async def test_an_idle_actor_ends_and_the_next_message_wakes_one_that_knows_everything(
    start, autojump_clock
):
    builder = CountingBuilder()
    async with start(agent=builder, config=Config(idle_timeout=100)) as runtime:
        await runtime.ask("k", "one")
        await trio.sleep(50)
        assert runtime.statistics().actors == 1
        assert builder.agents[0].closed == 0
        await trio.sleep(100)
        assert runtime.statistics().actors == 0
        assert builder.agents[0].closed == 1
        reply = await runtime.ask("k", "two")
        assert reply.build_reason is not None
        [turn] = builder.agents[1].turns
        assert texts_of(turn.history)[:2] == [("user", "one"), ("assistant", "echo: one")]
        assert len(await runtime.history("k")) == 4
    assert [agent.closed for agent in builder.agents] == [1, 1]


@inline_only
async def test_an_actor_that_is_used_again_and_again_stays(start, autojump_clock):
    builder = CountingBuilder()
    async with start(agent=builder, config=Config(idle_timeout=100)) as runtime:
        for n in range(10):
            await runtime.ask("k", str(n))
            await trio.sleep(70)
    assert len(builder) == 1


@inline_only
async def test_no_actor_ends_under_a_turn_however_long_it_takes(start, autojump_clock):
    seen = []

    async def long(turn):
        for _ in range(10):
            await trio.sleep(100)
            seen.append(builder.agents[0].closed)

    builder = CountingBuilder(lambda _: ScriptedAgent([[long, "at last"]]))
    config = Config(idle_timeout=10, max_agents=0, transcript_bytes=0)
    async with start(agent=builder, config=config) as runtime:
        assert (await runtime.ask("k", "one")).text == "at last"
        await trio.sleep(100)
        assert builder.agents[0].closed == 1
    assert seen == [0] * 10
    assert len(builder) == 1


@inline_only
async def test_an_actor_is_idle_from_the_end_of_its_last_turn(start, autojump_clock):
    async def long(turn):
        await trio.sleep(1000)

    builder = CountingBuilder(lambda _: ScriptedAgent([[long, "at last"]]))
    async with start(agent=builder, config=Config(idle_timeout=900)) as runtime:
        await runtime.ask("k", "one")
        await trio.sleep(60)
        assert (await runtime.ask("k", "two")).build_reason is None


@inline_only
async def test_no_actor_ends_while_it_compresses(start, autojump_clock):
    compressed = []

    async def look(turn):
        compressed.append(len(compressor.requests) and ended.is_set())

    compressor, ended = DeterministicCompressor(delay=60), trio.Event()
    config = Config(
        idle_timeout=10,
        compression=CompressionConfig(window=2000, max_output=100, share=0.99),
    )
    script = [*["so " * 200] * 4, [look, "well"]]
    async with start(
        agent=lambda _: ScriptedAgent(script), config=config, compressor=compressor
    ) as runtime:
        for n in range(4):
            await runtime.ask("k", f"text {n} " * 20)

        async def compress():
            await runtime.compress("k")
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compress)
            await trio.sleep(40)
            assert len(compressor.requests) == 1
            assert runtime.statistics().actors == 1
            nursery.start_soon(runtime.ask, "k", "meanwhile")
        assert runtime.statistics().actors == 1
    assert compressed == [True]


@inline_only
async def test_no_actor_ends_while_something_waits_for_it(start, autojump_clock):
    gate = trio.Event()
    agent = Held(gate)
    async with start(agent=lambda _: agent, config=Config(idle_timeout=1)) as runtime:
        await runtime.submit(Inbound("k", "e1", "one"))
        await agent.began.wait()
        await runtime.submit(Inbound("k", "e2", "two"))
        await trio.sleep(1000)
        assert runtime.statistics().actors == 1
        gate.set()
        await runtime.ask("k", "three")
    assert [turn.text for turn in agent.turns] == ["one", "two\n\nthree"]
    assert agent.closed == 1


async def test_whenever_an_actor_ends_no_message_is_lost_and_each_agent_is_closed_once(start):
    """Actors are ended as soon as they are idle, at every step, while messages come."""
    builder = CountingBuilder()
    with trio.fail_after(60):
        async with start(agent=builder, config=Config(idle_timeout=0)) as runtime:

            async def end_all():
                while True:
                    runtime.passivate()
                    await trio.lowlevel.checkpoint()

            async def talk(key):
                for n in range(12):
                    assert (await runtime.ask(key, f"{n}")).text == f"echo: {n}"

            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_all)
                async with trio.open_nursery() as talking:
                    for key in "abc":
                        talking.start_soon(talk, key)
                nursery.cancel_scope.cancel()
            for key in "abc":
                said = [text for role, text in await history(runtime, key) if role == "user"]
                assert said == [str(n) for n in range(12)]
    assert len(builder) > 6
    assert {agent.closed for agent in builder.agents} == {1}


@inline_only
async def test_what_comes_in_the_step_in_which_an_actor_was_ended_wakes_a_new_one(start, path):
    """A message or a request: whoever looks the actor up after that finds none."""
    builder = CountingBuilder()
    with trio.fail_after(SECONDS):
        async with start(agent=builder, config=Config(idle_timeout=0)) as runtime:
            await runtime.ask("k", "one")
            inbound = Inbound("k", "e", "two")
            with SessionStore(path) as other:
                accepted = other.accept(inbound)
            await end_idle(runtime)
            runtime._supervisor.deliver(Delivery(accepted.receipt, inbound, accepted.head))
            with runtime.events("k") as events:
                await anext(events)
                ended = await anext(events)
                assert ended.event.reply.text == "echo: two"
            await end_idle(runtime)
            await runtime.set_title("k", "mine")
            assert len(await runtime.history("k")) == 4
    assert [agent.closed for agent in builder.agents] == [1, 1]


async def end_idle(runtime):
    """End the actors that are idle; there is no checkpoint after that."""
    await wait_all_tasks_blocked()
    runtime.passivate()


async def test_no_actor_ends_while_a_command_is_answered_beside_it(start_proxy):
    gate, entered, asked = trio.Event(), trio.Event(), Asked()

    async def slow(real, *args):
        entered.set()
        await gate.wait()
        return await real(*args)

    with trio.fail_after(SECONDS):
        async with (
            start_proxy(config=Config(idle_timeout=0), get_usage=slow) as runtime,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(asked.run, lambda: runtime.ask("k", "/usage"))
            await entered.wait()
            await wait_all_tasks_blocked()
            runtime.passivate()
            assert runtime.statistics().actors == 1
            gate.set()
            await asked.done.wait()
            await end_idle(runtime)
            assert runtime.statistics().actors == 0
    assert asked.reply.status == "command"


async def test_more_agents_than_allowed_are_closed_least_used_first(start):
    builder = CountingBuilder()
    async with start(agent=builder, config=Config(max_agents=2)) as runtime:
        for key in "abcde":
            await runtime.ask(key, "one")
        await runtime.ask("a", "two")
        assert runtime.statistics().agents == 5
        runtime.passivate()
        assert runtime.statistics().agents == 2
        assert runtime.statistics().actors == 5
        assert runtime.snapshot("a") is not None
        assert runtime.snapshot("e") is not None
        assert (await runtime.ask("a", "three")).build_reason is None
        reply = await runtime.ask("b", "two")
        assert reply.build_reason == "evicted"
        assert texts_of(builder.agents[-1].turns[0].history)[:1] == [("user", "one")]
        assert runtime.statistics().builds == {"cold": 5, "evicted": 1}
    assert {agent.closed for agent in builder.agents} == {1}
    assert len(builder) == 6


async def test_an_agent_that_works_is_not_closed_because_there_are_too_many(start):
    gate = trio.Event()
    agents = {}

    def build(spec):
        agent = agents[spec.session_key] = Held(gate)
        return agent

    asked = Asked()
    with trio.fail_after(SECONDS):
        async with start(agent=build, config=Config(max_agents=0)) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(asked.run, lambda: runtime.ask("k", "one"))
                while "k" not in agents:
                    await trio.lowlevel.checkpoint()
                await agents["k"].began.wait()
                runtime.passivate()
                assert agents["k"].closed == 0
                gate.set()
            assert asked.reply.text == "echo: one"
            runtime.passivate()
            assert runtime.statistics().agents == 0
    assert agents["k"].closed == 1


async def test_transcripts_that_take_too_much_memory_are_let_go_and_loaded_again(start):
    builder = CountingBuilder()
    config = Config(transcript_bytes=50_000)
    async with start(agent=builder, config=config) as runtime:
        for key in "abcd":
            await runtime.ask(key, key * 10_000)
        assert runtime.statistics().transcript_bytes > 80_000
        runtime.passivate()
        kept = runtime.statistics().transcript_bytes
        assert 20_000 < kept <= 50_000
        for key in "abcd":
            assert (await runtime.ask(key, "two")).build_reason is None
            assert texts_of(runtime.snapshot(key).agent.turns[1].history)[0] == (
                "user",
                key * 10_000,
            )
    assert len(builder) == 4


@inline_only
async def test_an_agent_that_does_not_want_to_be_closed_holds_nobody_up(start, autojump_clock):
    closed = []

    class Clinging(ScriptedAgent):
        async def aclose(self):
            closed.append(1)
            await trio.sleep_forever()

    class Failing(ScriptedAgent):
        async def aclose(self):
            closed.append(1)
            raise ValueError("my own")

    agents = iter([Clinging(), Failing(), Clinging()])
    config = Config(idle_timeout=100, close_timeout=5)
    async with start(agent=lambda _: next(agents), config=config) as runtime:
        for n in range(3):
            await trio.sleep(200)
            began = trio.current_time()
            assert (await runtime.ask("k", str(n))).text == f"echo: {n}"
            assert trio.current_time() - began < 10
        left = trio.current_time()
    assert 5 <= trio.current_time() - left < 10
    assert closed == [1, 1, 1]


@inline_only
async def test_an_agent_whose_helper_raises_when_its_closing_is_cut_short_harms_nobody(
    start, autojump_clock
):
    class Cross(ScriptedAgent):
        async def aclose(self):
            async def helper():
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError("in cleanup")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(helper)

    agents = iter([Cross(), Cross(), ScriptedAgent()])
    config = Config(idle_timeout=100, close_timeout=5, max_agents=0)
    async with start(agent=lambda _: next(agents), config=config) as runtime:
        await runtime.ask("k", "one")
        runtime.passivate()  # drops the agent beside the actor
        await trio.sleep(10)
        await runtime.ask("k", "two")
        await trio.sleep(200)  # the actor itself ends
        assert (await runtime.ask("k", "three")).text == "echo: three"


async def test_what_is_asked_of_a_runtime_that_has_ended_is_refused_clearly(start):
    async with start() as runtime:
        await runtime.ask("k", "one")
    for verb in (
        lambda: runtime.ask("k", "two"),
        lambda: runtime.submit(Inbound("k", "e", "two")),
        lambda: runtime.new_session("k"),
        lambda: runtime.compress("k"),
        lambda: runtime.status("k"),
        lambda: runtime.history("k"),
    ):
        with trio.fail_after(SECONDS), pytest.raises(HermesError):
            await verb()
    assert not await runtime.interrupt("k")


async def test_a_store_error_of_a_verb_is_its_callers_and_the_actor_goes_on(start_proxy):
    builder = CountingBuilder()
    async with start_proxy(builder, new_session=Failing(1, StoreBusy("not now"))) as runtime:
        await runtime.ask("k", "one")
        with pytest.raises(StoreBusy, match="not now"):
            await runtime.new_session("k")
        assert (await runtime.ask("k", "two")).build_reason is None
    assert len(builder) == 1
