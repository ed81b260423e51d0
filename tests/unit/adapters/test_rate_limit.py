"""The rate limiter: never more calls than allowed, in order, and every waiter is served."""

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


def simulate(scenario, *args):
    """Run a coroutine function in virtual time."""
    return trio.run(scenario, *args, clock=MockClock(autojump_threshold=0))


def new_limiter():
    return RateLimiter(per_token=TOKEN, per_chat=CHAT, per_group=GROUP)


def most_in_a_window(times, seconds):
    """Return the largest number of calls within any period of this many seconds."""
    return max((sum(0 <= t - begin < seconds for t in times) for begin in times), default=0)


# A chat with an upper-case name is a group.
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
def test_no_window_has_too_many_calls_and_everybody_is_served_in_order(steps):
    steps = sorted(steps, key=lambda step: step[1])
    calls, cancelled = simulate(play, steps)

    assert most_in_a_window([at for at, *_ in calls], TOKEN.seconds) <= TOKEN.calls
    for chat in "abcG":
        mine = [at for at, where, _ in calls if where == chat]
        assert most_in_a_window(mine, CHAT.seconds) <= CHAT.calls
        if chat.isupper():
            assert most_in_a_window(mine, GROUP.seconds) <= GROUP.calls
        served = [number for _, where, number in calls if where == chat and number is not None]
        assert served == sorted(served), "first come, first served"
    served = {number for *_, number in calls} - {None}
    wanted = {number for number, (kind, *_) in enumerate(steps) if kind == "wait"}
    assert served | cancelled == wanted
    assert not served & cancelled, "a cancelled wait does not count"
    for kind, at, where, seconds in steps:
        if kind == "pause":
            during = [
                (call, chat)
                for call, chat, _ in calls
                if at < call < at + seconds and where in {None, chat}
            ]
            assert not during, "no calls during a pause"


async def play(steps):
    """Run each step at its time."""
    limiter = new_limiter()
    calls, cancelled = [], set()

    async def wait(number, chat, patience):
        give_up = math.inf if patience is None else trio.current_time() + patience
        with trio.move_on_at(give_up) as scope:
            await limiter.acquire(chat, group=chat.isupper())
            calls.append((trio.current_time() - begin, chat, number))
        if scope.cancelled_caught:
            cancelled.add(number)

    begin = trio.current_time()
    with trio.fail_after(EVER):
        async with trio.open_nursery() as nursery:
            for number, (kind, at, chat, value) in enumerate(steps):
                await trio.sleep_until(begin + at)
                if kind == "wait":
                    nursery.start_soon(wait, number, chat, value)
                    await trio.testing.wait_all_tasks_blocked()
                elif kind == "pause":
                    limiter.pause(value, chat)
                elif limiter.try_acquire(chat, group=chat.isupper()):
                    calls.append((trio.current_time() - begin, chat, None))
    return calls, cancelled


def test_calls_are_made_as_soon_as_they_may_be():
    async def scenario():
        limiter = new_limiter()
        begin = trio.current_time()
        times = []
        for _ in range(5):
            await limiter.acquire("a")
            times.append(trio.current_time() - begin)
        return times

    assert simulate(scenario) == [0, 0, 1, 1, 2]


def test_a_cancelled_wait_leaves_its_place_to_the_next():
    async def scenario():
        limiter = RateLimiter(per_token=Rate(100, 1), per_chat=Rate(1, 10))
        begin = trio.current_time()
        await limiter.acquire("a")
        with trio.move_on_after(5):
            await limiter.acquire("a")
        await limiter.acquire("a")
        return trio.current_time() - begin

    assert simulate(scenario) == 10


def test_chats_take_turns_if_all_wait_for_the_token():
    async def scenario():
        limiter = RateLimiter(per_token=Rate(1, 1), per_chat=Rate(100, 1))
        served = []

        async def wait(chat):
            await limiter.acquire(chat)
            served.append(chat)

        async with trio.open_nursery() as nursery:
            for chat in "aaaaaab":
                nursery.start_soon(wait, chat)
                await trio.testing.wait_all_tasks_blocked()
        return "".join(served)

    assert simulate(scenario).index("b") <= 2


def test_a_paused_chat_delays_no_other():
    async def scenario():
        limiter = new_limiter()
        limiter.pause(1000, "a")
        times = {}

        async def wait(chat):
            await limiter.acquire(chat)
            times[chat] = trio.current_time() - begin

        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            for chat in "abc":
                nursery.start_soon(wait, chat)
        return times

    assert simulate(scenario) == {"a": 1000, "b": 0, "c": 0}


def test_a_chat_that_is_paused_while_it_waits_for_the_token_lets_others_go_first():
    async def scenario():
        limiter = RateLimiter(per_token=Rate(1, 10), per_chat=Rate(100, 1))
        times = {}

        async def wait(chat):
            await limiter.acquire(chat)
            times[chat] = trio.current_time() - begin

        begin = trio.current_time()
        await limiter.acquire("c")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "a")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(wait, "b")
            await trio.sleep(1)
            limiter.pause(1000, "a")
        return times

    assert simulate(scenario) == {"b": 10, "a": 1001}


def test_previews_leave_half_of_every_rate_and_never_overtake():
    async def scenario():
        limiter = RateLimiter(per_token=Rate(10, 1), per_chat=Rate(4, 1), per_group=Rate(2, 1))
        allowed = {
            "chat": [limiter.try_acquire("a") for _ in range(3)],
            "group": [limiter.try_acquire("G", group=True) for _ in range(2)],
            "token": [limiter.try_acquire(chat) for chat in "bcd"],
        }
        begin = trio.current_time()
        for _ in range(2):
            await limiter.acquire("a")  # the half that is left for final messages
        assert trio.current_time() == begin
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(limiter.acquire, "a")
            await trio.testing.wait_all_tasks_blocked()
            allowed["while somebody waits"] = [limiter.try_acquire("a")]
        await trio.sleep(5)
        limiter.pause(1)
        allowed["paused"] = [limiter.try_acquire("a")]
        await trio.sleep(1)
        allowed["again"] = [limiter.try_acquire("a")]
        return allowed

    assert simulate(scenario) == {
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
def test_a_preview_does_not_overtake_a_waiter(per_token, per_chat, chat):
    """Not even at the moment at which the next call is allowed."""

    async def scenario():
        limiter = RateLimiter(per_token=per_token, per_chat=per_chat)
        await limiter.acquire("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire, "a")
            await trio.sleep(1)
            return limiter.try_acquire(chat)

    assert not any(
        simulate(scenario) for _ in range(30)
    )  # tasks that are ready at the same time run in any order


def test_a_rate_of_one_call_allows_previews_too():
    async def scenario():
        return RateLimiter(per_token=Rate(30, 1), per_chat=Rate(1, 1)).try_acquire("a")

    assert simulate(scenario) is True


def test_idle_chats_are_forgotten():
    async def scenario():
        limiter = new_limiter()
        limiter.pause(1e6, "paused")
        most = 0
        for number in range(2000):
            await limiter.acquire(f"chat {number}")
            most = max(most, len(limiter._chats))
        return most, limiter

    most, limiter = simulate(scenario)
    assert most < 2 * TOKEN.calls * GROUP.seconds + 10, "as many as the windows can hold"
    assert "paused" in limiter._chats


def test_a_forgotten_chat_has_its_full_rate_and_no_more():
    async def scenario():
        limiter = RateLimiter(per_token=Rate(1000, 1), per_chat=Rate(1, 5))
        begin = trio.current_time()
        times = []
        for _ in range(3):
            await limiter.acquire("a")
            times.append(trio.current_time() - begin)
            for other in range(20):
                await limiter.acquire(f"{times} {other}")
        return times

    assert all(after - before == 5 for before, after in pairwise(simulate(scenario)))


def test_a_pause_never_shortens_an_earlier_one():
    async def scenario():
        limiter = new_limiter()
        begin = trio.current_time()
        limiter.pause(10)
        limiter.pause(1)
        await limiter.acquire("a")
        return trio.current_time() - begin

    assert simulate(scenario) == 10


@pytest.mark.parametrize("calls", [0, -1])
def test_a_rate_allows_at_least_one_call(calls):
    with pytest.raises(ValueError, match="calls"):
        Rate(calls, 1.0)
