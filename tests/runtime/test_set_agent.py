"""Agents that the host has built and handed over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hermes.messages import (
    Snapshot,
)
from tests.support.other_process import APPEND, CHANGES
from tests.support.recording import DEFAULT_SIGNATURE, RecordingAgent, builds, recording_builder
from tests.support.runtime import with_threads


def host_agent(count=None, session_id=None):
    agent = RecordingAgent()
    return agent, Snapshot(agent, DEFAULT_SIGNATURE, count, session_id)


async def test_an_agent_without_count_and_session_is_always_reused(start, in_other_process):
    agent, snapshot = host_agent()
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        await runtime.conversation("k").set_agent(snapshot)
        session_id = (await runtime.ask("k", "one")).session_id
        for number in range(3):
            in_other_process(session_id, f"store.append_message(sid, 'user', 'theirs {number}')")
            assert (await runtime.ask("k", f"{number}")).build_reason is None
            assert ("user", f"theirs {number}") in agent.shown[-1], "the history is up to date"
        assert runtime.conversation("k").snapshot().message_count is None
        assert builds(runtime) == {}
    assert (len(builder), agent.closed) == (0, 1)


async def test_an_agent_with_a_session_but_no_count_is_always_reused(start, in_other_process):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
    agent, snapshot = host_agent(None, session_id)
    async with start() as runtime:
        await runtime.conversation("k").set_agent(snapshot)
        in_other_process(session_id, APPEND)
        assert (await runtime.ask("k", "two")).build_reason is None
        assert runtime.conversation("k").snapshot().agent is agent


@pytest.mark.parametrize("known", [True, False], ids=["session known", "session unknown"])
async def test_an_agent_with_the_right_count_is_reused_until_a_change(
    start, in_other_process, known
):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
    agent, snapshot = host_agent(2, session_id if known else None)
    async with start() as runtime:
        await runtime.conversation("k").set_agent(snapshot)
        assert (await runtime.ask("k", "two")).build_reason is None
        assert runtime.conversation("k").snapshot() == Snapshot(
            agent, DEFAULT_SIGNATURE, 4, session_id
        )
        in_other_process(session_id, CHANGES["rewrite of equal length"])
        assert (await runtime.ask("k", "three")).build_reason == "foreign-write"
        assert agent.closed == 1


@pytest.mark.parametrize("known", [True, False], ids=["session known", "session unknown"])
async def test_an_agent_with_a_stale_count_is_rebuilt(start, known):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
    _, snapshot = host_agent(0, session_id if known else None)
    async with start() as runtime:
        await runtime.conversation("k").set_agent(snapshot)
        assert (await runtime.ask("k", "two")).build_reason == "foreign-write"
        assert (await runtime.ask("k", "three")).build_reason is None


@pytest.mark.parametrize("known", [True, False], ids=["session known", "session unknown"])
async def test_the_count_of_a_set_agent_replaces_that_of_an_earlier_agent(start, known):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        _, snapshot = host_agent(0, session_id if known else None)
        await runtime.conversation("k").set_agent(snapshot)
        assert (await runtime.ask("k", "two")).build_reason == "foreign-write"


async def test_an_agent_of_another_session_is_reused(start):
    agent, snapshot = host_agent(7, "another session")
    async with start() as runtime:
        await runtime.conversation("k").set_agent(snapshot)
        session_id = (await runtime.ask("k", "one")).session_id
        assert runtime.conversation("k").snapshot() == Snapshot(
            agent, DEFAULT_SIGNATURE, 2, session_id
        )
        assert builds(runtime) == {}


async def test_an_agent_with_another_signature_is_rebuilt(start):
    agent = RecordingAgent()
    async with start() as runtime:
        await runtime.conversation("k").set_agent(Snapshot(agent, "of another model"))
        assert (await runtime.ask("k", "one")).build_reason == "signature"
    assert agent.closed == 1


@with_threads
async def test_the_replaced_agent_is_closed_once(start):
    agent, snapshot = host_agent()
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "one")
        await runtime.conversation("k").set_agent(snapshot)
        assert (await runtime.ask("k", "two")).build_reason is None
        assert builder.agents[0].closed == 1
    assert (builder.agents[0].closed, agent.closed) == (1, 1)


async def test_setting_the_current_agent_again_does_not_close_it(start):
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "one")
        await runtime.conversation("k").set_agent(
            replace(runtime.conversation("k").snapshot(), message_count=None)
        )
        assert (await runtime.ask("k", "two")).build_reason is None
        assert builder.agents[0].closed == 0
