"""Events and replies of a conversation on nodes that do not serve it, on one PostgreSQL server."""

from __future__ import annotations

from random import Random

import pytest
import trio

from hermes.events import (
    MessageWaiting,
    ReasoningDelta,
    TextDelta,
    TitleChanged,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from hermes.messages import ToolCall
from tests.support.cluster_nodes import SECONDS, claim, cluster_of, inbound, on_cluster
from tests.support.lossy_hints import LossyHints
from tests.support.remote_events import Recorder

KEY = "conversation"
LONG = "é" * 500_000
"""A megabyte."""


def long_turn(name):
    """An agent that says much, in pieces, with tools in between."""

    async def answer(turn):
        random = Random(turn.text)
        for number in range(60):
            match random.randrange(8):
                case 0:
                    call = ToolCall(f"call {number}", "look", "{}")
                    turn.emit(ToolStarted(call))
                    await trio.sleep(random.random() / 50)
                    turn.emit(ToolFinished(call.id, f"found {number}"))
                case 1:
                    turn.emit(ReasoningDelta(f"because {number} "))
                case _:
                    turn.emit(TextDelta(f"{number} "))
            await trio.sleep(random.choice([0, 0.005, 0.02]))
        turn.emit(TextDelta("end"))
        return f"{name}: {turn.text}"

    return answer


async def owned_by(node, key=KEY):
    """Let a node serve a conversation."""
    assert (await claim(cluster_of(node), key)).node == cluster_of(node).node
    await node.conversation(key).undo()


async def listening(other, key=KEY):
    """Wait until a node has heard of the state of a conversation."""
    audience = other._context.peers._audience
    with trio.fail_after(SECONDS):
        while audience._conversations[key].position is None:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.01)


async def equal(cluster, here, there, ends):
    """Wait until all turns have ended in both places, and compare what was received."""
    await cluster.until(lambda: len(here.ends) == len(there.ends) == ends)
    await cluster.until(lambda: len(here.events) == len(there.events))
    assert there.events == here.events


async def two_nodes(cluster, agent=long_turn):
    opened = [cluster.open(name, agent=agent(name)) for name in ("a", "b")]
    owner, other = [await cluster.stack.enter_async_context(each) for each in opened]
    await cluster.all_know(owner, other)
    await owned_by(owner)
    return owner, other


@pytest.mark.parametrize("share", [0, 0.3])
async def test_listeners_elsewhere_receive_what_those_of_the_owner_do(postgres_url, share):
    async with on_cluster(postgres_url) as cluster:
        owner, other = await two_nodes(cluster)
        here, there = Recorder(owner, KEY), Recorder(other, KEY)
        await listening(other)
        for node in (owner, other):
            hints = cluster_of(node).hints
            cluster_of(node).hints = LossyHints(hints, share, Random(1))
        replies = [
            await node.ask(KEY, f"message {number}", timeout=SECONDS)
            for number, node in enumerate([owner, other, owner, other])
        ]
        assert [reply.text for reply in replies] == [f"a: message {n}" for n in range(4)]
        await equal(cluster, here, there, ends=4)
        assert there.ends == here.ends == replies


async def test_a_stream_elsewhere_is_the_stream_of_the_owner(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        owner, other = await two_nodes(cluster)
        here, events = Recorder(owner, KEY), []
        for number in range(3):
            async with other.stream(KEY, f"message {number}", timeout=SECONDS) as stream:
                events += [event async for event in stream]
        texts = "".join(event.text for event in events if isinstance(event, TextDelta))
        said = [each.event for each in here.envelopes]
        assert texts == "".join(event.text for event in said if isinstance(event, TextDelta))
        tools = [event for event in events if isinstance(event, ToolStarted | ToolFinished)]
        assert tools == [event for event in said if isinstance(event, ToolStarted | ToolFinished)]
        assert sum(isinstance(event, TurnStarted) for event in events) == 3


async def test_a_follower_that_joins_late_learns_what_was_said(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        said = trio.Event()
        gate = trio.Event()

        def agent(name):
            async def answer(turn):
                turn.emit(TextDelta("before "))
                said.set()
                await gate.wait()
                turn.emit(TextDelta("after"))
                return "before after"

            return answer

        owner, other = await two_nodes(cluster, agent)
        receipt = await owner.submit(inbound(KEY, 1))
        await said.wait()
        waiting = await owner.submit(inbound(KEY, 2))
        async with trio.open_nursery() as nursery:
            first, second = Recorder(other, KEY, follow=True), None
            nursery.start_soon(first.read)
            await cluster.until(lambda: first.text == "before ")
            second = Recorder(other, KEY, follow=True)
            nursery.start_soon(second.read)
            await cluster.until(lambda: second.text == "before ")
            progress = other.api.progress(KEY)
            assert (progress.turn_id, progress.text) == (receipt.inbox_id, "before ")
            assert other.admin.running_turns()[KEY].text == "before "
            gate.set()
            await cluster.until(lambda: len(first.ends) == len(second.ends) == 2)
            for each in (first, second):
                each.subscription.close()
        for each in (first, second):
            kinds = [type(envelope.event) for envelope in each.envelopes]
            waits = [e.event.inbox_id for e in each.envelopes if type(e.event) is MessageWaiting]
            assert waits == [receipt.inbox_id, waiting.inbox_id]
            assert kinds.count(TurnStarted) == 2
        assert other.api.progress(KEY) is None


async def test_a_reply_needs_no_hint(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        owner, other = await two_nodes(cluster)
        for node in (owner, other):
            cluster_of(node).hints = LossyHints(cluster_of(node).hints, 1, Random(1))
        there = Recorder(other, KEY)
        reply = await other.ask(KEY, "hello", timeout=SECONDS)
        assert reply.text == "a: hello"
        async with other.stream(KEY, "again", timeout=SECONDS) as stream:
            events = [event async for event in stream]
        assert events[-1].reply.text == "a: again"
        receipt = await other.submit(inbound(KEY, 3))
        assert (await other.wait(receipt, timeout=SECONDS)).text == "a: message 3"
        await cluster.until(lambda: len(there.ends) == 3)


async def test_an_event_of_a_megabyte_arrives_whole(postgres_url):
    def agent(name):
        async def answer(turn):
            turn.emit(TextDelta(LONG))
            return LONG

        return answer

    async with on_cluster(postgres_url) as cluster:
        owner, other = await two_nodes(cluster, agent)
        here, there = Recorder(owner, KEY), Recorder(other, KEY)
        await listening(other)
        assert (await other.ask(KEY, "hello", timeout=SECONDS)).text == LONG
        await equal(cluster, here, there, ends=1)
        assert there.text == LONG


async def test_two_hundred_listeners(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        owner, other = await cluster.start("a", "b")
        keys = [f"key {number}" for number in range(200)]
        recorders = {key: Recorder(other, key) for key in keys}
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(owner.ask, key, f"to {key}")
        await cluster.until(lambda: all(each.ends for each in recorders.values()))
        for key, recorder in recorders.items():
            [reply] = recorder.ends
            assert reply.text in {f"a: to {key}", f"b: to {key}"}
        for each in recorders.values():
            each.subscription.close()
        count = "SELECT count(*) FROM listeners"
        await cluster.until(lambda: cluster.sql(count) == [(0,)])


async def test_events_outside_of_turns_reach_other_nodes(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        owner, other = await two_nodes(cluster)
        await owner.ask(KEY, "hello")
        here, there = Recorder(owner, KEY), Recorder(other, KEY)
        await listening(other)
        await owner.conversation(KEY).set_title("A title")
        await owner.post(KEY, "news")
        await owner.conversation(KEY).new()
        await cluster.until(lambda: len(there.events) == 3)
        assert there.events == here.events
        assert isinstance(there.events[0].event, TitleChanged)


async def test_a_node_that_drains_waits_for_the_replies_of_others(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        [owner] = await cluster.start("a")
        gate = cluster.gates["a"] = trio.Event()
        replies = []

        async def ask(other):
            replies.append(await other.ask(KEY, "hello"))

        async with trio.open_nursery() as nursery:
            async with cluster.open("b") as other:
                await cluster.all_know(owner, other)
                await owned_by(owner)
                nursery.start_soon(ask, other)
                await cluster.until(lambda: cluster.turns)
                nursery.start_soon(other.drain)
                await cluster.until(
                    lambda: cluster_of(owner).nodes[cluster_of(other).node].draining
                )
                gate.set()
        assert [reply.text for reply in replies] == ["a: hello"]


async def test_listeners_go_on_when_a_conversation_is_handed_over(postgres_url):
    """Its node ends: the others serve it, and a listener on any of them hears all turns."""
    async with on_cluster(postgres_url) as cluster:
        b, c = await cluster.start("b", "c")
        async with cluster.open("a") as a:
            await cluster.all_know(a, b, c)
            await owned_by(a)
            recorders = [Recorder(b, KEY), Recorder(c, KEY)]
            assert (await b.ask(KEY, "one", timeout=SECONDS)).text == "a: one"
            await cluster.until(lambda: all(each.ends for each in recorders))
        await cluster.all_know(b, c)
        reply = await b.ask(KEY, "two", timeout=SECONDS)
        third = await c.ask(KEY, "three", timeout=SECONDS)
        await cluster.until(lambda: all(len(each.ends) == 3 for each in recorders))
        for each in recorders:
            assert [end.text for end in each.ends] == ["a: one", reply.text, third.text]
            assert len(each.started) == 3
