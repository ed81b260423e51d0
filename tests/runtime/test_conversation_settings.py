"""Settings of a conversation: its agent, its model and metadata, kept in the store."""

from __future__ import annotations

import asyncio
import json
from datetime import date

import pytest
import trio

from hermes import AgentSpec, Config, ConversationSettings, Inbound
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.store import SessionStore
from hermes.testing import CountingBuilder, ScriptedAgent, inspect
from tests.support.recording import DEFAULT_SIGNATURE


async def reasons(runtime, *keys):
    return [(await runtime.ask(key, "hello")).build_reason for key in keys]


async def test_a_conversation_has_default_settings(start):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        assert await conversation.settings() == ConversationSettings()
        await runtime.ask("k", "hello")
        assert await conversation.settings() == ConversationSettings()
        assert conversation.snapshot().signature == DEFAULT_SIGNATURE


async def test_a_change_reaches_the_next_agent_and_turn(start):
    builder = CountingBuilder()
    async with start(build_agent=builder) as runtime:
        conversation = runtime.conversation("k")
        assert await reasons(runtime, "k", "other") == ["cold", "cold"]
        set_to = await conversation.configure(model="large", agent="poet", metadata={"n": [1]})
        assert set_to == ConversationSettings(agent="poet", model="large", metadata={"n": [1]})
        assert await conversation.settings() == set_to
        assert await reasons(runtime, "k", "k", "other") == ["signature", None, None]
        spec = builder.specs[-1]
        assert (spec.model, spec.conversation) == ("large", set_to)
        assert builder.agents[-1].turns[-1].settings == set_to
        assert builder.agents[1].turns[-1].settings == ConversationSettings()


@pytest.mark.parametrize("change", [{"agent": "poet"}, {"model": "m"}, {"metadata": {"n": 1}}])
async def test_each_change_rebuilds_the_agent_once(start, change):
    async with start() as runtime:
        await runtime.ask("k", "hello")
        await runtime.conversation("k").configure(**change)
        assert await reasons(runtime, "k", "k") == ["signature", None]
        await runtime.conversation("k").configure(**dict.fromkeys(change))
        assert await reasons(runtime, "k", "k") == ["signature", None]
        assert runtime.conversation("k").snapshot().signature == DEFAULT_SIGNATURE


async def test_what_is_not_passed_stays_and_none_restores_the_default(start):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        await conversation.configure(model="large", metadata={"tenant": "t"})
        await conversation.configure(agent="poet")
        expected = ConversationSettings(agent="poet", model="large", metadata={"tenant": "t"})
        assert await conversation.settings() == expected
        await conversation.configure(model=None, metadata=None)
        assert await conversation.settings() == ConversationSettings(agent="poet")
        assert await conversation.configure(agent=None) == ConversationSettings()


@pytest.mark.parametrize(
    "change",
    [{}, {"model": "large"}, {"metadata": {"a": 1, "b": 2}}, {"metadata": {"b": 2, "a": 1}}],
)
async def test_settings_that_do_not_change_cause_no_rebuild(start, change):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        await conversation.configure(model="large", metadata={"a": 1, "b": 2})
        await runtime.ask("k", "hello")
        await conversation.configure(**change)
        assert await reasons(runtime, "k") == [None]


async def test_settings_belong_to_the_key_and_survive_a_restart(start):
    builder = CountingBuilder()
    async with start(build_agent=builder) as runtime:
        conversation = runtime.conversation("k")
        set_to = await conversation.configure(model="large")
        first = (await runtime.ask("k", "hello")).session_id
        await conversation.new()
        assert await reasons(runtime, "k") == [None]
        await conversation.switch(first)
        assert await reasons(runtime, "k") == [None]
        await conversation.close()
        assert await reasons(runtime, "k") == [None]
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "hello")
        assert await runtime.conversation("k").settings() == set_to
    assert [spec.model for spec in builder.specs] == ["large", "large"]


async def test_a_turn_that_runs_after_a_restart_has_the_settings(start, path):
    builder = CountingBuilder()
    with SessionStore(path) as store:
        store.configure("k", model="large")
        store.accept(Inbound("k", "e", "hello"))
    async with start(build_agent=builder) as runtime:
        await inspect(runtime).wait_recovered()
        await inspect(runtime).wait_idle("k")
    assert [spec.model for spec in builder.specs] == ["large"]
    assert builder.agents[0].turns[0].settings.model == "large"


async def test_settings_can_be_changed_before_the_first_message(start):
    async with start() as runtime:
        await runtime.conversation("k").configure(model="large")
        assert await runtime.conversation("k").sessions() == []
        await runtime.ask("k", "hello")
        assert runtime.conversation("k").snapshot().signature != DEFAULT_SIGNATURE


async def test_a_turn_keeps_the_settings_with_which_it_began(start):
    seen = []

    async def change(turn):
        await runtime.conversation("k").configure(model="large")
        seen.append(turn.settings.model)

    builder = CountingBuilder(lambda _: ScriptedAgent([[change, "one"]]))
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "hello")
        assert await reasons(runtime, "k") == ["signature"]
    assert seen == [None, "large"]


async def test_a_message_that_waits_gets_the_new_settings(start):
    began, go_on = trio.Event(), trio.Event()

    async def wait(turn):
        began.set()
        await go_on.wait()

    builder = CountingBuilder(lambda _: ScriptedAgent([[wait, "one"]]))
    async with start(build_agent=builder) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(runtime.ask, "k", "one")
        await began.wait()
        nursery.start_soon(runtime.ask, "k", "two")
        await runtime.conversation("k").configure(model="large")
        go_on.set()
    assert [spec.model for spec in builder.specs] == [None, "large"]


async def test_a_change_by_another_process_is_seen_by_the_next_turn(start, path):
    builder = CountingBuilder()
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "hello")
        with SessionStore(path) as store:
            store.configure("k", model="large")
        assert await reasons(runtime, "k") == ["signature"]


async def test_the_description_of_a_host_is_completed(start):
    builder = CountingBuilder()

    def describe(session_key, source):
        return AgentSpec(session_key=session_key, model="small", settings=(("a", "b"),))

    async with start(build_agent=builder, agent_spec=describe) as runtime:
        await runtime.conversation("k").configure(agent="poet")
        await runtime.ask("k", "hello")
        assert builder.specs[-1].model == "small"
        await runtime.conversation("k").configure(model="large")
        assert await reasons(runtime, "k") == ["signature"]
        assert builder.specs[-1].model == "large"
        assert ("a", "b") in builder.specs[-1].settings
        assert hash(builder.specs[0]) != hash(builder.specs[1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ""},
        {"model": 3},
        {"agent": " "},
        {"metadata": [1]},
        {"metadata": {1: "a"}},
        {"metadata": {"a": object()}},
        {"metadata": {"a": "x" * 5_000}},
        {"metadata": {"a": (1, 2)}},
        {"metadata": {"a": float("nan")}},
        {"metadata": {"a": date(2026, 1, 1)}},
        {"metadata": json.loads('{"a":' * 200 + "1" + "}" * 200)},
        {"metadata": "text"},
    ],
)
async def test_settings_that_cannot_be_stored_are_refused(start, wrong):
    async with start() as runtime:
        with pytest.raises(ValueError, match=r"^(agent|model|metadata) must be"):
            await runtime.conversation("k").configure(**wrong)
        assert await runtime.conversation("k").settings() == ConversationSettings()


@pytest.mark.parametrize("value", [{"b": [1, None, 2.5, True]}, "ü", "half \ud83d of it", {}])
async def test_metadata_is_the_same_for_a_conversation_and_a_message(start, value):
    async with start() as runtime:
        settings = await runtime.conversation("k").configure(metadata={"a": value})
        assert settings == await runtime.conversation("k").settings()
        assert (
            await runtime.ask("k", "hello", metadata={"a": value})
        ).metadata == settings.metadata


async def test_metadata_that_was_stored_earlier_is_not_checked_again(start, sql):
    large = ConversationSettings(metadata={"a": "x" * 5_000})
    async with start() as runtime:
        await runtime.conversation("k").configure(model="small")
        sql("UPDATE routes SET settings = ?", large.to_json())
        changed = await runtime.conversation("k").configure(model="large")
        assert (changed.model, changed.metadata) == ("large", large.metadata)


async def test_an_agent_of_the_previous_settings_is_closed(start):
    builder = CountingBuilder()
    async with start(build_agent=builder, config=Config(max_agents=5)) as runtime:
        for model in ("a", "b", "a"):
            await runtime.conversation("k").configure(model=model)
            await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        assert (await runtime.admin.statistics()).agents == 1
    assert [agent.closed for agent in builder.agents] == [1, 1, 1]


def test_every_host_has_the_settings(path):
    async def reply(turn):
        return f"{turn.settings.model}"

    with start_runtime(path, agent=reply) as runtime:
        conversation = runtime.conversation("k")
        assert conversation.configure(model="large") == ConversationSettings(model="large")
        assert conversation.ask("hello").text == "large"

    async def main():
        async with open_runtime_asyncio(path, agent=reply) as runtime:
            conversation = runtime.conversation("k")
            assert await conversation.settings() == ConversationSettings(model="large")
            await conversation.configure(model=None)
            return (await conversation.ask("hello")).text

    assert asyncio.run(main()) == "None"
