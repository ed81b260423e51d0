"""`follow`: a reader that joins late learns what one learned that was there from the start."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter

import pytest
import trio
from hypothesis import given, settings, strategies as st

from hermes import Config, open_runtime
from hermes.actors.session.inbox import CAPACITY
from hermes.agents import blocking_agent
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import ContextOverflow
from hermes.events import (
    MessageWaiting,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Inbound, ToolCall
from hermes.testing import DeterministicCompressor, inline, inspect
from tests.support.folders import quick_folder
from tests.support.held_turns import HeldAgent, held_runtime
from tests.support.runtime import SECONDS, with_threads


def received(subscription):
    """Close a subscription, and return what it has received."""
    subscription.close()

    async def read():
        return [envelope async for envelope in subscription]

    return read()


def moments(envelopes):
    """Each event with its turn, in short."""
    return [(each.turn_id, _short(each.event)) for each in envelopes]


def _short(event):
    match event:
        case MessageWaiting(message, _):
            return f"waits: {message.content}"
        case TextDelta(text, restart):
            return f"discard: {text}" if restart else text
        case Steered(message):
            return f"steered: {message.content}"
        case TurnEnded(reply):
            return f"reply: {reply.text}"
        case _:
            return type(event)


# The beginning


class Joins(trio.abc.Instrument):
    """Starts a follower after every step of every task, or of those that are asked for."""

    def __init__(self, runtime, when=lambda: True):
        self.runtime = runtime
        self.when = when
        self.followers = []

    def after_task_step(self, task):
        if self.when():
            self.followers.append(self.runtime.follow("k"))


async def test_a_quiet_conversation_begins_with_nothing(start):
    async with start() as runtime:
        with runtime.follow("k") as never_used:
            pass
        await runtime.ask("k", "one")
        with runtime.follow("k") as idle:
            pass
        assert await received(never_used) == await received(idle) == []


async def test_a_follower_begins_with_what_waits_and_with_the_text_so_far(start):
    async def speak(turn):
        turn.emit(TextDelta("Hello "))
        turn.emit(TextDelta("there"))
        spoke.set()
        await go_on.wait()
        turn.emit(TextDelta("!"))
        return "Hello there!"

    spoke, go_on = trio.Event(), trio.Event()
    async with held_runtime(start, HeldAgent(turn0=speak)) as here:
        await here.send("one")
        await spoke.wait()
        await here.send("two")
        await here.send("three")
        with here.runtime.conversation("k").follow() as follower:
            go_on.set()
            await here.agent.wait_started(1)
            here.agent.release(1)
            await inspect(here.runtime).wait_idle("k")
        events = await received(follower)
    assert moments(events) == [
        (None, "waits: one"), (None, "waits: two"), (None, "waits: three"),
        (1, TurnStarted), (1, "Hello there"), (1, "!"), (1, "reply: Hello there!"),
        (2, TurnStarted), (2, "reply: answer 1"),
    ]  # fmt: skip
    assert events[0].event.inbox_id == 1
    assert events[3].event.inbox_ids == (1,)


async def test_messages_that_arrive_later_are_announced_to_followers_only(start):
    async with held_runtime(start) as here:
        with (
            here.runtime.subscribe("k") as subscriber,
            here.runtime.follow("k") as follower,
            here.runtime.follow("other") as stranger,
        ):
            await here.send("one")
            await here.agent.wait_started(0)
            await here.send("two")
            await here.send("/status")
        events = await received(follower)
        assert moments(events)[:2] == [(None, "waits: one"), (1, TurnStarted)]
        waiting = [each.event for each in events if isinstance(each.event, MessageWaiting)]
        assert [event.message.content for event in waiting] == ["one", "two"]
        assert MessageWaiting not in {type(each.event) for each in await received(subscriber)}
        assert await received(stranger) == []
        await here.send("three")
        here.agent.release(0, 1)


async def test_the_numbers_of_other_events_have_no_gaps(start):
    async with start() as runtime:
        with runtime.follow("k") as follower, runtime.subscribe() as subscriber:
            await runtime.ask("k", "one")
            await runtime.ask("k", "two")
        numbers = [each.seq for each in await received(subscriber)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        followed = [each.seq for each in await received(follower)]
        assert followed == sorted(followed)
        assert set(numbers) <= set(followed)


async def test_steering_input_waits_until_the_agent_takes_it(start):
    async def speak(turn):
        turn.emit(TextDelta("a"))
        while not (steered := turn.steered()):
            await trio.lowlevel.checkpoint()
        taken.set()
        await go_on.wait()
        turn.emit(TextDelta("b"))
        return f"ab {steered[0].content}"

    taken, go_on = trio.Event(), trio.Event()
    async with held_runtime(start, HeldAgent(turn0=speak)) as here:
        await here.send("one")
        await here.runtime.conversation("k").steer("left")
        await taken.wait()
        with here.runtime.follow("k") as follower:
            go_on.set()
            await inspect(here.runtime).wait_idle("k")
        assert moments(await received(follower)) == [
            (None, "waits: one"), (None, "waits: left"), (1, TurnStarted), (1, "steered: left"),
            (1, "a"), (1, "b"), (1, "reply: ab left"),
        ]  # fmt: skip


async def test_text_that_a_restart_has_discarded_stays_discarded(start):
    async def speak(turn):
        turn.emit(TextDelta("wrong"))
        turn.emit(TextDelta(" …", restart=True))
        turn.emit(TextDelta("rig"))
        spoke.set()
        await go_on.wait()
        turn.emit(TextDelta("ht"))
        return "right"

    spoke, go_on = trio.Event(), trio.Event()
    async with held_runtime(start, HeldAgent(turn0=speak)) as here:
        await here.send("one")
        await spoke.wait()
        with here.runtime.follow("k") as follower:
            go_on.set()
            await inspect(here.runtime).wait_idle("k")
        assert moments(await received(follower))[2:] == [
            (1, "discard: wrong …"), (1, "rig"), (1, "ht"), (1, "reply: right"),
        ]  # fmt: skip


async def test_a_follower_learns_of_the_tools_that_run(start):
    async def work(turn):
        for name in ("one", "two", "three"):
            turn.emit(ToolStarted(ToolCall(name, "look", '{"key": "key-7"}')))
        turn.emit(TextDelta("Wait"))
        turn.emit(ToolFinished("two", "found"))
        working.set()
        await go_on.wait()
        turn.emit(ToolFinished("three", "found"))
        turn.emit(ToolFinished("one", "found"))
        return "done"

    working, go_on = trio.Event(), trio.Event()
    agent, redact = HeldAgent(turn0=work), lambda text: text.replace("key-7", "***")
    async with held_runtime(start, agent, redact=redact) as here:
        await here.send("one")
        await working.wait()
        with here.runtime.follow("k") as follower:
            go_on.set()
            await inspect(here.runtime).wait_idle("k")
        _, _, text, *tools, _ = [each.event for each in await received(follower)]
    assert text == TextDelta("Wait")
    assert tools == [
        *(ToolStarted(ToolCall(name, "look", '{"key": "***"}')) for name in ("one", "three")),
        *(ToolFinished(name, "found") for name in ("three", "one")),
    ]


async def test_a_command_that_waits_is_not_announced(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started(0)
        await here.send("/undo")
        with here.runtime.follow("k") as follower:
            pass
        assert moments(await received(follower)) == [(None, "waits: one"), (1, TurnStarted)]
        here.agent.release(0)


async def test_a_discarded_turn_waits_again(start_with_store):
    agent = HeldAgent()
    with trio.fail_after(SECONDS):
        async with start_with_store(build=lambda _: agent) as (store, runtime):
            await runtime.submit(Inbound("k", "e1", "one"))
            await agent.wait_started(0)
            await store.new_session("k")  # as another process does
            actor = inspect(runtime).actor("k")
            joins = Joins(runtime, lambda: actor.runner.latest.discarded)
            trio.lowlevel.add_instrument(joins)
            agent.release(0)
            await agent.wait_started(1)
            trio.lowlevel.remove_instrument(joins)
            assert joins.followers, "nobody joined between the two attempts"
            for follower in joins.followers:
                shown = moments(await received(follower))
                assert shown == [(None, "waits: one"), (1, TurnStarted)]
            agent.release(1)


async def test_steering_input_that_was_cancelled_does_not_wait_any_more(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started(0)
        await here.runtime.conversation("k").steer("left")  # the agent never takes it
        await here.send("/stop")
        await inspect(here.runtime).wait_idle("k")
        with here.runtime.follow("k") as follower:
            pass
        assert await received(follower) == []


async def test_a_follower_learns_of_messages_that_only_the_store_has(start, path):
    agent = HeldAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=agent, config=Config(drain_timeout=0)) as runtime:
            await runtime.submit(Inbound("k", "e1", "one"))
            await agent.wait_started(0)
            await runtime.submit(Inbound("k", "e2", "two"))
        agent = HeldAgent()
        async with start(agent=agent) as runtime:
            with runtime.follow("k") as follower:  # before the messages are fetched
                await agent.wait_started(0)
            agent.release(0)
            waiting = Counter(short for _, short in moments(await received(follower)))
            assert (waiting["waits: one"], waiting["waits: two"]) == (1, 1)


async def test_a_message_that_finds_the_mailbox_full_is_announced_once(start):
    async with held_runtime(start) as here:
        with here.runtime.follow("k") as follower:
            await here.send("first")
            await here.agent.wait_started(0)
            for number in range(CAPACITY + 5):
                await here.runtime.submit(Inbound("k", f"e{number}", f"{number}"))
            here.agent.release(*range(CAPACITY))
            await inspect(here.runtime).wait_idle("k")
        waiting = [short for _, short in moments(await received(follower)) if "waits" in str(short)]
        assert waiting == ["waits: first", *(f"waits: {n}" for n in range(CAPACITY + 5))]


MANY = 200


async def read(follower, count):
    """Return the next events of an open subscription."""
    return [await anext(follower) for _ in range(count)]


def waits(texts):
    return [(None, f"waits: {text}") for text in texts]


async def test_a_follower_begins_with_all_that_waits_however_much_that_is(start):
    texts = ["first", *map(str, range(MANY))]
    async with held_runtime(start, config=Config(max_queued=2 * MANY)) as here:
        with here.runtime.follow("k") as early:
            await here.send("first")
            await here.agent.wait_started(0)
            for number in range(MANY):
                await here.runtime.submit(Inbound("k", f"e{number}", f"{number}"))
            with here.runtime.follow("k") as late:
                expected = [*waits(texts), (1, TurnStarted)]
                assert moments(await read(late, len(expected))) == expected
                started = waits(texts)
                started.insert(1, (1, TurnStarted))
                assert moments(await read(early, len(started))) == started
                here.agent.release(*range(MANY))
                await inspect(here.runtime).wait_idle("k")
        rest = moments(await received(early))
        assert rest == moments(await received(late))
        assert not [short for _, short in rest if "waits" in str(short)]


async def test_messages_that_arrive_during_the_first_page_are_announced_in_order(start):
    async with held_runtime(start, config=Config(max_queued=3 * MANY)) as here:
        await here.send("first")
        await here.agent.wait_started(0)
        for number in range(MANY):
            await here.runtime.submit(Inbound("k", f"e{number}", f"{number}"))
        with here.runtime.follow("k") as follower:
            begin = await read(follower, 1)
            for number in range(MANY, 2 * MANY):
                await here.runtime.submit(Inbound("k", f"e{number}", f"{number}"))
            events = moments([*begin, *await read(follower, 2 * MANY + 1)])
            events.remove((1, TurnStarted))
            assert events == waits(["first", *map(str, range(2 * MANY))])
            here.agent.release(*range(MANY))
            await inspect(here.runtime).wait_idle("k")
        rest = moments(await received(follower))
        assert not [short for _, short in rest if "waits" in str(short)]


async def test_after_a_restart_a_follower_begins_with_all_that_waits(start):
    agent = HeldAgent()
    config = Config(drain_timeout=0, max_queued=2 * MANY, merge_messages=False)
    with trio.fail_after(SECONDS):
        async with start(agent=agent, config=config) as runtime:
            for number in range(MANY):
                await runtime.submit(Inbound("k", f"e{number}", f"{number}"))
        agent = HeldAgent()
        async with start(agent=agent, config=config) as runtime:
            early = runtime.follow("k")  # before the messages are fetched
            expected = waits(map(str, range(MANY)))
            assert moments(await read(early, MANY)) == expected
            status = await runtime.conversation("k").status()
            assert status.waiting + status.busy == MANY
            await agent.wait_started(0)
            with runtime.follow("k") as late:
                expected.append((1, TurnStarted))
                assert moments(await read(late, MANY + 1)) == expected
            assert moments(await received(early)) == [(1, TurnStarted)]
            agent.release(0)


async def test_a_message_that_only_the_store_has_is_announced_before_it_is_withdrawn(start):
    async with held_runtime(start, config=Config(max_queued=2 * MANY)) as here:
        await here.send("first")
        await here.agent.wait_started(0)
        for number in range(MANY):
            last = await here.runtime.submit(Inbound("k", f"e{number}", f"{number}"))
        with here.runtime.follow("k") as follower:
            assert await here.runtime.withdraw(last)
            events = moments(await read(follower, MANY + 3))
            assert events[: MANY + 1] == [
                *waits(["first", *map(str, range(MANY - 1))]),
                (1, TurnStarted),
            ]
            assert events[MANY + 1 :] == [*waits([str(MANY - 1)]), (last.inbox_id, "reply: ")]
        here.agent.release(*range(MANY))


async def test_a_message_that_is_answered_while_it_is_read_is_announced_once(start_proxy):
    agent = HeldAgent()

    async def open_inbox(real, *args, **options):
        await runtime.submit(Inbound("k", "e1", "one"))
        await agent.wait_started(0)
        rows = await real(*args, **options)
        agent.release(0)
        await inspect(runtime).wait_idle("k")
        return rows

    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, open_inbox=open_inbox) as runtime:
            with runtime.follow("k") as follower:
                events = moments(await read(follower, 3))
    assert events == [(None, "waits: one"), (1, TurnStarted), (1, "reply: answer 0")]
    assert await received(follower) == []


async def test_the_status_counts_all_that_waits(start):
    async with held_runtime(start, config=Config(max_queued=2 * MANY)) as here:
        chat = here.runtime.conversation("k")
        await here.send("first")
        await here.agent.wait_started(0)
        assert (await chat.status()).waiting == 0
        for number in range(MANY):
            await here.runtime.submit(Inbound("k", f"e{number}", f"{number}"))
        assert (await chat.status()).waiting == MANY
        assert f"{MANY} " in (await here.runtime.ask("k", "/status")).text
        here.agent.release(0)
        await here.agent.wait_started(1)
        assert (await chat.status()).waiting == 0
        here.agent.release(*range(MANY))


async def test_a_follower_ends_with_the_runtime(start):
    async with start() as runtime:
        follower = runtime.follow("k")
        await runtime.ask("k", "one")
    with trio.fail_after(SECONDS):
        events = [envelope async for envelope in follower]
    assert isinstance(events[-1].event, TurnEnded)


async def test_subscriptions_work_with_async_with_too(start):
    async with start() as runtime:
        async with runtime.follow("k") as follower, runtime.subscribe("k") as subscriber:
            await runtime.ask("k", "one")
        assert len(await received(follower)) == len(await received(subscriber)) + 1
        with runtime.subscribe("k") as later:
            await runtime.ask("k", "two")
        assert len(await received(follower)) == 0 < len(await received(later))


# Joining at any moment


class Reader:
    """What a program shows that follows a conversation."""

    def __init__(self, envelopes):
        self.announced = Counter()
        self.ended = []
        self._texts = {}
        self._tools = {}
        for envelope in envelopes:
            self._read(envelope.turn_id, envelope.event)

    def _read(self, turn_id, event):
        match event:
            case MessageWaiting(message, inbox_id):
                self.announced[inbox_id, message.content] += 1
            case TurnStarted():
                self._texts[turn_id] = ""
                self._tools[turn_id] = {}
            case ToolStarted(call):
                self._tools[turn_id][call.id] = call.arguments
            case ToolFinished(call_id):
                del self._tools[turn_id][call_id]
            case TextDelta(text, restart):
                self._texts[turn_id] = "" if restart else self._texts[turn_id] + text
            case TurnEnded(reply, inbox_ids):
                assert set(inbox_ids) <= {inbox_id for inbox_id, _ in self.announced}
                shown = self._texts.get(turn_id), self._tools.get(turn_id)
                self.ended.append((turn_id, *shown, reply.text, inbox_ids))


TOOLS = [ToolStarted(ToolCall(name, "look", '{"key": "key-7"}')) for name in "xy"]
PIECES = st.lists(
    st.sampled_from(
        [TextDelta("a"), TextDelta("key-7"), TextDelta("…", restart=True), *TOOLS, "finish", "wait"]
    ),
    max_size=8,
)
TURNS = st.lists(st.tuples(PIECES, st.sampled_from(["reply", "fail", "overflow"])), max_size=3)


class Script:
    """An agent that plays one entry per turn."""

    def __init__(self, turns):
        self._turns = iter(turns)

    async def run(self, turn):
        pieces, end = next(self._turns, ([], "reply"))
        running = []
        for piece in pieces:
            if piece == "wait":
                turn.steered()
                await trio.lowlevel.checkpoint()
            elif piece == "finish":
                if running:
                    turn.emit(ToolFinished(running.pop(0).call.id, "found"))
            elif piece not in running:
                running += [piece] * isinstance(piece, ToolStarted)
                turn.emit(piece)
        if end == "fail":
            raise OSError("not now")
        if end == "overflow":
            raise ContextOverflow("too long")
        return "done"


@settings(max_examples=25, deadline=None)
@given(turns=TURNS, redacted=st.booleans(), steered=st.booleans())
def test_a_follower_that_joins_at_any_moment_shows_the_same_answer(turns, redacted, steered):
    async def main(path):
        async with open_runtime(
            path,
            agent=Script(turns),
            redact=(lambda text: text.replace("key-7", "***")) if redacted else None,
            compressor=DeterministicCompressor(),
            open_worker=inline(),
        ) as runtime:
            await runtime.conversation("k").set_title("Plans")  # work after the first turn
            first = runtime.follow("k")
            joins = Joins(runtime)
            trio.lowlevel.add_instrument(joins)
            when_busy = "steer" if steered else "queue"
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    inbound = Inbound("k", f"e{number}", f"m{number}", when_busy=when_busy)
                    await runtime.submit(inbound)
                nursery.start_soon(runtime.ask, "k", "last")
            trio.lowlevel.remove_instrument(joins)
            whole = Reader(await received(first))
            assert len(whole.announced) == 4
            assert set(whole.announced.values()) == {1}
            assert len(joins.followers) > 20
            for follower in joins.followers:
                late = Reader(await received(follower))
                assert late.ended == whole.ended[len(whole.ended) - len(late.ended) :]
                assert late.announced <= whole.announced
                answered = {inbox_id for ended in late.ended for inbox_id in ended[-1]}
                assert {inbox_id for inbox_id, _ in late.announced} == answered

    with quick_folder() as folder:
        trio.run(main, folder / "state.db")


async def test_a_follower_that_reads_from_any_moment_on_shows_the_same_answer(start):
    """Here the open messages are read from the store while turns end."""

    async def follow_along(envelopes):
        with runtime.follow("k") as follower:
            followers.append(follower)
            async for envelope in follower:
                envelopes.append(envelope)

    async def join(task_status):
        task_status.started()
        while len(shown) < 60:
            shown.append([])
            tasks.start_soon(follow_along, shown[-1])
            await trio.lowlevel.checkpoint()

    shown, followers = [], []
    pieces = [TextDelta("a"), *TOOLS, "wait", "finish", TextDelta("b"), "wait"]
    agent, config = Script([(pieces, "reply")] * 20), Config(merge_messages=False, max_queued=200)
    with trio.fail_after(SECONDS):
        async with start(agent=agent, config=config) as runtime, trio.open_nursery() as tasks:
            first = runtime.follow("k")
            await tasks.start(join)
            async with trio.open_nursery() as asking:
                for number in range(20):
                    asking.start_soon(runtime.ask, "k", f"m{number}")
            for follower in followers:
                follower.close()
        whole = Reader(await received(first))
        assert len(whole.announced) == len(whole.ended) == 20
        for late in map(Reader, shown):
            assert late.ended == whole.ended[len(whole.ended) - len(late.ended) :]
            answered = {inbox_id for ended in late.ended for inbox_id in ended[-1]}
            assert {inbox_id for inbox_id, _ in late.announced} == answered
            assert set(late.announced.values()) <= {1}
        assert len({len(Reader(envelopes).ended) for envelopes in shown}) > 1


# All hosts


async def hold(turn):
    turn.emit(TextDelta("so "))
    turn.emit(TextDelta("far"))
    if turn.text == "one":
        await turn.spent()  # any checkpoint
    return "so far"


EXPECTED = ["waits: one", TurnStarted, "so ", "far", "reply: so far"]


@with_threads
@pytest.mark.parametrize("of_conversation", [True, False])
async def test_follow_on_trio(start, of_conversation):
    async with start(agent=hold) as runtime:
        with follow(runtime, of_conversation=of_conversation) as follower:
            await runtime.ask("k", "one")
        assert [_short(each.event) for each in await received(follower)] == EXPECTED


def follow(runtime, *, of_conversation):
    return runtime.conversation("k").follow() if of_conversation else runtime.follow("k")


@pytest.mark.parametrize("of_conversation", [True, False])
def test_follow_in_threads(path, of_conversation):
    with start_runtime(path, agent=hold) as runtime:
        with follow(runtime, of_conversation=of_conversation) as follower:
            runtime.ask("k", "one")
        assert [_short(each.event) for each in follower] == EXPECTED
        assert follower.lost == 0


def test_a_follower_in_a_thread_begins_with_all_that_waits(path):
    def wait(turn):
        started.set()
        go_on.wait()
        return "done"

    started, go_on = threading.Event(), threading.Event()
    config = Config(max_queued=2 * MANY)
    with start_runtime(path, build_agent=blocking_agent(wait), config=config) as runtime:
        runtime.submit(Inbound("k", "first", "first"))
        started.wait()
        for number in range(MANY):
            runtime.submit(Inbound("k", f"e{number}", f"{number}"))
        assert runtime.conversation("k").status().waiting == MANY
        with runtime.follow("k") as follower:
            events = moments(itertools.islice(follower, MANY + 2))
        go_on.set()
        assert events == [*waits(["first", *map(str, range(MANY))]), (1, TurnStarted)]


@pytest.mark.parametrize("of_conversation", [True, False])
def test_follow_on_asyncio(path, of_conversation):
    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            async with follow(runtime, of_conversation=of_conversation) as follower:
                await runtime.ask("k", "one")
            events = [_short(each.event) async for each in follower]
        assert events == EXPECTED

    async def echo(turn):
        turn.emit(TextDelta("so "))
        turn.emit(TextDelta("far"))
        return "so far"

    asyncio.run(main())
