"""Mailboxes and requests: order, bounds, and an answer to every request however an actor ends."""

from __future__ import annotations

import functools
import gc
import json
import subprocess
import sys
import weakref
from collections import deque
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import wait_all_tasks_blocked

from hermes.actors.kernel.mailbox import Mailbox, Request, refuse, serve
from hermes.errors import ActorStopped, Overloaded, StoreFailed


async def nine():
    return 9


async def answer(request):
    """Do the work of a request and answer it."""
    request.answer(await request.work())


def one_by_one(handle):
    """Return a batch handler that passes each message to `handle`."""

    async def handle_batch(batch):
        for message in batch:
            await handle(message)

    return handle_batch


@asynccontextmanager
async def serving(handle=answer, capacity=1000, limit=None):
    """Run an actor during a block; at the end, close its mailbox and wait for it."""
    box = Mailbox(capacity)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, box, one_by_one(handle), limit)
        yield box
        box.close()


async def outcome(wait, *args):
    """Return the answer to a request, or its error."""
    try:
        return await wait(*args)
    except (ActorStopped, Overloaded, StoreFailed, ValueError) as error:
        return error


# The mailbox


ACTIONS = st.lists(
    st.one_of(st.just("send"), st.just("take"), st.integers(1, 4), st.just("close")), max_size=60
)  # fmt: skip


@given(ACTIONS, st.integers(1, 5))
def test_a_mailbox_is_a_queue_that_keeps_its_bound_and_loses_nothing(actions, capacity):
    box, model, closed = Mailbox(capacity), deque(), False
    for number, action in enumerate(actions):
        if action == "send" and closed:
            with pytest.raises(ActorStopped):
                box.send_nowait(number)
        elif action == "send" and len(model) == capacity:
            with pytest.raises(Overloaded, match=str(capacity)):
                box.send_nowait(number)
        elif action == "send":
            box.send_nowait(number)
            model.append(number)
        elif action == "take":
            assert box.take_nowait() == list(model)
            model.clear()
        elif action == "close":
            box.close()
            closed = True
        else:
            taken = [model.popleft() for _ in range(min(action, len(model)))]
            assert box.take_nowait(action) == taken
        assert (len(box), box.closed) == (len(model), closed)
        assert (box.capacity, box.parked) == (capacity, False)


class Crowd:
    """Run senders that send in bursts, and a reader that is cancelled now and then."""

    def __init__(self, capacity, random):
        self.box, self.random = Mailbox(capacity), random
        self.sent, self.taken = [], []

    def put(self, message):
        try:
            self.box.send_nowait(message)
        except Overloaded:
            assert len(self.box) == self.box.capacity
        else:
            self.sent.append(message)

    async def send(self, who, bursts):
        for burst in bursts:
            for number in range(burst):
                self.put((who, len(self.sent), number))
            await trio.lowlevel.checkpoint()

    async def read(self):
        while not self.box.closed or len(self.box):
            with trio.CancelScope() as scope:
                if self.random.random() < 0.3:
                    scope.cancel()
                self.taken += await self.box.take(self.random.choice([None, 1, 3]))
            await trio.lowlevel.checkpoint()

    async def run(self, bursts):
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.read)
                async with trio.open_nursery() as senders:
                    for who, each in enumerate(bursts):
                        senders.start_soon(self.send, who, each)
                self.box.close()


@given(
    st.lists(st.lists(st.integers(1, 4), max_size=12), min_size=1, max_size=5),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_messages_arrive_once_and_in_order_however_often_the_reader_is_cancelled(
    bursts, capacity, random
):
    """Only what a full mailbox refused does not arrive."""
    crowd = Crowd(capacity, random)
    trio.run(crowd.run, bursts)
    assert crowd.taken == crowd.sent


async def test_a_reader_gets_everything_sent_in_the_step_that_woke_it():
    box, taken = Mailbox(), []

    async def read():
        taken.append(await box.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert box.parked
        box.send_nowait(1)
        box.send_nowait(2)
        assert not box.parked
    assert taken == [[1, 2]]
    assert len(box) == 0


async def test_a_reader_whose_only_message_is_removed_does_not_take_the_mailbox_for_closed():
    box, taken = Mailbox(), []

    async def read():
        taken.append(await box.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        box.send_nowait("removed")
        box.remove("removed", None)
    assert taken == [[None]]
    box.send_nowait("removed")
    box.send_nowait("kept")
    box.remove("removed", None)
    assert await box.take() == ["kept"]


async def test_another_reader_can_follow_a_cancelled_one():
    box = Mailbox()
    with trio.move_on_after(0):
        await box.take()
    assert not box.parked
    box.send_nowait("kept")
    assert await box.take() == ["kept"]


async def test_a_message_and_a_cancellation_at_once_lose_nothing():
    box, taken = Mailbox(), []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def read():
                taken.append(await box.take())

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            box.send_nowait("mail")
            scope.cancel()
    assert taken == [["mail"]]
    assert box.take_nowait() == []


async def test_a_message_right_after_a_cancellation_is_not_lost():
    box, taken = Mailbox(), []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def read():
                taken.append(await box.take())

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            scope.cancel()
            box.send_nowait("mail")
    assert taken == []
    assert box.take_nowait() == ["mail"]


async def test_a_closed_mailbox_returns_what_it_has_and_then_empty_lists(autojump_clock):
    box = Mailbox()
    box.send_nowait("last")
    box.close()
    box.close()
    with trio.fail_after(30):
        assert await box.take() == ["last"]
        assert await box.take() == []
        assert await box.take() == []


async def test_closing_wakes_a_waiting_reader():
    box = Mailbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.take)
        await wait_all_tasks_blocked()
        box.close()


async def test_an_idle_mailbox_allocates_nothing():
    """A hundred thousand idle actors have one each."""
    box = Mailbox()
    assert box._messages is None
    box.send_nowait("x")
    await box.take()
    assert box._messages is None
    assert not hasattr(box, "__dict__")


# Requests


async def test_an_early_answer_is_returned_at_once():
    request = Request()
    request.answer("at once")
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await request.wait() == "at once"
    assert not scope.cancelled_caught


async def test_the_first_answer_counts():
    request = Request()
    request.answer(1)
    request.answer(2)
    request.fail(ValueError("late"))
    assert await request.wait() == 1
    failed = Request()
    failed.fail(ValueError("first"))
    failed.answer(3)
    with pytest.raises(ValueError, match="first"):
        await failed.wait()


async def test_none_is_an_answer():
    request = Request()
    assert not request.answered
    request.answer(None)
    assert request.answered
    assert await request.wait() is None


async def test_an_answer_can_be_asked_for_again():
    answered, failed = Request(), Request()
    answered.answer(1)
    failed.fail(ValueError("no"))
    for _ in range(2):
        assert await answered.wait() == 1
        with pytest.raises(ValueError, match="no"):
            await failed.wait()


async def test_an_answer_and_a_cancellation_at_once_return_the_answer():
    for first in ("answer", "cancel"):
        request, got = Request(), []
        with trio.CancelScope() as scope:

            async def wait(request=request, got=got):
                got.append(await request.wait())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                if first == "answer":
                    request.answer("yes")
                    scope.cancel()
                else:
                    scope.cancel()
                    request.answer("yes")  # only waiting tasks are woken
        assert got == (["yes"] if first == "answer" else [])
        assert request.answered


@pytest.mark.parametrize("how", ["early", "late"])
async def test_a_raised_error_is_not_kept_alive_by_its_traceback(how):
    class Marked(ValueError):
        pass

    def failed():
        request = Request()
        request.fail(Marked("no"))
        return request.wait()

    async def fail(request):
        request.fail(Marked("no"))

    async with serving(fail) as box:
        gc.collect()
        gc.disable()
        try:
            try:
                await (failed() if how == "early" else Request().wait(box))
            except Marked as error:
                gone = weakref.ref(error)
            assert gone() is None
        finally:
            gc.enable()


async def test_an_answer_is_not_kept_by_an_actor_that_waits():
    class Answer:
        pass

    async def handle(request):
        request.answer(Answer())

    async with serving(handle) as box:
        answer = await Request().wait(box)
        gone = weakref.ref(answer)
        del answer
        assert gone() is None


# Actors


async def test_an_actor_answers_in_order_and_each_caller_gets_its_own_answer():
    handled, got = [], {}

    async def handle(request):
        value = await request.work()
        handled.append(value)
        request.answer(value)

    async def number(n):
        return n

    asked = []

    async def one(box, n):
        asked.append(n)
        got[n] = await Request(functools.partial(number, n)).wait(box)

    async with serving(handle) as box:
        async with trio.open_nursery() as nursery:
            for n in range(300):
                nursery.start_soon(one, box, n)
    assert handled == asked
    assert got == {n: n for n in range(300)}


async def test_messages_that_wait_when_the_mailbox_is_closed_are_handled():
    async with serving() as box:
        requests = [Request(nine) for _ in range(200)]
        for request in requests:
            box.send_nowait(request)
        box.close()
    assert [await request.wait() for request in requests] == [9] * 200


@pytest.mark.parametrize("limit", [None, 1, 64])
@pytest.mark.parametrize("place", [0, 1, 63, 64, 65, 99])
async def test_when_an_actor_raises_every_request_fails(place, limit, autojump_clock):
    """Including the one in progress and later ones."""
    handled, outcomes = 0, {}

    async def handle(request):
        nonlocal handled
        handled += 1
        if handled == place + 1:
            raise RuntimeError("my own")
        await answer(request)

    async def one(box, n):
        outcomes[n] = await outcome(Request(nine).wait, box)

    box = Mailbox()
    with trio.fail_after(10):
        async with trio.open_nursery() as waiters:
            for n in range(100):
                waiters.start_soon(one, box, n)
            await wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="my own"):
                await serve(box, one_by_one(handle), limit)
    stopped = [n for n, what in outcomes.items() if isinstance(what, ActorStopped)]
    assert len(outcomes) == 100
    assert len(stopped) == 100 - place
    with pytest.raises(ActorStopped):
        await Request(nine).wait(box)


@pytest.mark.parametrize("waiting", [0, 1, 100])
async def test_when_an_actor_is_cancelled_every_request_fails(waiting, autojump_clock):
    outcomes, held = [], trio.Event()

    async def handle(request):
        held.set()
        await trio.sleep_forever()

    async def one(box):
        outcomes.append(await outcome(Request(nine).wait, box))

    box = Mailbox()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery, trio.open_nursery() as acting:
            acting.start_soon(serve, box, one_by_one(handle))
            for _ in range(waiting):
                nursery.start_soon(one, box)
            await (held.wait() if waiting else wait_all_tasks_blocked())
            await wait_all_tasks_blocked()
            acting.cancel_scope.cancel()
    assert len(outcomes) == waiting
    assert all(isinstance(what, ActorStopped) for what in outcomes)


async def test_messages_that_are_no_requests_are_dropped_when_an_actor_ends():
    refuse(["a", None, 5])
    box = Mailbox()
    box.send_nowait("plain")

    async def handle(message):
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="plain"):
        await serve(box, one_by_one(handle))


async def test_a_cancelled_caller_blocks_nothing(autojump_clock):
    done = []

    async def work():
        done.append(1)

    async with serving() as box:
        with trio.CancelScope() as scope:
            scope.cancel()
            await Request(work).wait(box)
        assert scope.cancelled_caught
        with trio.fail_after(30):
            assert await Request(nine).wait(box) == 9
        assert done == [1]


async def test_a_refused_request_fails_and_the_mailbox_continues():
    gate, outcomes = trio.Event(), []

    async def handle(request):
        await gate.wait()
        await answer(request)

    async def one(box):
        outcomes.append(await outcome(Request(nine).wait, box))

    async with serving(handle, capacity=3) as box:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(one, box)
            await wait_all_tasks_blocked()
            gate.set()
    refused = [what for what in outcomes if isinstance(what, Overloaded)]
    assert len(outcomes) == 10
    assert outcomes.count(9) == 10 - len(refused) >= 3
    assert refused
    assert "3" in str(refused[0])


async def test_a_batch_has_at_most_limit_messages():
    box, batches = Mailbox(), []

    async def handle(batch):
        batches.append(batch)
        if batches == [[0, 1, 2]]:
            box.send_nowait(7)

    for number in range(7):
        box.send_nowait(number)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, box, handle, 3)
        await wait_all_tasks_blocked()
        box.close()
    assert batches == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_a_request_whose_caller_was_cancelled_is_abandoned():
    request = Request()
    assert not request.abandoned
    with trio.move_on_after(0):
        await request.wait()
    assert request.abandoned
    kept = Request()
    kept.answer(1)
    await kept.wait()
    assert not kept.abandoned


async def test_the_error_a_mailbox_is_closed_with_reaches_waiting_and_later_callers():
    box, outcomes = Mailbox(), []

    async def handle(batch):
        box.close(StoreFailed("the disk is gone"))
        raise RuntimeError("my own")

    async def one():
        outcomes.append(await outcome(Request(nine).wait, box))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(one)
        await wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="my own"):
            await serve(box, handle, 1)
    await one()
    with pytest.raises(StoreFailed) as reading:
        box.require_open()
    errors = [*outcomes, reading.value]
    assert [(type(error), str(error)) for error in errors] == [
        (StoreFailed, "the disk is gone")
    ] * 5
    assert len({id(error) for error in errors}) == 5, "each has its own: raising one extends it"


async def test_a_later_error_replaces_the_first_but_closing_without_one_does_not():
    box = Mailbox()
    box.require_open()
    box.close()
    for reason, kind in (
        (None, ActorStopped),
        (StoreFailed("gone"), StoreFailed),
        (None, StoreFailed),
    ):
        box.close(reason)
        with pytest.raises(kind):
            box.send_nowait("x")


# Ctrl-C

EVERY_LINE = """
import json, os, signal, sys
import trio
from trio.testing import wait_all_tasks_blocked
from hermes.actors.kernel import mailbox
from hermes.actors.kernel.mailbox import Mailbox, Request, serve

class Interrupt:
    def __init__(self, line):
        self.left, self.hit = line, None
    def __call__(self, frame, event, _):
        if frame.f_code.co_filename != mailbox.__file__:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.hit = f"{frame.f_code.co_name}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self

async def nine():
    return 9

async def answer(batch):
    for request in batch:
        request.answer(await request.work())

async def converse():
    # Callers, an actor and a late caller: everything that waits and wakes.
    with trio.fail_after(20):
        box = Mailbox()
        async with trio.open_nursery() as acting:
            acting.start_soon(serve, box, answer)
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(Request(nine).wait, box)
            await wait_all_tasks_blocked()
            assert await Request(nine).wait(box) == 9
            with trio.move_on_after(0):
                await Request(nine).wait(box)
            box.close()

def kinds(error):
    if isinstance(error, BaseExceptionGroup):
        return {kind for each in error.exceptions for kind in kinds(each)}
    return {type(error).__name__}

line, hits, problems = 0, 0, {}
while True:
    line += 1
    interrupt, ended = Interrupt(line), set()
    sys.settrace(interrupt)
    try:
        trio.run(converse)
    except BaseException as error:
        ended = kinds(error)
    finally:
        sys.settrace(None)
    if interrupt.left > 0:
        break
    hits += 1
    if not ended <= {"KeyboardInterrupt", "ActorStopped"}:
        problems[interrupt.hit] = sorted(ended)
os.write(1, json.dumps([hits, problems]).encode())
os._exit(0)  # what an internal error has left is nobody's business
"""


def test_ctrl_c_at_any_line_ends_everything_and_breaks_nothing():
    """A task that does not wait is never rescheduled: Trio would fail with an internal error."""
    done = subprocess.run(
        [sys.executable, "-c", EVERY_LINE],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        check=True,
        text=True,
        timeout=90,
    )
    hits, problems = json.loads(done.stdout)
    assert hits > 60
    assert problems == {}


class Unraisable(Exception):
    """An exception of which there is no memory for a copy."""

    def __init__(self, *args):
        if args:
            raise MemoryError
        super().__init__("the actor has failed")


async def test_without_memory_for_a_copy_of_the_error_all_requests_are_answered_still():
    requests = [Request() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(raises_memory_error, request)
        await wait_all_tasks_blocked()
        refuse(requests, Unraisable())
    assert all(request.answered for request in requests)


async def raises_memory_error(request):
    with pytest.raises(MemoryError):
        await request.wait()


async def test_a_reader_that_is_woken_without_a_message_waits_again():
    mailbox, found = Mailbox(), []

    async def read():
        found.append(await mailbox.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        mailbox.send_nowait("first")
        assert mailbox.take_nowait() == ["first"]
        await wait_all_tasks_blocked()
        assert mailbox.parked
        mailbox.send_nowait("second")
    assert found == [["second"]]
