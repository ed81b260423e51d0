"""The event bus: order, what a slow subscriber loses, and an outcome for every waiting caller."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, strategies as st
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from hermes.actors.event_bus import BEHIND, MAX_BUFFERED, EventBus, Subscription
from hermes.errors import ActorStopped, AlreadyAnswered
from hermes.events import (
    MessageWaiting,
    Notice,
    ReasoningDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Inbound, InboxRow, Message, MessageOutcome, Receipt, Reply, Source

REPLY = Reply(text="hi", session_id="s", turn_id=7)
RECEIPT = Receipt(1, "k", "s", 1, 0.0)


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
    bus.publish("k", 1, Notice("c"))
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


TEXTS = st.text("ab", min_size=1, max_size=2)
EVENTS = st.one_of(
    st.builds(TextDelta, TEXTS, st.sampled_from([False, False, True])),
    st.builds(ReasoningDelta, TEXTS),
    st.builds(Notice, TEXTS),
)


def flattened(events):
    """Join adjacent deltas of the same kind, as a reader would."""
    found = []
    for event in events:
        restart = isinstance(event, TextDelta) and event.restart
        if isinstance(event, Notice) or restart or not found or type(found[-1]) is not type(event):
            found.append(event)
        else:
            found[-1] = replace(found[-1], text=found[-1].text + event.text)
    return found


@given(st.lists(st.tuples(st.sampled_from("xy"), EVENTS, st.booleans()), max_size=30))
async def test_a_slow_reader_gets_the_same_text_in_the_same_order(steps):
    bus, got = EventBus([].append), []
    subscription = bus.subscribe()
    for _ in range(BEHIND - 5):  # some of the runs reach the bound
        bus.publish("other", 1, Notice("unread"))
    for key, event, read in steps:
        bus.publish(key, 1, event)
        if read and subscription._events:
            got.append(await anext(subscription))
    got += await received(subscription)
    for key in "xy":
        sent = [event for k, event, _ in steps if k == key]
        assert flattened(each.event for each in got if each.session_key == key) == flattened(sent)
    assert subscription.lost == 0


async def test_unread_deltas_take_the_place_of_one_event():
    bus = EventBus([].append)
    subscription = bus.subscribe()
    for _ in range(5 * MAX_BUFFERED):
        for key in ("k", "other"):
            bus.publish(key, 1, TextDelta("x"))
    assert len(subscription._events) == BEHIND
    found = await received(subscription)
    for key in ("k", "other"):
        text = "".join(each.event.text for each in found if each.session_key == key)
        assert text == "x" * 5 * MAX_BUFFERED


@pytest.mark.parametrize("more", [1, 50])
async def test_if_too_many_events_wait_the_oldest_are_dropped_but_no_text_and_no_end(more):
    bus = EventBus([].append)
    subscription = bus.subscribe()
    bus.publish("k", 1, TextDelta("text"))
    bus.publish("k", 1, TurnEnded(REPLY))
    for number in range(MAX_BUFFERED - 2 + more):
        bus.publish("k", 2, Notice(f"{number}"))
    found = [each.event for each in await received(subscription)]
    assert subscription.lost == more
    assert found[:3] == [TextDelta("text"), TurnEnded(REPLY), Notice(f"{more}")]
    assert len(found) == MAX_BUFFERED


async def test_if_only_texts_and_ends_wait_an_end_is_dropped_last():
    bus = EventBus([].append)
    subscription = bus.subscribe()
    for turn in range(MAX_BUFFERED):
        bus.publish("k", turn, TextDelta("x") if turn % 2 else TurnEnded(REPLY))
    for turn in range(MAX_BUFFERED // 2 + 3):
        bus.publish("other", turn, TurnEnded(REPLY))
    found = [each.event for each in await received(subscription)]
    assert found == [TurnEnded(REPLY)] * MAX_BUFFERED
    assert subscription.lost == MAX_BUFFERED // 2 + 3


async def test_text_that_alternates_with_reasoning_is_not_lost():
    bus = EventBus([].append)
    subscription = bus.subscribe()
    start = TurnStarted(1, "s", None, (1,))
    bus.publish("k", 1, start)
    for number in range(3 * MAX_BUFFERED):
        bus.publish("k", 1, TextDelta(f"{number} "))
        bus.publish("k", 1, ReasoningDelta("hm"))
    found = [each.event for each in await received(subscription)]
    assert found[0] == start
    text = "".join(event.text for event in found if isinstance(event, TextDelta))
    assert text == "".join(f"{number} " for number in range(3 * MAX_BUFFERED))
    assert len(found) <= MAX_BUFFERED
    assert subscription.lost > 0


async def test_a_subscription_for_one_message_ends_when_that_fails():
    bus = EventBus([].append)
    request = bus.expect(row(1).inbound.identity)
    subscription = bus.subscribe("k", until=request)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(received_until_end := Reading(subscription).run)
        await wait_all_tasks_blocked()
        bus.fail(row(1).inbound, AlreadyAnswered("elsewhere", RECEIPT))
    assert received_until_end.__self__.ended


class Reading:
    """Reads a subscription to its end."""

    def __init__(self, subscription):
        self.subscription = subscription
        self.ended = False

    async def run(self):
        async for _ in self.subscription:
            pass
        self.ended = True


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


async def test_a_closed_message_is_settled_for_those_who_still_wait():
    bus = EventBus([].append)
    inbound = row(1).inbound
    caller = bus.expect(inbound.identity)
    repeated = bus.expect((*inbound.identity[:3], RECEIPT.session_key))
    subscription = bus.subscribe()
    outcome = MessageOutcome(RECEIPT, inbound.identity, "done", reply=REPLY)
    bus.settle(outcome, REPLY)
    assert (await caller.wait(), await repeated.wait(), bus.waiting) == (REPLY, REPLY, 0)
    bus.settle(outcome, REPLY)  # nobody waits: it was published
    assert len(await received(subscription)) == 1


async def test_a_failed_message_fails_its_callers_only():
    bus = EventBus([].append)
    caller, other = bus.expect(row(1).inbound.identity), bus.expect(row(2).inbound.identity)
    bus.fail(row(1).inbound, AlreadyAnswered("elsewhere", RECEIPT))
    bus.fail(row(3).inbound, AlreadyAnswered("elsewhere", RECEIPT))
    with pytest.raises(AlreadyAnswered):
        await caller.wait()
    assert not other.answered


async def test_a_submitted_message_is_also_known_in_the_scope_of_its_conversation():
    bus = EventBus([].append)
    submitted = row(1)
    repeated = replace(submitted.inbound, per_conversation=True)
    caller = bus.expect(repeated.identity)
    other = bus.expect(replace(repeated, session_key="other").identity)
    bus.reply([submitted], REPLY)
    assert await caller.wait() == REPLY
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
    callers = [bus.expect(("p", "", str(number), "")) for number in range(2)]
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


# Followers


async def test_a_follower_gets_what_it_missed_before_what_comes():
    bus = EventBus([].append)
    bus.publish("k", 1, TextDelta("a"))
    joined = Subscription(bus, "k", announced=MessageWaiting)
    with bus.follow("k", joined, [(1, TextDelta("a"))]) as follower:
        assert bus.followers == 1
        bus.publish("k", 1, TextDelta("b"))
        bus.publish("other", 2, TextDelta("c"))
        bus.announce("k", MessageWaiting(Message("user", "hello"), 3))
        bus.announce("other", MessageWaiting(Message("user", "hello"), 4))
    assert bus.followers == 0
    follower.close()
    assert bus.followers == 0
    found = [(each.seq, each.turn_id, each.event) async for each in follower]
    assert found == [
        (1, 1, TextDelta("a")),
        (2, 1, TextDelta("b")),
        (3, None, MessageWaiting(Message("user", "hello"), 3)),
    ]
