"""Cached transcripts: what is loaded from the store, and how often."""

from __future__ import annotations

import pytest

from hermes.actors.runtime import open_actors
from hermes.config import Config
from hermes.messages import (
    AgentSpec,
    Inbound,
)
from hermes.store import open_store
from hermes.testing import (
    inline,
    inspect,
    texts_of,
)
from tests.support.conversations import release_transcripts
from tests.support.other_process import every_change
from tests.support.recording import RecordingAgent, builds, recording_builder
from tests.support.runtime import reply_to, with_threads
from tests.support.store_proxy import Through


class CountingStore(Through):
    """A store that records which transcripts are loaded, and runs functions before a load."""

    def __init__(self, store):
        super().__init__(store, loads=[], before_load=[])

    def load(self, session_id):
        self.loads.append(session_id)
        if self.before_load:
            self.before_load.pop()(session_id)
        return self.store.load(session_id)


@pytest.fixture
async def counted(path, world, workers):
    """A runtime whose loads are counted, and its builder."""
    builder = recording_builder()
    worker = {"open_worker": inline()} if workers == "inline" else {}
    async with open_store(path, clock=world.clock, **worker) as store:
        counting = CountingStore(store)
        async with open_actors(
            counting,
            build=builder,
            agent_spec=lambda key, source: AgentSpec(session_key=key),
            config=Config(transcript_bytes=50_000),
        ) as runtime:
            await inspect(runtime).wait_recovered()
            yield runtime, builder, counting


@every_change
async def test_a_change_of_an_earlier_session_causes_one_load_and_no_rebuild(
    counted, in_other_process, change
):
    runtime, builder, store = counted
    loads = store.loads
    a = (await runtime.ask("k", "on A")).session_id
    await runtime.ask("k", "more on A")
    await runtime.ask("k", "/branch")
    b = (await runtime.ask("k", "on B")).session_id
    loads.clear()
    in_other_process(a, change)
    await runtime.ask("k", "still on B")
    await runtime.conversation("k").switch(a)
    live = texts_of(await runtime.conversation("k").history())
    assert loads == []
    assert (await runtime.ask("k", "back on A")).build_reason is None
    assert builder.agents[0].shown[-1] == live
    assert loads == [a]
    await runtime.ask("k", "and once more")
    await runtime.conversation("k").switch(b)
    await runtime.ask("k", "on B, which nobody else has touched")
    assert loads == [a]
    assert builds(runtime) == {"cold": 1}


async def test_without_changes_by_others_nothing_is_loaded(counted):
    runtime, _, store = counted
    loads = store.loads
    a = (await runtime.ask("k", "on A")).session_id
    await runtime.conversation("k").new()
    b = (await runtime.ask("k", "on B")).session_id
    for number in range(10):
        await runtime.conversation("k").switch((a, b)[number % 2])
        await runtime.ask("k", f"{number}")
    assert loads == []


@with_threads
async def test_a_released_transcript_is_loaded_once_and_the_agent_is_kept(counted):
    runtime, builder, store = counted
    loads = store.loads
    a = (await runtime.ask("k", "one")).session_id
    await release_transcripts(runtime)
    assert (await runtime.admin.statistics()).transcript_bytes == 0
    assert (await runtime.ask("k", "two")).build_reason is None
    assert builder.agents[0].shown[-1] == [("user", "one"), ("assistant", "echo: one")]
    await runtime.ask("k", "three")
    assert loads == [a]


@every_change
async def test_a_change_between_a_message_and_its_turn_is_seen_by_the_turn(
    counted, in_other_process, change
):
    runtime, builder, store = counted
    await runtime.ask("k", "one")
    await runtime.ask("k", "two")
    await release_transcripts(runtime)
    store.before_load.append(lambda session_id: in_other_process(session_id, change))
    assert (await runtime.ask("k", "three")).build_reason == "foreign-write"
    assert builder.agents[2].shown == [texts_of((await runtime.conversation("k").history())[:-2])]
    assert (await runtime.ask("k", "four")).build_reason is None


async def test_a_queued_message_does_not_load_the_transcript(counted):
    runtime, builder, store = counted
    receipts = []

    async def more(turn):
        receipts.append(await runtime.submit(Inbound("k", "e", "2")))

    builder.make = lambda _: RecordingAgent([[more, "one"], "two"])
    with runtime.subscribe("k") as received:
        await runtime.ask("k", "1")
        await reply_to(received, receipts[0])
    assert builder.agents[0].shown == [[], [("user", "1"), ("assistant", "one")]]
    assert store.loads == []
