"""Previews: the latest text at intervals, never two at once, never after the end."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from hypothesis import example, given, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from hermes.actors.event_bus import EventBus
from hermes.adapters.previews import CALL_TIMEOUT, MAX_STOPPED, MAX_WATCHED, Previews
from hermes.errors import ActorStopped
from hermes.events import TextDelta, ToolStarted, TurnEnded, TurnStarted
from hermes.messages import Reply, ToolCall

INTERVAL, TYPING_INTERVAL = 1.5, 4.0


@attrs.define
class Screen:
    """The screen of an adapter; it may be slow, or fail."""

    seconds: float = 0.0
    error: BaseException | None = None
    shown: list = attrs.Factory(list)
    typing: list = attrs.Factory(list)
    running: set = attrs.Factory(set)

    async def show(self, key, turn_id, text):
        await self._call(turn_id, self.shown, (trio.current_time(), key, turn_id, text))

    async def show_typing(self, key, turn_id):
        await self._call(turn_id, self.typing, (trio.current_time(), key, turn_id))

    async def _call(self, turn_id, calls, call):
        assert turn_id not in self.running, "two calls at once for one turn"
        self.running.add(turn_id)
        try:
            calls.append(call)
            await trio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
        finally:
            self.running.discard(turn_id)

    @property
    def texts(self):
        return [text for *_, text in self.shown]


@attrs.define
class Driver:
    """Publishes events like a runtime."""

    bus: EventBus
    previews: Previews
    screen: Screen

    def start(self, turn_id=1, key="k"):
        self.bus.publish(key, turn_id, TurnStarted(turn_id, "s", None))

    def say(self, text, turn_id=1, key="k"):
        self.bus.publish(key, turn_id, TextDelta(text))

    def tool(self, turn_id=1, key="k"):
        self.bus.publish(key, turn_id, ToolStarted(ToolCall("c", "t")))

    def end(self, turn_id=1, key="k"):
        reply = Reply(text="said", session_id="s", turn_id=turn_id, status="complete")
        self.bus.publish(key, turn_id, TurnEnded(reply))


@asynccontextmanager
async def watching(**options):
    screen = Screen(**options)
    bus = EventBus([].append)
    previews = Previews(
        screen.show, typing=screen.show_typing, interval=INTERVAL, typing_interval=TYPING_INTERVAL
    )
    previews.watch("k")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(previews.run, bus.subscribe())
        await wait_all_tasks_blocked()
        yield Driver(bus, previews, screen)
        bus.close(ActorStopped("the runtime has ended"))


async def test_the_latest_text_is_shown_at_intervals(autojump_clock):
    async with watching() as runtime:
        begin = trio.current_time()
        runtime.start()
        for number in range(10):
            runtime.say(f"{number}")
            await trio.sleep(0.5)
        runtime.end()
    times = [at - begin for at, *_ in runtime.screen.shown]
    assert times == [1.5, 3.0, 4.5]
    assert runtime.screen.texts == ["012", "012345", "012345678"]


async def test_a_quick_turn_has_no_preview(autojump_clock):
    async with watching() as runtime:
        runtime.start()
        runtime.say("all at once")
        await trio.sleep(INTERVAL / 2)
        runtime.end()
        await trio.sleep(10)
        assert runtime.screen.shown == []


async def test_the_same_text_is_not_shown_twice(autojump_clock):
    async with watching() as runtime:
        runtime.start()
        runtime.say("thinking")
        await trio.sleep(60)
        runtime.end()
    assert runtime.screen.texts == ["thinking"]


async def test_text_after_a_tool_call_is_a_new_message(autojump_clock):
    async with watching() as runtime:
        runtime.start()
        runtime.say("let me ")
        runtime.say("look")
        await trio.sleep(2)
        runtime.tool()
        await trio.sleep(2)
        runtime.say("it ")
        runtime.say("is five")
        await trio.sleep(2)
        runtime.end()
    assert runtime.screen.texts == ["let me look", "it is five"]


async def test_typing_is_shown_at_once_and_while_there_is_no_new_text(autojump_clock):
    async with watching() as runtime:
        begin = trio.current_time()
        runtime.start()
        await trio.sleep(9)
        runtime.say("text")
        await trio.sleep(6)
        runtime.end()
        await trio.sleep(60)
    assert [at - begin for at, *_ in runtime.screen.typing] == [0, 4, 8, 14.5]


async def test_nothing_is_shown_of_a_turn_that_ends_at_once(autojump_clock):
    async with watching() as runtime:
        runtime.start()
        runtime.end()
        await trio.sleep(20)
    assert not runtime.screen.typing


async def test_nothing_is_shown_of_conversations_that_are_not_watched(autojump_clock):
    async with watching() as runtime:
        runtime.start(7, "other")
        runtime.say("secret", 7, "other")
        await trio.sleep(10)
        runtime.end(7, "other")
    assert not runtime.screen.shown
    assert not runtime.screen.typing


@pytest.mark.parametrize("error", [OSError("no"), SystemExit(3), ExceptionGroup("g", [OSError()])])
async def test_a_failed_preview_is_logged_and_the_next_one_is_shown(autojump_clock, caplog, error):
    async with watching(error=error) as runtime:
        runtime.start()
        for _ in range(3):
            runtime.say("x")
            await trio.sleep(2)
        runtime.end()
    assert runtime.screen.texts == ["x", "xx", "xxx"]
    assert "a preview was not shown" in caplog.text


async def test_a_slow_preview_delays_no_other_turn_and_times_out(autojump_clock):
    async with watching(seconds=1e9) as runtime:
        runtime.previews.watch("l")
        begin = trio.current_time()
        runtime.start(1, "k")
        runtime.start(2, "l")
        await trio.sleep(1)
        runtime.say("one", 1, "k")
        runtime.say("two", 2, "l")
        await trio.sleep(30)
        runtime.end(1, "k")
        runtime.end(2, "l")
    shown = sorted((at - begin, text) for at, *_, text in runtime.screen.shown)
    at = CALL_TIMEOUT + INTERVAL
    assert shown == [(at, "one"), (at, "two")]


async def test_stop_waits_for_the_preview_in_flight_and_lets_no_other_start(autojump_clock):
    async with watching(seconds=3) as runtime:
        begin = trio.current_time()
        runtime.start()
        runtime.say("begun")
        await trio.sleep(6)
        assert runtime.screen.running == {1}
        runtime.say(" and on")
        await runtime.previews.stop("k", 1)
        assert trio.current_time() - begin == 3 + INTERVAL + 3
        assert not runtime.screen.running
        runtime.say(" and on")
        await trio.sleep(20)
        assert runtime.screen.texts == ["begun"]


async def test_stop_waits_also_after_the_end_of_the_turn(autojump_clock):
    async with watching(seconds=3) as runtime:
        runtime.start()
        runtime.say("begun")
        await trio.sleep(6)
        assert runtime.screen.running == {1}
        runtime.end()
        await wait_all_tasks_blocked()
        runtime.start(2)
        await wait_all_tasks_blocked()
        assert runtime.screen.running == {1, 2}
        await runtime.previews.stop("k", 1)
        assert 1 not in runtime.screen.running
        runtime.end(2)


async def test_stop_does_not_wait_if_nothing_is_in_flight(autojump_clock):
    async with watching() as runtime:
        runtime.start()
        runtime.say("begun")
        await wait_all_tasks_blocked()
        begin = trio.current_time()
        await runtime.previews.stop("k", 1)
        await runtime.previews.stop("k", 1)
        await runtime.previews.stop("k", 99)
        await runtime.previews.stop("nobody", 1)
        assert trio.current_time() == begin
        runtime.start(2)
        await wait_all_tasks_blocked()
        await runtime.previews.stop("k", 1)  # the other turn is not affected
        runtime.say("second", 2)
        await trio.sleep(2)
        assert runtime.screen.texts == ["second"]
        runtime.end(2)


async def test_a_turn_that_is_stopped_before_its_start_event_is_not_shown(autojump_clock):
    async with watching() as runtime:
        runtime.start()
        runtime.say("late")
        await runtime.previews.stop("k", 1)  # before the task has received the events
        await trio.sleep(20)
        assert not runtime.screen.shown
        assert not runtime.screen.typing


async def test_a_turn_whose_end_event_was_lost_ends_with_the_next_turn(autojump_clock):
    async with watching() as runtime:
        runtime.start(1)
        runtime.say("one", 1)
        await trio.sleep(2)
        runtime.start(2)
        runtime.say("more of one", 1)
        await trio.sleep(2)
        runtime.end(2)
    assert runtime.screen.texts == ["one"]


async def test_a_turn_that_runs_again_is_shown_again(autojump_clock):
    async with watching() as runtime:
        for _ in range(2):
            runtime.start(1)
            runtime.say("text")
            await trio.sleep(2)
        runtime.end(1)
    assert runtime.screen.texts == ["text", "text"]


async def test_memory_is_bounded(autojump_clock):
    async with watching() as runtime:
        for number in range(MAX_WATCHED + 10):
            runtime.previews.watch(str(number))
        for number in range(MAX_STOPPED + 10):
            await runtime.previews.stop("k", number)
        runtime.start(10**6, str(MAX_WATCHED))
        await wait_all_tasks_blocked()
        runtime.end(10**6, str(MAX_WATCHED))
        await wait_all_tasks_blocked()
        assert len(runtime.previews._watched) == MAX_WATCHED
        assert len(runtime.previews._stopped) == MAX_STOPPED
        assert not runtime.previews._running
        assert not runtime.previews._followed


async def test_previews_end_with_the_runtime(autojump_clock):
    begin = trio.current_time()
    async with watching(seconds=1e9) as runtime:
        runtime.start()
        runtime.say("unfinished")
        await wait_all_tasks_blocked()
        assert runtime.screen.running == {1}, "the typing indicator is in flight"
    assert trio.current_time() - begin == CALL_TIMEOUT
    assert not runtime.screen.shown
    assert not runtime.previews._followed


steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "say", "tool", "end", "stop"]),
        st.sampled_from(["k", "l"]),
        st.sampled_from([0.0, 0.5, 1.5, 4.0]),
    ),
    max_size=30,
)


@given(steps, st.sampled_from([0.0, 0.7, 20.0]))
@example([("start", "k", 4.0), ("say", "k", 4.0), ("end", "k", 0.0), ("stop", "k", 0.0)], 3.0)
def test_never_two_at_once_and_nothing_starts_after_the_end(scenario, seconds):
    trio.run(check, scenario, seconds, clock=MockClock(autojump_threshold=0))


async def check(scenario, seconds):  # noqa: C901, PLR0912 - one branch per step
    over, turn_of, turns = {}, {}, iter(range(1, 100))
    begun = {"k": [], "l": []}
    async with watching(seconds=seconds) as runtime:
        runtime.previews.watch("l")
        for step, key, pause in scenario:
            turn_id = turn_of.get(key)
            if step == "start" and turn_id is None:
                turn_of[key] = turn_id = next(turns)
                begun[key].append(turn_id)
                runtime.start(turn_id, key)
            elif step == "say" and turn_id is not None:
                runtime.say(f"{turn_id} ", turn_id, key)
            elif step == "tool" and turn_id is not None:
                runtime.tool(turn_id, key)
            elif step == "stop":
                for each in begun[key]:  # including those that have ended
                    await runtime.previews.stop(key, each)
                    assert each not in runtime.screen.running
                    over.setdefault(each, trio.current_time())
            elif step == "end" and turn_id is not None:
                runtime.end(turn_id, key)
                del turn_of[key]
                await wait_all_tasks_blocked()
                over.setdefault(turn_id, trio.current_time())
            await trio.sleep(pause)
        for at, _, turn_id, text in runtime.screen.shown:
            assert set(text.split()) == {str(turn_id)}
            assert at <= over.get(turn_id, at)
        for at, _, turn_id in runtime.screen.typing:
            assert at <= over.get(turn_id, at)
