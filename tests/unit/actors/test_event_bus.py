"""The event bus: order, what a slow subscriber loses, and an outcome for every waiting caller."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import wait_all_tasks_blocked

from hermes.actors.event_bus import MAX_BUFFERED, EventBus
from hermes.errors import ActorStopped, AlreadyAnswered
from hermes.events import Notice, ReasoningDelta, TextDelta, TurnEnded
from hermes.messages import Inbound, InboxRow, Reply, Source

REPLY = Reply(text="hi", session_id="s", turn_id=7)


def row(inbox_id, platform="embedded"):
    return InboxRow(inbox_id, Inbound("k", f"e{inbox_id}", "hello", Source(platform)), 0, 0.0)


async def received(subscription):
    """Close a subscription, and return what it still has."""
    subscription.close()
    return [envelope async for envelope in subscription]


async def test_events_arrive_in_order_numbered_without_gaps():
    bus = EventBus([].append)
    bus.publish("k", None, Notice("before anybody listened"))
    everything, one = bus.subscribe(), bus.subscribe("k")
    bus.publish("k", 1, TextDelta("a"))
    bus.publish("other", 2, Notice("b"))
    bus.publish("k", 1, TextDelta("c"))
    found = await received(everything)
    assert [(each.seq, each.session_key, each.turn_id) for each in found] == [
        (2, "k", 1), (3, "other", 2), (4, "k", 1),
    ]  # fmt: skip
    assert [each.seq for each in await received(one)] == [2, 4]
    bus.publish("k", None, Notice("after everybody left"))


async def test_deltas_can_be_left_out():
    bus = EventBus([].append)
    subscription = bus.subscribe(deltas=False)
    for event in (TextDelta("a"), ReasoningDelta("b"), Notice("c")):
        bus.publish("k", 1, event)
    assert [each.event for each in await received(subscription)] == [Notice("c")]


def test_a_callback_is_called_at_once_until_it_is_closed():
    bus, found = EventBus([].append), []
    with bus.subscribe("k", found.append) as subscription:
        bus.publish("k", 1, Notice("a"))
        bus.publish("other", 1, Notice("b"))
        assert [each.event for each in found] == [Notice("a")]
    bus.publish("k", 1, Notice("c"))
    assert len(found) == 1
    subscription.close()  # a second time does nothing


def test_a_callback_may_end_its_own_subscription():
    bus, found = EventBus([].append), []

    def once(envelope):
        found.append(envelope)
        subscription.close()

    subscription = bus.subscribe(callback=once)
    other = bus.subscribe()
    bus.publish("k", 1, Notice("a"))
    bus.publish("k", 1, Notice("b"))
    assert len(found) == 1
    assert len(other._events) == 2


KINDS = {"delta": TextDelta("x"), "notice": Notice("n"), "end": TurnEnded(REPLY)}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 700)), max_size=5))
def test_a_slow_subscriber_loses_deltas_first_and_the_ends_of_turns_last(runs):
    bus = EventBus([].append)
    subscription = bus.subscribe()
    sent = [kind for kind, count in runs for _ in range(count)]
    for kind in sent:
        bus.publish("k", 1, KINDS[kind])
    kept = list(subscription._events)
    assert len(kept) == min(len(sent), MAX_BUFFERED)
    assert subscription.lost == len(sent) - len(kept)
    numbers = [each.seq for each in kept]
    assert numbers == sorted(set(numbers))
    seen = set(numbers)
    lost = [KINDS[kind] for seq, kind in enumerate(sent, 1) if seq not in seen]
    if sent.count("end") + sent.count("notice") <= MAX_BUFFERED:
        assert set(lost) <= {KINDS["delta"]}
    if sent.count("end") < MAX_BUFFERED:
        assert KINDS["end"] not in lost


async def test_a_waiting_subscriber_is_woken_by_an_event_and_by_the_end():
    bus, found = EventBus([].append), []

    async def read(subscription):
        found.extend([envelope.event async for envelope in subscription])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, bus.subscribe())
        await wait_all_tasks_blocked()
        bus.publish("k", 1, Notice("a"))
        await wait_all_tasks_blocked()
        bus.close(ActorStopped("the end"))
    assert found == [Notice("a")]


async def test_a_reply_reaches_all_callers_of_its_messages_and_ends_the_turn():
    replies = []
    bus = EventBus(replies.append)
    rows = [row(1, "telegram"), row(2, "telegram")]
    callers = [bus.expect(each.inbound.identity) for each in (rows[0], rows[0], rows[1])]
    other = bus.expect(row(3).inbound.identity)
    subscription = bus.subscribe()
    assert bus.waiting == 3
    bus.reply(rows, REPLY, dropped_by=9)
    assert [await caller.wait() for caller in callers] == [REPLY] * 3
    assert not other.answered
    assert (bus.waiting, replies) == (1, [REPLY])
    (ended,) = await received(subscription)
    assert (ended.session_key, ended.turn_id) == ("k", 7)
    assert ended.event == TurnEnded(REPLY, (1, 2), "telegram", 9)


async def test_a_failed_message_fails_its_callers_only():
    bus = EventBus([].append)
    caller, other = bus.expect(("p", "", "1")), bus.expect(("p", "", "2"))
    bus.fail(("p", "", "1"), AlreadyAnswered("elsewhere"))
    bus.fail(("p", "", "unknown"), AlreadyAnswered("elsewhere"))
    with pytest.raises(AlreadyAnswered):
        await caller.wait()
    assert not other.answered


def test_a_caller_that_left_is_forgotten():
    bus = EventBus([].append)
    identity = row(1).inbound.identity
    first, second = bus.expect(identity), bus.expect(identity)
    bus.forget(identity, first)
    bus.forget(identity, first)
    assert bus.waiting == 1
    bus.reply([row(1)], REPLY)
    assert not first.answered
    assert second.answered
    bus.forget(identity, second)
    assert bus.waiting == 0


async def test_closing_fails_every_caller_with_its_own_error_and_ends_subscriptions():
    bus = EventBus([].append)
    callers = [bus.expect(("p", "", str(number))) for number in range(2)]
    subscription = bus.subscribe()
    error = ActorStopped("the end")
    bus.close(error)
    found = []
    for caller in callers:
        with pytest.raises(ActorStopped, match="the end") as raised:
            await caller.wait()
        found.append(raised.value)
    assert len({*map(id, found), id(error)}) == 3
    assert [each async for each in subscription] == []
    assert bus.waiting == 0


async def test_a_subscription_can_be_closed_in_an_async_block():
    bus = EventBus([].append)
    subscription = bus.subscribe()
    bus.publish("k", 1, Notice("a"))
    await subscription.aclose()
    bus.publish("k", 1, Notice("b"))
    assert [each.event async for each in subscription] == [Notice("a")]
