"""The governor: never more calls than the platform allows, in order, and nobody forgotten."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import trio
from hypothesis import example, given, strategies as st
from trio.testing import MockClock

from hermes.adapters.rate_limit import Rate, RateLimiter

TOKEN = Rate(5, 1.0)
CHAT = Rate(2, 1.0)
GROUP = Rate(4, 8.0)
EVER = 10_000.0


def simulate(story, *args):
    """Run a story in virtual time."""
    return trio.run(story, *args, clock=MockClock(autojump_threshold=0))


def governed():
    return RateLimiter(per_token=TOKEN, per_chat=CHAT, per_group=GROUP)


def most_in_a_window(times, seconds):
    """The largest number of calls in any stretch of so many seconds."""
    return max((sum(0 <= t - begin < seconds for t in times) for begin in times), default=0)


# A chat is a group where its name is in upper case.
chats = st.sampled_from(["a", "b", "c", "G"])
moments = st.integers(0, 40).map(lambda quarter: quarter / 4)
waits = st.tuples(st.just("wait"), moments, chats, st.none() | moments)
tries = st.tuples(st.just("try"), moments, chats, st.none())
pauses = st.tuples(st.just("pause"), moments, st.none() | chats, st.integers(0, 5).map(float))


@given(st.lists(waits | tries | pauses, max_size=40))
@example([("wait", 0.0, "a", None)] * 12)
@example([("wait", 0.0, chat, None) for chat in "abcG" * 5])
@example([("pause", 0.0, None, 3.0), ("wait", 0.0, "a", None), ("pause", 0.25, "a", 5.0)])
@example([("wait", 0.0, "a", 0.5), ("wait", 0.0, "a", 0.25), ("wait", 0.0, "a", None)])
@example([("wait", 0.0, "a", None)] * 3 + [("wait", 0.0, "a", 0.5), ("wait", 0.0, "a", None)])
def test_no_window_has_too_many_calls_and_everybody_is_served_in_order(asked):
    asked = sorted(asked, key=lambda ask: ask[1])
    calls, given_up = simulate(play, asked)

    assert most_in_a_window([at for at, *_ in calls], TOKEN.seconds) <= TOKEN.calls
    for chat in "abcG":
        mine = [at for at, where, _ in calls if where == chat]
        assert most_in_a_window(mine, CHAT.seconds) <= CHAT.calls
        if chat.isupper():
            assert most_in_a_window(mine, GROUP.seconds) <= GROUP.calls
        served = [number for _, where, number in calls if where == chat and number is not None]
        assert served == sorted(served), "first come, first served"
    served = {number for *_, number in calls} - {None}
    wanted = {number for number, (kind, *_) in enumerate(asked) if kind == "wait"}
    assert served | given_up == wanted
    assert not served & given_up, "a wait that was cancelled counts for nothing"
    for kind, at, where, seconds in asked:
        if kind == "pause":
            during = [
                (call, chat)
                for call, chat, _ in calls
                if at < call < at + seconds and where in {None, chat}
            ]
            assert not during, "the platform asked to be left alone"


async def play(asked):
    """Do as asked, each at its time."""
    governor = governed()
    calls, given_up = [], set()

    async def wait(number, chat, patience):
        give_up = math.inf if patience is None else trio.current_time() + patience
        with trio.move_on_at(give_up) as scope:
            await governor.wait(chat, group=chat.isupper())
            calls.append((trio.current_time() - begin, chat, number))
        if scope.cancelled_caught:
            given_up.add(number)

    begin = trio.current_time()
    with trio.fail_after(EVER):
        async with trio.open_nursery() as nursery:
            for number, (kind, at, chat, value) in enumerate(asked):
                await trio.sleep_until(begin + at)
                if kind == "wait":
                    nursery.start_soon(wait, number, chat, value)
                    await trio.testing.wait_all_tasks_blocked()
                elif kind == "pause":
                    governor.pause(value, chat)
                elif governor.try_now(chat, group=chat.isupper()):
                    calls.append((trio.current_time() - begin, chat, None))
    return calls, given_up


def test_calls_are_made_as_soon_as_they_may_be():
    async def story():
        governor = governed()
        begin = trio.current_time()
        times = []
        for _ in range(5):
            await governor.wait("a")
            times.append(trio.current_time() - begin)
        return times

    assert simulate(story) == [0, 0, 1, 1, 2]


def test_a_cancelled_wait_leaves_its_place_to_the_next():
    async def story():
        governor = RateLimiter(per_token=Rate(100, 1), per_chat=Rate(1, 10))
        begin = trio.current_time()
        await governor.wait("a")
        with trio.move_on_after(5):
            await governor.wait("a")
        await governor.wait("a")
        return trio.current_time() - begin

    assert simulate(story) == 10


def test_chats_take_turns_where_the_token_is_what_everybody_waits_for():
    async def story():
        governor = RateLimiter(per_token=Rate(1, 1), per_chat=Rate(100, 1))
        served = []

        async def wait(chat):
            await governor.wait(chat)
            served.append(chat)

        async with trio.open_nursery() as nursery:
            for chat in "aaaaaab":
                nursery.start_soon(wait, chat)
                await trio.testing.wait_all_tasks_blocked()
        return "".join(served)

    assert simulate(story).index("b") <= 2


def test_a_chat_that_rests_holds_up_no_other():
    async def story():
        governor = governed()
        governor.pause(1000, "a")
        times = {}

        async def wait(chat):
            await governor.wait(chat)
            times[chat] = trio.current_time() - begin

        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            for chat in "abc":
                nursery.start_soon(wait, chat)
        return times

    assert simulate(story) == {"a": 1000, "b": 0, "c": 0}


def test_a_chat_that_is_paused_while_it_waits_for_the_token_lets_others_pass():
    async def story():
        governor = RateLimiter(per_token=Rate(1, 10), per_chat=Rate(100, 1))
        times = {}

        async def wait(chat):
            await governor.wait(chat)
            times[chat] = trio.current_time() - begin

        begin = trio.current_time()
        await governor.wait("c")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "a")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(wait, "b")
            await trio.sleep(1)
            governor.pause(1000, "a")
        return times

    assert simulate(story) == {"b": 10, "a": 1001}


def test_previews_leave_half_of_every_rate_and_never_overtake():
    async def story():
        governor = RateLimiter(per_token=Rate(10, 1), per_chat=Rate(4, 1), per_group=Rate(2, 1))
        allowed = {
            "chat": [governor.try_now("a") for _ in range(3)],
            "group": [governor.try_now("G", group=True) for _ in range(2)],
            "token": [governor.try_now(chat) for chat in "bcd"],
        }
        begin = trio.current_time()
        for _ in range(2):
            await governor.wait("a")  # what was left to finals is there
        assert trio.current_time() == begin
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(governor.wait, "a")
            await trio.testing.wait_all_tasks_blocked()
            allowed["while somebody waits"] = [governor.try_now("a")]
        await trio.sleep(5)
        governor.pause(1)
        allowed["paused"] = [governor.try_now("a")]
        await trio.sleep(1)
        allowed["again"] = [governor.try_now("a")]
        return allowed

    assert simulate(story) == {
        "chat": [True, True, False],
        "group": [True, False],
        "token": [True, True, False],
        "while somebody waits": [False],
        "paused": [False],
        "again": [True],
    }


@pytest.mark.parametrize(
    ("per_token", "per_chat", "chat"),
    [(Rate(1, 1), Rate(9, 1), "z"), (Rate(9, 1), Rate(1, 1), "a")],
    ids=["the token", "the chat"],
)
def test_a_preview_does_not_overtake_who_waits(per_token, per_chat, chat):
    """Not even in the moment in which the next call may be made."""

    async def story():
        governor = RateLimiter(per_token=per_token, per_chat=per_chat)
        await governor.wait("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(governor.wait, "a")
            await trio.sleep(1)
            return governor.try_now(chat)

    assert not any(simulate(story) for _ in range(30))  # tasks of one moment run in any order


def test_a_rate_of_one_call_has_previews_too():
    async def story():
        return RateLimiter(per_token=Rate(30, 1), per_chat=Rate(1, 1)).try_now("a")

    assert simulate(story) is True


def test_chats_are_forgotten_once_nothing_is_to_be_remembered():
    async def story():
        governor = governed()
        governor.pause(1e6, "paused")
        most = 0
        for number in range(2000):
            await governor.wait(f"chat {number}")
            most = max(most, len(governor._chats))
        return most, governor

    most, governor = simulate(story)
    assert most < 2 * TOKEN.calls * GROUP.seconds + 10, "what the windows can hold, and no more"
    assert "paused" in governor._chats


def test_a_chat_that_was_forgotten_has_its_full_rate_and_no_more():
    async def story():
        governor = RateLimiter(per_token=Rate(1000, 1), per_chat=Rate(1, 5))
        begin = trio.current_time()
        times = []
        for _ in range(3):
            await governor.wait("a")
            times.append(trio.current_time() - begin)
            for other in range(20):
                await governor.wait(f"{times} {other}")
        return times

    assert all(after - before == 5 for before, after in pairwise(simulate(story)))


def test_a_pause_never_makes_an_earlier_one_shorter():
    async def story():
        governor = governed()
        begin = trio.current_time()
        governor.pause(10)
        governor.pause(1)
        await governor.wait("a")
        return trio.current_time() - begin

    assert simulate(story) == 10


@pytest.mark.parametrize("calls", [0, -1])
def test_a_rate_allows_something(calls):
    with pytest.raises(ValueError, match="calls"):
        Rate(calls, 1.0)
