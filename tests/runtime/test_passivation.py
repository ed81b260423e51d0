"""Idle actors end, without any visible effect."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from hermes import CompressionConfig, Config, Inbound
from hermes.store import SessionStore
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    ScriptedAgent,
    inspect,
    texts_of,
)
from tests.support.conversations import GatedAgent, history
from tests.support.held_turns import PendingReply
from tests.support.runtime import SECONDS, with_threads


async def test_an_idle_actor_ends_and_the_next_message_starts_one_with_the_full_history(
    start, autojump_clock
):
    builder = CountingBuilder()
    async with start(build_agent=builder, config=Config(idle_timeout=100)) as runtime:
        await runtime.ask("k", "one")
        await trio.sleep(50)
        assert (await runtime.admin.statistics()).actors == 1
        assert builder.agents[0].closed == 0
        await trio.sleep(100)
        assert (await runtime.admin.statistics()).actors == 0
        assert builder.agents[0].closed == 1
        reply = await runtime.ask("k", "two")
        assert reply.build_reason is not None
        [turn] = builder.agents[1].turns
        assert texts_of(turn.history)[:2] == [("user", "one"), ("assistant", "echo: one")]
        assert len(await runtime.conversation("k").history()) == 4
    assert [agent.closed for agent in builder.agents] == [1, 1]


async def test_an_actor_that_is_used_repeatedly_stays(start, autojump_clock):
    builder = CountingBuilder()
    async with start(build_agent=builder, config=Config(idle_timeout=100)) as runtime:
        for n in range(10):
            await runtime.ask("k", str(n))
            await trio.sleep(70)
    assert len(builder) == 1


async def test_no_actor_ends_during_a_turn_however_long_it_takes(start, autojump_clock):
    seen = []

    async def long(turn):
        for _ in range(10):
            await trio.sleep(100)
            seen.append(builder.agents[0].closed)

    builder = CountingBuilder(lambda _: ScriptedAgent([[long, "at last"]]))
    config = Config(idle_timeout=10, max_agents=0, transcript_bytes=0)
    async with start(build_agent=builder, config=config) as runtime:
        assert (await runtime.ask("k", "one")).text == "at last"
        await trio.sleep(100)
        assert builder.agents[0].closed == 1
    assert seen == [0] * 10
    assert len(builder) == 1


async def test_an_actor_is_idle_from_the_end_of_its_last_turn(start, autojump_clock):
    async def long(turn):
        await trio.sleep(1000)

    builder = CountingBuilder(lambda _: ScriptedAgent([[long, "at last"]]))
    async with start(build_agent=builder, config=Config(idle_timeout=900)) as runtime:
        await runtime.ask("k", "one")
        await trio.sleep(60)
        assert (await runtime.ask("k", "two")).build_reason is None


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
        build_agent=lambda _: ScriptedAgent(script), config=config, compressor=compressor
    ) as runtime:
        for n in range(4):
            await runtime.ask("k", f"text {n} " * 20)

        async def compress():
            await runtime.conversation("k").compress()
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compress)
            await trio.sleep(40)
            assert len(compressor.requests) == 1
            assert (await runtime.admin.statistics()).actors == 1
            nursery.start_soon(runtime.ask, "k", "meanwhile")
        assert (await runtime.admin.statistics()).actors == 1
    assert compressed == [True]


async def test_no_actor_ends_while_something_waits_for_it(start, autojump_clock):
    gate = trio.Event()
    agent = GatedAgent(gate)
    async with start(build_agent=lambda _: agent, config=Config(idle_timeout=1)) as runtime:
        await runtime.submit(Inbound("k", "e1", "one"))
        await agent.began.wait()
        await runtime.submit(Inbound("k", "e2", "two"))
        await trio.sleep(1000)
        assert (await runtime.admin.statistics()).actors == 1
        gate.set()
        await runtime.ask("k", "three")
    assert [turn.text for turn in agent.turns] == ["one", "two\n\nthree"]
    assert agent.closed == 1


@with_threads
async def test_no_message_is_lost_and_each_agent_is_closed_once_whenever_an_actor_ends(start):
    """Idle actors are ended at every step, while messages arrive."""
    builder = CountingBuilder()
    with trio.fail_after(60):
        async with start(build_agent=builder, config=Config(idle_timeout=0)) as runtime:

            async def end_all():
                while True:
                    runtime.admin.passivate()
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


async def test_a_message_in_the_step_in_which_an_actor_ends_starts_a_new_one(start, path):
    """A message or a request that arrives in the same step finds no actor and starts one."""
    builder = CountingBuilder()
    with trio.fail_after(SECONDS):
        async with start(build_agent=builder, config=Config(idle_timeout=0)) as runtime:
            await runtime.ask("k", "one")
            inbound = Inbound("k", "e", "two")
            with SessionStore(path) as other:
                accepted = other.accept(inbound)
            await end_idle(runtime)
            inspect(runtime).deliver(accepted)
            with runtime.subscribe("k") as events:
                await anext(events)
                ended = await anext(events)
                assert ended.event.reply.text == "echo: two"
            await end_idle(runtime)
            await runtime.conversation("k").undo(0)
            assert len(await runtime.conversation("k").history()) == 4
    assert [agent.closed for agent in builder.agents] == [1, 1]


async def end_idle(runtime):
    """End the idle actors, without a checkpoint after that."""
    await wait_all_tasks_blocked()
    runtime.admin.passivate()


async def test_no_actor_ends_while_a_command_is_answered_beside_it(start_proxy):
    gate, entered, asked = trio.Event(), trio.Event(), PendingReply()

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
            runtime.admin.passivate()
            assert (await runtime.admin.statistics()).actors == 1
            gate.set()
            await asked.wait()
            await end_idle(runtime)
            assert (await runtime.admin.statistics()).actors == 0
    assert asked.reply.status == "command"


async def test_an_agent_that_hangs_in_aclose_delays_nothing_else(start, autojump_clock):
    closed = []

    class Clinging(ScriptedAgent):
        async def aclose(self):
            closed.append(1)
            await trio.sleep_forever()

    class Stubborn(ScriptedAgent):
        async def aclose(self):
            closed.append(1)
            raise ValueError("my own")

    agents = iter([Clinging(), Stubborn(), Clinging()])
    config = Config(idle_timeout=100, close_timeout=5)
    async with start(build_agent=lambda _: next(agents), config=config) as runtime:
        for n in range(3):
            await trio.sleep(200)
            began = trio.current_time()
            assert (await runtime.ask("k", str(n))).text == f"echo: {n}"
            assert trio.current_time() - began < 10
        left = trio.current_time()
    assert 5 <= trio.current_time() - left < 10
    assert closed == [1, 1, 1]


async def test_an_agent_whose_child_task_raises_when_closing_is_cancelled_affects_nothing_else(
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
    async with start(build_agent=lambda _: next(agents), config=config) as runtime:
        await runtime.ask("k", "one")  # the agent is dropped when the actor is idle
        await trio.sleep(10)
        await runtime.ask("k", "two")
        await trio.sleep(200)  # the actor itself ends
        assert (await runtime.ask("k", "three")).text == "echo: three"
