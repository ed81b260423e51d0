"""Agents that take long to build, or cannot be built."""

from __future__ import annotations

import attrs
import trio

from hermes.config import Config
from hermes.messages import (
    AgentSpec,
    Inbound,
)
from hermes.testing import (
    CountingBuilder,
    inspect,
)
from tests.support.other_process import APPEND
from tests.support.recording import RecordingAgent, builds
from tests.support.runtime import reply_to, with_threads


@attrs.define
class SlowBuilder:
    """A builder that waits for `go_on`."""

    started: trio.Event = attrs.Factory(trio.Event)
    go_on: trio.Event = attrs.Factory(trio.Event)
    agents: list = attrs.Factory(list)

    async def __call__(self, spec: AgentSpec):
        self.started.set()
        await self.go_on.wait()
        self.agents.append(RecordingAgent())
        return self.agents[-1]


async def test_passivation_and_status_do_not_affect_a_build(start):
    builder = SlowBuilder()
    replies = []

    async def ask():
        replies.append(await runtime.ask("k", "1"))

    async with start(build_agent=builder, config=Config(max_agents=0, idle_timeout=0)) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await builder.started.wait()
            actor = inspect(runtime).actor("k")
            runtime.admin.passivate()
            status = await runtime.conversation("k").status()
            receipt = await runtime.submit(Inbound("k", "e", "2"))
            assert inspect(runtime).actor("k") is actor
            assert runtime.conversation("k").snapshot() is None
            assert inspect(runtime).baseline("k", status.session_id) is None
            assert builds(runtime) == {}
            with runtime.subscribe("k") as received:
                builder.go_on.set()
                replies.append(await reply_to(received, receipt))
        assert [reply.build_reason for reply in sorted(replies, key=lambda r: r.turn_id)] == [
            "cold", None,
        ]  # fmt: skip
        assert len(builder.agents) == 1


async def test_a_change_during_a_build_causes_a_rebuild_in_the_next_turn(start, in_other_process):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "0")).session_id
    builder = SlowBuilder()
    async with start(build_agent=builder) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "1")
            await builder.started.wait()
            in_other_process(session_id, APPEND)
            builder.go_on.set()
        assert runtime.conversation("k").snapshot().message_count == 2
        assert (await runtime.ask("k", "2")).build_reason == "foreign-write"
        assert ("user", "theirs") in builder.agents[1].shown[0]
        assert (await runtime.ask("k", "3")).build_reason is None
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}


@with_threads
async def test_an_interrupted_build_is_repeated_for_the_same_reason(start):
    builder = SlowBuilder()
    replies = []

    async def ask():
        replies.append(await runtime.ask("k", "1"))

    async with start(build_agent=builder) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await builder.started.wait()
            assert await runtime.conversation("k").interrupt()
        assert (replies[0].status, builds(runtime)) == ("interrupted", {})
        builder.go_on.set()
        assert (await runtime.ask("k", "2")).build_reason == "cold"
        assert builds(runtime) == {"cold": 1}


async def test_a_failed_build_is_repeated_for_the_same_reason(start, in_other_process):
    broken = [False]

    def make(spec):
        if broken[0]:
            raise OSError("no model today")
        return RecordingAgent()

    builder = CountingBuilder(make)
    async with start(build_agent=builder) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        in_other_process(session_id, APPEND)
        broken[0] = True
        assert (await runtime.ask("k", "two")).status == "failed"
        broken[0] = False
        assert (await runtime.ask("k", "three")).build_reason == "foreign-write"
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}
        assert builder.agents[0].closed == 1
