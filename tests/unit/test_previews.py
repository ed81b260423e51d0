"""Previews: the newest text now and then, never two at once, never after the end."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from hypothesis import example, given, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from hermes.actors.event_bus import EventBus
from hermes.adapters.previews import SETTLED, SHOW_SECONDS, WATCHED, Previews
from hermes.events import TextDelta, ToolStarted, TurnEnded, TurnStarted
from hermes.messages import Reply, ToolCall

EVERY, BUSY = 1.5, 4.0


@attrs.define
class Screen:
    """What an adapter would show; it may be slow, or fail."""

    seconds: float = 0.0
    error: BaseException | None = None
    shown: list = attrs.Factory(list)
    busy: list = attrs.Factory(list)
    running: set = attrs.Factory(set)

    async def show(self, key, turn_id, text):
        await self._call(turn_id, self.shown, (trio.current_time(), key, turn_id, text))

    async def typing(self, key, turn_id):
        await self._call(turn_id, self.busy, (trio.current_time(), key, turn_id))

    async def _call(self, turn_id, calls, call):
        assert turn_id not in self.running, "never two at once for one turn"
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
class Told:
    """Events as a runtime would publish them."""

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
async def told(**options):
    screen = Screen(**options)
    bus = EventBus()
    previews = Previews(screen.show, busy=screen.typing, every=EVERY, busy_every=BUSY)
    previews.watch("k")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(previews.run, bus.listen())
        await wait_all_tasks_blocked()
        yield Told(bus, previews, screen)
        bus.close()


async def test_the_newest_text_is_shown_now_and_then(autojump_clock):
    async with told() as runtime:
        begin = trio.current_time()
        runtime.start()
        for number in range(10):
            runtime.say(f"{number}")
            await trio.sleep(0.5)
        runtime.end()
    times = [at - begin for at, *_ in runtime.screen.shown]
    assert times == [1.5, 3.0, 4.5]
    assert runtime.screen.texts == ["012", "012345", "012345678"]


async def test_a_turn_that_is_quick_has_no_preview(autojump_clock):
    async with told() as runtime:
        runtime.start()
        runtime.say("all at once")
        await trio.sleep(EVERY / 2)
        runtime.end()
        await trio.sleep(10)
        assert runtime.screen.shown == []


async def test_the_same_text_is_not_shown_twice(autojump_clock):
    async with told() as runtime:
        runtime.start()
        runtime.say("thinking")
        await trio.sleep(60)
        runtime.end()
    assert runtime.screen.texts == ["thinking"]


async def test_what_is_said_after_a_tool_is_another_message(autojump_clock):
    async with told() as runtime:
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


async def test_busy_is_told_at_once_and_while_there_is_no_new_text(autojump_clock):
    async with told() as runtime:
        begin = trio.current_time()
        runtime.start()
        await trio.sleep(9)
        runtime.say("text")
        await trio.sleep(6)
        runtime.end()
        await trio.sleep(60)
    assert [at - begin for at, *_ in runtime.screen.busy] == [0, 4, 8, 14.5]


async def test_nothing_is_told_of_a_turn_that_has_ended_when_its_beginning_is_heard(
    autojump_clock,
):
    async with told() as runtime:
        runtime.start()
        runtime.end()
        await trio.sleep(20)
    assert not runtime.screen.busy


async def test_nothing_is_shown_of_others(autojump_clock):
    async with told() as runtime:
        runtime.start(7, "other")
        runtime.say("secret", 7, "other")
        await trio.sleep(10)
        runtime.end(7, "other")
    assert not runtime.screen.shown
    assert not runtime.screen.busy


@pytest.mark.parametrize("error", [OSError("no"), SystemExit(3), ExceptionGroup("g", [OSError()])])
async def test_a_failure_is_only_that_of_a_preview(autojump_clock, caplog, error):
    async with told(error=error) as runtime:
        runtime.start()
        for _ in range(3):
            runtime.say("x")
            await trio.sleep(2)
        runtime.end()
    assert runtime.screen.texts == ["x", "xx", "xxx"]
    assert "a preview was not shown" in caplog.text


async def test_a_slow_one_holds_up_no_other_turn_and_is_given_up(autojump_clock):
    async with told(seconds=1e9) as runtime:
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
    at = SHOW_SECONDS + EVERY
    assert shown == [(at, "one"), (at, "two")]


async def test_settle_waits_for_the_preview_on_its_way_and_lets_no_other_begin(autojump_clock):
    async with told(seconds=3) as runtime:
        begin = trio.current_time()
        runtime.start()
        runtime.say("begun")
        await trio.sleep(6)
        assert runtime.screen.running == {1}
        runtime.say(" and on")
        await runtime.previews.settle("k", 1)
        assert trio.current_time() - begin == 3 + EVERY + 3
        assert not runtime.screen.running
        runtime.say(" and on")
        await trio.sleep(20)
        assert runtime.screen.texts == ["begun"]


async def test_settle_waits_also_where_the_end_of_the_turn_was_heard_before(autojump_clock):
    async with told(seconds=3) as runtime:
        runtime.start()
        runtime.say("begun")
        await trio.sleep(6)
        assert runtime.screen.running == {1}
        runtime.end()
        await wait_all_tasks_blocked()
        runtime.start(2)
        await wait_all_tasks_blocked()
        assert runtime.screen.running == {1, 2}
        await runtime.previews.settle("k", 1)
        assert 1 not in runtime.screen.running
        runtime.end(2)


async def test_settle_does_not_wait_where_nothing_is_on_its_way(autojump_clock):
    async with told() as runtime:
        runtime.start()
        runtime.say("begun")
        await wait_all_tasks_blocked()
        begin = trio.current_time()
        await runtime.previews.settle("k", 1)
        await runtime.previews.settle("k", 1)
        await runtime.previews.settle("k", 99)
        await runtime.previews.settle("nobody", 1)
        assert trio.current_time() == begin
        runtime.start(2)
        await wait_all_tasks_blocked()
        await runtime.previews.settle("k", 1)  # another turn's is left alone
        runtime.say("second", 2)
        await trio.sleep(2)
        assert runtime.screen.texts == ["second"]
        runtime.end(2)


async def test_a_turn_that_was_settled_before_its_beginning_was_heard_is_not_shown(autojump_clock):
    async with told() as runtime:
        runtime.start()
        runtime.say("late")
        await runtime.previews.settle("k", 1)  # before the task has heard of it
        await trio.sleep(20)
        assert not runtime.screen.shown
        assert not runtime.screen.busy


async def test_a_turn_whose_end_was_lost_ends_with_the_next_one(autojump_clock):
    async with told() as runtime:
        runtime.start(1)
        runtime.say("one", 1)
        await trio.sleep(2)
        runtime.start(2)
        runtime.say("more of one", 1)
        await trio.sleep(2)
        runtime.end(2)
    assert runtime.screen.texts == ["one"]


async def test_a_turn_that_runs_again_is_shown_again(autojump_clock):
    async with told() as runtime:
        for _ in range(2):
            runtime.start(1)
            runtime.say("text")
            await trio.sleep(2)
        runtime.end(1)
    assert runtime.screen.texts == ["text", "text"]


async def test_memory_is_bounded(autojump_clock):
    async with told() as runtime:
        for number in range(WATCHED + 10):
            runtime.previews.watch(str(number))
        for number in range(SETTLED + 10):
            await runtime.previews.settle("k", number)
        runtime.start(10**6, str(WATCHED))
        await wait_all_tasks_blocked()
        runtime.end(10**6, str(WATCHED))
        await wait_all_tasks_blocked()
        assert len(runtime.previews._watched) == WATCHED
        assert len(runtime.previews._settled) == SETTLED
        assert not runtime.previews._running
        assert not runtime.previews._followed


async def test_when_the_runtime_ends_so_do_the_previews(autojump_clock):
    with trio.fail_after(SHOW_SECONDS + 1):
        async with told() as runtime:
            runtime.start()
            runtime.say("unfinished")


steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "say", "tool", "end", "settle"]),
        st.sampled_from(["k", "l"]),
        st.sampled_from([0.0, 0.5, 1.5, 4.0]),
    ),
    max_size=30,
)


@given(steps, st.sampled_from([0.0, 0.7, 20.0]))
@example([("start", "k", 4.0), ("say", "k", 4.0), ("end", "k", 0.0), ("settle", "k", 0.0)], 3.0)
def test_never_two_at_once_and_nothing_begins_after_the_end(story, seconds):
    trio.run(check, story, seconds, clock=MockClock(autojump_threshold=0))


async def check(story, seconds):  # noqa: C901, PLR0912 - one branch per step
    over, turn_of, turns = {}, {}, iter(range(1, 100))
    begun = {"k": [], "l": []}
    async with told(seconds=seconds) as runtime:
        runtime.previews.watch("l")
        for step, key, pause in story:
            turn_id = turn_of.get(key)
            if step == "start" and turn_id is None:
                turn_of[key] = turn_id = next(turns)
                begun[key].append(turn_id)
                runtime.start(turn_id, key)
            elif step == "say" and turn_id is not None:
                runtime.say(f"{turn_id} ", turn_id, key)
            elif step == "tool" and turn_id is not None:
                runtime.tool(turn_id, key)
            elif step == "settle":
                for each in begun[key]:  # also those that have ended
                    await runtime.previews.settle(key, each)
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
        for at, _, turn_id in runtime.screen.busy:
            assert at <= over.get(turn_id, at)
