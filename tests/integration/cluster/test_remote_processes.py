"""Nodes as processes: what listeners hear when the node that serves a conversation is killed."""

from __future__ import annotations

import pytest
import trio

from hermes.errors import ActorStopped
from hermes.events import TextDelta, TurnEnded, TurnStarted
from hermes.store.cluster.placement import place
from tests.support.cluster_nodes import SECONDS, cluster_of, on_cluster, with_lease
from tests.support.remote_events import Recorder
from tests.support.talking_node import node_process


def key_for(*order):
    """Return a key that is placed on the first of these nodes; without it, on the next one."""
    left = [*range(len(order))]
    for number in range(10_000):
        key = f"key {number}"
        if all(place(key, order[at:]) == order[at] for at in left):
            return key
    raise AssertionError("no such key")


async def read(stream, events, said):
    async for event in stream:
        events.append(event)
        if isinstance(event, TextDelta):
            said.set()


@pytest.mark.parametrize("heir", ["third", "listener"])
async def test_a_stream_goes_on_with_the_next_attempt_when_the_owner_is_killed(postgres_url, heir):
    async with on_cluster(postgres_url) as cluster:
        [here] = await cluster.start("here")
        url = with_lease(postgres_url)
        async with node_process(url, "held") as owner, node_process(url, "third") as third:
            me, nodes = cluster_of(here).node, {owner.node, third.node}
            await cluster.until(lambda: nodes < set(cluster_of(here).nodes))
            after = (third.node, me) if heir == "third" else (me, third.node)
            key = key_for(owner.node, *after)
            follower, events, said = Recorder(here, key), [], trio.Event()
            with trio.fail_after(SECONDS):
                async with here.stream(key, "hello") as stream:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(read, stream, events, said)
                        await said.wait()
                        owner.kill()
            starts = [event.attempt for event in events if isinstance(event, TurnStarted)]
            assert starts == [1, 2]
            assert [type(event) for event in events if type(event) is not TextDelta] == [
                TurnStarted, TurnStarted, TurnEnded,
            ]  # fmt: skip
            assert events[1] == TextDelta("held ")
            expected = "third answers" if heir == "third" else "here: hello"
            assert stream.reply.text == expected
            await cluster.until(lambda: follower.ends)
            assert [each.event for each in follower.envelopes][:2] == events[:2]
            assert follower.ends == [stream.reply]


async def test_a_verb_says_that_it_is_unknown_whether_it_was_done(postgres_url):
    """The owner is killed while it waits for a turn to end before it begins with the verb."""
    async with on_cluster(postgres_url) as cluster:
        [here] = await cluster.start("here")
        async with node_process(with_lease(postgres_url), "held") as owner:
            await cluster.until(lambda: owner.node in cluster_of(here).nodes)
            key = key_for(owner.node, cluster_of(here).node)
            with trio.fail_after(SECONDS):
                async with here.stream(key, "hello") as stream:
                    await anext(stream)
                    async with trio.open_nursery() as nursery:
                        errors = []

                        async def new():
                            with pytest.raises(ActorStopped) as raised:
                                await here.conversation(key).new()
                            errors.append(str(raised.value))

                        nursery.start_soon(new)
                        await trio.sleep(0.2)
                        owner.kill()
                [error] = errors
                assert "it is not known whether 'new' was done" in error
                change = await here.conversation(key).switch(
                    (await here.conversation(key).status()).session_id
                )
                assert not change.changed
