"""Streams of one message, and subscriptions to events."""

from __future__ import annotations

import pytest
import trio

from hermes.errors import AlreadyAnswered, EventConflict
from hermes.events import (
    MessageAccepted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Source
from hermes.testing import (
    MemoryAdapter,
    ScriptedAgent,
    inspect,
    texts_of,
)
from tests.support.held_turns import HeldAgent, held_runtime
from tests.support.runtime import SECONDS, with_threads
from tests.support.turns import tool_starts

STEPS = [TextDelta("a"), *tool_starts("x"), ToolFinished("x", "y"), TextDelta("b"), "b"]


@with_threads
async def test_a_stream_yields_the_events_in_order_and_the_reply_last(start):
    async with start(build_agent=lambda _: ScriptedAgent([STEPS])) as runtime:
        with trio.fail_after(SECONDS):
            async with runtime.stream("k", "one") as stream:
                received = [event async for event in stream]
        started, *middle, ended = received
        assert isinstance(started, TurnStarted)
        assert middle == STEPS[:-1]
        assert isinstance(ended, TurnEnded)
        assert ended.reply == stream.reply
        assert (stream.reply.text, stream.reply.turn_id) == ("b", started.turn_id)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_stream_yields_only_events_of_its_own_turn(start):
    async with held_runtime(start) as here:
        received = {}

        async def listen(text):
            async with here.runtime.stream("k", text) as stream:
                received[text] = [event async for event in stream]

        await here.send("first")
        await here.agent.wait_started()
        here.nursery.start_soon(listen, "second")
        while len(await here.inbox()) < 2:
            pass
        here.agent.release(0)
        turn = await here.agent.wait_started(1)
        turn.emit(TextDelta("for the second"))
        here.agent.release(1)
    assert [type(event) for event in received["second"]] == [TurnStarted, TextDelta, TurnEnded]
    assert received["second"][-1].reply.turn_id == turn.turn_id


async def test_leaving_a_stream_early_does_not_stop_the_turn(start):
    async with held_runtime(start) as here:
        async with here.runtime.stream("k", "one") as stream:
            await anext(stream)
        await here.agent.wait_started()
        here.agent.release(0)
        await here.send("two")
        await here.agent.wait_started(1)
        here.agent.release(1)
    assert [text for _, text in texts_of(here.agent.turns[1].history)][:2] == ["one", "answer 0"]


@with_threads
async def test_leaving_a_stream_with_interrupt_on_exit_stops_the_turn(start):
    async with held_runtime(start) as here:
        with here.runtime.subscribe("k") as events:
            async with here.runtime.stream("k", "one", interrupt_on_exit=True) as stream:
                await anext(stream)
                await here.agent.wait_started()
            async for envelope in events:
                if isinstance(envelope.event, TurnEnded):
                    assert envelope.event.reply.status == "interrupted"
                    break


async def test_leaving_a_stream_at_once_stops_the_turn_that_is_about_to_begin(start):
    async with held_runtime(start) as here:
        for number in range(20):
            with here.runtime.subscribe("k") as events:
                async with here.runtime.stream("k", str(number), interrupt_on_exit=True):
                    pass
                async for envelope in events:
                    if isinstance(envelope.event, TurnEnded):
                        assert envelope.event.reply.status == "interrupted"
                        break


async def test_cancelling_a_stream_with_interrupt_on_exit_stops_the_turn(start):
    async with held_runtime(start) as here:
        with here.runtime.subscribe("k") as events:
            with trio.CancelScope() as scope:
                async with here.runtime.stream("k", "one", interrupt_on_exit=True) as stream:
                    await anext(stream)
                    await here.agent.wait_started()
                    scope.cancel()
                    await anext(stream)
            assert scope.cancelled_caught
            async for envelope in events:
                if isinstance(envelope.event, TurnEnded):
                    assert envelope.event.reply.status == "interrupted"
                    break


async def test_leaving_a_stream_before_its_turn_stops_no_other_turn(start):
    async with held_runtime(start) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        async with here.runtime.stream("k", "two", interrupt_on_exit=True) as stream:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(stream.__anext__)
                while len(await here.inbox()) < 2:
                    pass
                await here.settle()
                waiting.cancel_scope.cancel()
        await here.settle()
        here.agent.release(0, 1)
        assert (await first.wait()).status == "complete"


async def test_a_slow_reader_of_a_stream_gets_all_events(start):
    """Only what exceeds the buffer of a subscriber may be lost, deltas first."""
    async with start(build_agent=lambda _: ScriptedAgent([STEPS])) as runtime:
        with trio.fail_after(SECONDS), runtime.subscribe("k") as events:
            async with runtime.stream("k", "one") as stream:
                received = [await anext(stream)]
                async for envelope in events:  # the reader of the stream is busy meanwhile
                    if isinstance(envelope.event, TurnEnded):
                        break
                received += [event async for event in stream]
    assert received[1:-1] == STEPS[:-1]


async def test_a_stream_ends_even_if_a_later_turn_overflows_its_buffer(start):
    """Its own turn ended before it is read, and another one has emitted many events since."""

    async def flood(turn):
        for event in tool_starts(*(f"c{n}" for n in range(1500))):
            turn.emit(event)
        flooded.set()
        await trio.sleep_forever()

    flooded = trio.Event()
    async with held_runtime(
        start, HeldAgent(turn0=lambda turn: answer_at_once(), turn1=flood)
    ) as here:
        async with here.runtime.stream("k", "one") as stream:
            assert isinstance(await anext(stream), TurnStarted)
            await here.send("two")
            await flooded.wait()
            with trio.fail_after(2):
                *_, last = [event async for event in stream]
        assert last.reply.text == "at once"
        await here.runtime.conversation("k").interrupt()


async def answer_at_once():
    return "at once"


# Subscriptions


async def test_a_slow_subscriber_loses_no_text_and_never_the_end(start):
    async def flood(turn):
        for event in tool_starts(*(f"c{n}" for n in range(100))):
            turn.emit(event)
            for _ in range(30):
                turn.emit(TextDelta("x"))
        for n in range(100):
            turn.emit(ToolFinished(f"c{n}", "y"))
        return "the end"

    async with start(build_agent=lambda _: HeldAgent(turn0=flood)) as runtime:
        with runtime.subscribe() as events:
            reply = await runtime.ask("k", "one")
            events.close()
            received = [envelope.event async for envelope in events]
    assert len(received) <= 1000
    assert events.lost == 0
    text = "".join(event.text for event in received if isinstance(event, TextDelta))
    assert text == "x" * 3000
    kinds = [type(event) for event in received]
    assert kinds.count(ToolStarted) == kinds.count(ToolFinished) == 100
    assert isinstance(received[0], TurnStarted)
    assert received[-1] == TurnEnded(reply, (reply.turn_id,))


@with_threads
async def test_a_subscriber_to_all_events_gets_consecutive_numbers(start):
    async with start() as runtime:
        with runtime.subscribe() as everything, runtime.subscribe("b") as only_b:
            async with trio.open_nursery() as nursery:
                for n in range(10):
                    nursery.start_soon(runtime.ask, "ab"[n % 2], str(n))
            everything.close()
            only_b.close()
            received = [envelope async for envelope in everything]
            of_b = [envelope async for envelope in only_b]
    assert [envelope.seq for envelope in received] == [
        *range(received[0].seq, received[-1].seq + 1)
    ]
    assert of_b == [envelope for envelope in received if envelope.session_key == "b"]
    assert {envelope.session_key for envelope in received} == {"a", "b"}
    for key in "ab":
        ended = [
            e.event for e in received if e.session_key == key and isinstance(e.event, TurnEnded)
        ]
        assert len(ended) == len({each.reply.turn_id for each in ended})


async def test_a_subscriber_is_told_of_each_message_and_command_if_it_wants(start):
    source = Source(platform="memory", chat_id="c")
    async with start(adapters=[MemoryAdapter()]) as runtime:
        with (
            runtime.subscribe("k", messages=True) as told,
            runtime.subscribe(deltas=False, messages=True) as all_told,
            runtime.subscribe("k") as untold,
        ):
            await runtime.ask("k", "hello", source=source, event_id="e1")
            await runtime.ask("k", "/status", event_id="e2")
            await runtime.ask("other", "hello", event_id="e3")
            events = [each.event for each in told.take_ready()]
            of_all = [each.event for each in all_told.take_ready()]
            assert not any(isinstance(each.event, MessageAccepted) for each in untold.take_ready())
    accepted = [event for event in events if isinstance(event, MessageAccepted)]
    assert [(event.text, event.event_id, event.platform) for event in accepted] == [
        ("hello", "e1", "memory"),
        ("/status", "e2", "embedded"),
    ]
    ended = [event for event in events if isinstance(event, TurnEnded)]
    assert [event.inbox_ids for event in ended] == [(each.inbox_id,) for each in accepted]
    for message, end in zip(accepted, ended, strict=True):
        assert events.index(message) < events.index(end)
    assert sum(isinstance(event, MessageAccepted) for event in of_all) == 3


async def test_subscriptions_end_with_the_runtime(start):
    received = []
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            async with start() as runtime:

                async def listen():
                    received.extend(
                        [type(envelope.event) async for envelope in runtime.subscribe()]
                    )

                nursery.start_soon(listen)
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                await runtime.ask("k", "one")
    assert received == [TurnStarted, TurnEnded]


# Streams that are not entered


async def test_a_stream_does_nothing_before_it_is_entered(start):
    async with start() as runtime:
        stream = runtime.stream("k", "one")
        assert runtime.stream("k", "two") is not stream
        with pytest.raises(RuntimeError, match=r"async with runtime\.stream"):
            await anext(stream)
        assert await runtime.conversation("k").history() == []
        bus = inspect(runtime).context.bus
        assert (bus.waiting, len(bus._subscriptions)) == (0, 0)
        async with stream:
            pass
        with pytest.raises(RuntimeError, match="only once"):
            async with stream:
                pass


async def test_a_stream_whose_message_is_refused_leaves_nothing_behind(start):
    async with start() as runtime:
        await runtime.ask("k", "one", event_id="e")
        for error, text in ((AlreadyAnswered, "one"), (EventConflict, "two")):
            with pytest.raises(error):
                async with runtime.stream("k", text, event_id="e"):
                    raise AssertionError
        bus = inspect(runtime).context.bus
        assert (bus.waiting, len(bus._subscriptions)) == (0, 0)


async def test_a_stream_that_is_cancelled_while_it_opens_leaves_nothing_behind(start):
    async with start() as runtime:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with runtime.stream("k", "one"):
                raise AssertionError
        bus = inspect(runtime).context.bus
        assert (bus.waiting, len(bus._subscriptions)) == (0, 0)


@with_threads
async def test_a_stream_ends_with_an_error_if_another_process_closes_its_message(start, path):
    async with held_runtime(start) as here:
        failed = trio.Event()

        async def read():
            with pytest.raises(AlreadyAnswered, match="answered elsewhere"):
                async with here.runtime.stream("k", "one") as stream:
                    async for _ in stream:
                        pass
            failed.set()

        here.nursery.start_soon(read)
        turn = await here.agent.wait_started()
        await here.store.park_inbox([turn.turn_id], "by hand")
        here.agent.release(0)
        await failed.wait()
        with trio.fail_after(SECONDS):
            await inspect(here.runtime).wait_idle("k")
        assert len(here.agent.turns) == 1
