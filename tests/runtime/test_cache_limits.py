"""The limits of agents and transcripts in memory hold as soon as they are exceeded."""

from __future__ import annotations

import trio

from hermes import Config
from hermes.testing import CountingBuilder, ScriptedAgent, inspect, texts_of
from tests.support.conversations import GatedAgent
from tests.support.held_turns import PendingReply
from tests.support.runtime import SECONDS, with_threads


async def ask(runtime, key, text="hello"):
    """Ask, and wait until the conversation is idle."""
    reply = await runtime.ask(key, text)
    await inspect(runtime).wait_idle(key)
    return reply


async def agents_of(runtime):
    return (await runtime.admin.statistics()).agents


async def bytes_of(runtime):
    return (await runtime.admin.statistics()).transcript_bytes


def cached(runtime, keys):
    """Return the conversations that have an agent."""
    return [key for key in keys if runtime.conversation(key).snapshot() is not None]


@with_threads
async def test_agents_over_the_limit_are_closed_least_recently_used_first(start):
    builder = CountingBuilder()
    async with start(build_agent=builder, config=Config(max_agents=2)) as runtime:
        for key in "abc":
            await ask(runtime, key)
        assert cached(runtime, "abc") == ["b", "c"]
        await ask(runtime, "b", "again")
        await ask(runtime, "d")
        assert cached(runtime, "abcd") == ["b", "d"]
        assert (await ask(runtime, "b", "more")).build_reason is None
        reply = await ask(runtime, "a", "more")
        assert reply.build_reason == "evicted"
        assert texts_of(builder.agents[-1].turns[0].history)[:1] == [("user", "hello")]
        assert (await runtime.admin.statistics()).actors == 4
        assert (await runtime.admin.statistics()).builds == {"cold": 4, "evicted": 1}
    assert [agent.closed for agent in builder.agents] == [1] * 5


async def test_the_limit_holds_while_the_agent_that_exceeds_it_runs(start):
    numbers = []

    async def count(turn):
        numbers.append(await agents_of(runtime))

    builder = CountingBuilder(lambda _: ScriptedAgent([[count, "done"]]))
    async with start(build_agent=builder, config=Config(max_agents=2)) as runtime:
        for key in "abcd":
            await ask(runtime, key)
    assert numbers == [1, 2, 2, 2]


@with_threads
async def test_a_running_agent_is_not_closed_because_there_are_too_many(start):
    """The first conversation that becomes idle is the one whose agent is closed."""
    gates = {key: trio.Event() for key in "abc"}
    agents = {}

    def build(spec):
        agents[spec.session_key] = GatedAgent(gates[spec.session_key])
        return agents[spec.session_key]

    with trio.fail_after(SECONDS):
        async with start(build_agent=build, config=Config(max_agents=1)) as runtime:
            async with trio.open_nursery() as nursery:
                asked = {key: PendingReply() for key in gates}
                for key, reply in asked.items():
                    nursery.start_soon(reply.run, lambda key=key: runtime.ask(key, "one"))
                while len(agents) < 3:
                    await trio.lowlevel.checkpoint()
                for agent in agents.values():
                    await agent.began.wait()
                assert await agents_of(runtime) == 3
                for key, left in (("b", 2), ("a", 1), ("c", 1)):
                    gates[key].set()
                    assert (await asked[key].wait()).text == "echo: one"
                    await inspect(runtime).wait_idle(key)
                    assert await agents_of(runtime) == left
            assert cached(runtime, "abc") == ["c"]
    assert [agent.closed for agent in agents.values()] == [1, 1, 1]


async def test_no_agent_is_kept_if_the_limit_is_zero(start):
    builder = CountingBuilder()
    async with start(build_agent=builder, config=Config(max_agents=0)) as runtime:
        reasons = [(await ask(runtime, "a")).build_reason for _ in range(3)]
        assert await agents_of(runtime) == 0
    assert reasons == ["cold", "evicted", "evicted"]
    assert [agent.closed for agent in builder.agents] == [1, 1, 1]


async def test_agents_of_conversations_that_ended_do_not_count(start, autojump_clock):
    class Failing(ScriptedAgent):
        abandoned = True

    agents = iter([ScriptedAgent(), Failing(), ScriptedAgent(), ScriptedAgent()])
    config = Config(max_agents=2, idle_timeout=100)
    async with start(build_agent=lambda _: next(agents), config=config) as runtime:
        await ask(runtime, "ended")
        await trio.sleep(150)
        await ask(runtime, "abandoned")
        await ask(runtime, "a")
        await ask(runtime, "b")
        assert cached(runtime, "ab") == ["a", "b"]
        assert (await ask(runtime, "a")).build_reason is None


async def test_transcripts_over_the_limit_are_released_least_recently_used_first(start):
    builder = CountingBuilder()
    config = Config(transcript_bytes=50_000)
    async with start(build_agent=builder, config=config) as runtime:
        for key in "abcd":
            await ask(runtime, key, key * 10_000)
            assert await bytes_of(runtime) <= 50_000
        assert await bytes_of(runtime) > 40_000
        for key in "abcd":
            assert (await ask(runtime, key, "two")).build_reason is None
            assert await bytes_of(runtime) <= 50_000
            history = runtime.conversation(key).snapshot().agent.turns[1].history
            assert texts_of(history)[0] == ("user", key * 10_000)
    assert len(builder) == 4


async def test_the_transcript_of_a_running_turn_is_not_released(start):
    async def other(turn):
        await ask(runtime, "other", "x" * 10_000)
        sizes.append(await bytes_of(runtime))

    sizes = []
    script = {"k": ["fine", [other, "fine"]], "other": ["fine"]}
    async with start(
        build_agent=lambda spec: ScriptedAgent(script[spec.session_key]),
        config=Config(transcript_bytes=15_000),
    ) as runtime:
        await ask(runtime, "k", "x" * 10_000)
        await ask(runtime, "k", "more")
        assert 10_000 < await bytes_of(runtime) <= 15_000
    assert len(sizes) == 1
    assert 10_000 < sizes[0] <= 15_000


async def test_status_keeps_no_transcript(start):
    async with start(config=Config(transcript_bytes=0)) as runtime:
        await ask(runtime, "k", "x" * 10_000)
        assert await bytes_of(runtime) == 0
        assert (await runtime.conversation("k").status()).context_tokens > 2_000
        assert await bytes_of(runtime) == 0


async def test_transcripts_of_conversations_that_ended_do_not_count(start, autojump_clock):
    config = Config(transcript_bytes=50_000, idle_timeout=100)
    async with start(config=config) as runtime:
        await ask(runtime, "ended", "x" * 20_000)
        await trio.sleep(150)
        await ask(runtime, "a", "x" * 20_000)
        assert await bytes_of(runtime) > 40_000
