"""Mailboxes and requests: order, bounds, and an answer for everybody, however somebody ends."""

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

from hermes.actors.kernel.mailbox import FAIR, Mailbox, Request, ask, refuse, serve
from hermes.errors import ActorStopped, Overloaded


async def nine():
    return 9


async def answer(request):
    """The plainest actor: do the work of a request, and answer."""
    request.answer(await request.work())


@asynccontextmanager
async def serving(handle=answer, capacity=1000):
    """An actor around a block; leaving it closes the mailbox, and waits for the actor."""
    box = Mailbox(capacity)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, box, handle)
        yield box
        box.close()


async def outcome(wait, *args):
    """What becomes of an asker: the answer or the error."""
    try:
        return await wait(*args)
    except (ActorStopped, Overloaded, ValueError) as error:
        return error


# The mailbox


ACTIONS = st.lists(
    st.one_of(st.just("send"), st.just("take"), st.just("close")), max_size=60
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
        else:
            box.close()
            closed = True
        statistics = box.statistics()
        assert (statistics.waiting, statistics.closed) == (len(model), closed) == (len(box), closed)
        assert (statistics.capacity, statistics.parked) == (capacity, False)


class Crowd:
    """Senders that send in bursts, and a reader that is cancelled now and then."""

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
        while not self.box.statistics().closed or len(self.box):
            with trio.CancelScope() as scope:
                if self.random.random() < 0.3:
                    scope.cancel()
                self.taken += await self.box.take()
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
def test_whoever_sends_and_whenever_the_reader_is_cancelled_all_arrives_once_and_in_order(
    bursts, capacity, random
):
    """What a full mailbox refuses is all that does not arrive."""
    crowd = Crowd(capacity, random)
    trio.run(crowd.run, bursts)
    assert crowd.taken == crowd.sent


async def test_a_reader_gets_all_that_came_in_the_step_that_woke_it():
    box, taken = Mailbox(), []

    async def read():
        taken.append(await box.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert box.statistics().parked
        box.send_nowait(1)
        box.send_nowait(2)
        assert not box.statistics().parked
    assert taken == [[1, 2]]
    assert len(box) == 0


async def test_a_cancelled_reader_leaves_a_mailbox_that_another_can_read():
    box = Mailbox()
    with trio.move_on_after(0):
        await box.take()
    assert not box.statistics().parked
    box.send_nowait("kept")
    assert await box.take() == ["kept"]


async def test_mail_and_cancellation_at_once_lose_no_mail():
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


async def test_the_cancellation_first_and_the_mail_after_it_lose_no_mail():
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


async def test_a_closed_mailbox_gives_what_it_has_and_then_nothing_for_ever(autojump_clock):
    box = Mailbox()
    box.send_nowait("last")
    box.close()
    box.close()
    with trio.fail_after(30):
        assert await box.take() == ["last"]
        assert await box.take() == []
        assert await box.take() == []


async def test_closing_wakes_a_reader_that_waits():
    box = Mailbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.take)
        await wait_all_tasks_blocked()
        box.close()


async def test_an_idle_mailbox_holds_nothing():
    """A hundred thousand idle actors have one each."""
    box = Mailbox()
    assert box._mail is None
    box.send_nowait("x")
    await box.take()
    assert box._mail is None
    assert not hasattr(box, "__dict__")


# Requests


async def test_an_answer_that_is_there_already_is_not_waited_for():
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


async def test_the_answer_and_the_cancellation_at_once_give_the_answer():
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
                    request.answer("yes")  # nobody is woken who does not wait
        assert got == (["yes"] if first == "answer" else [])
        assert request.answered


async def test_an_error_that_was_raised_is_not_kept_by_its_own_traceback():
    class Marked(ValueError):
        pass

    def failed():
        request = Request()
        request.fail(Marked("no"))
        return request.wait()

    gc.collect()
    gc.disable()
    try:
        try:
            await failed()
        except Marked as error:
            gone = weakref.ref(error)
        assert gone() is None
    finally:
        gc.enable()


# Actors


async def test_an_actor_answers_in_order_and_each_asker_gets_his_own():
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
        got[n] = await ask(box, Request(functools.partial(number, n)))

    async with serving(handle) as box:
        async with trio.open_nursery() as nursery:
            for n in range(300):
                nursery.start_soon(one, box, n)
    assert handled == asked
    assert got == {n: n for n in range(300)}


async def test_what_waits_when_the_mailbox_is_closed_is_still_done():
    async with serving() as box:
        requests = [Request(nine) for _ in range(200)]
        for request in requests:
            box.send_nowait(request)
        box.close()
    assert [await request.wait() for request in requests] == [9] * 200


@pytest.mark.parametrize("place", [0, 1, 63, 64, 65, 99])
async def test_when_an_actor_raises_everybody_who_waits_is_told(place, autojump_clock):
    """Also the one whose request it was, and those who come later."""
    handled, outcomes = 0, {}

    async def handle(request):
        nonlocal handled
        handled += 1
        if handled == place + 1:
            raise RuntimeError("my own")
        await answer(request)

    async def one(box, n):
        outcomes[n] = await outcome(ask, box, Request(nine))

    box = Mailbox()
    with trio.fail_after(10):
        async with trio.open_nursery() as waiters:
            for n in range(100):
                waiters.start_soon(one, box, n)
            await wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="my own"):
                await serve(box, handle)
    stopped = [n for n, what in outcomes.items() if isinstance(what, ActorStopped)]
    assert len(outcomes) == 100
    assert len(stopped) == 100 - place
    with pytest.raises(ActorStopped):
        await ask(box, Request(nine))


@pytest.mark.parametrize("waiting", [0, 1, 100])
async def test_when_an_actor_is_cancelled_everybody_who_waits_is_told(waiting, autojump_clock):
    outcomes, held = [], trio.Event()

    async def handle(request):
        held.set()
        await trio.sleep_forever()

    async def one(box):
        outcomes.append(await outcome(ask, box, Request(nine)))

    box = Mailbox()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery, trio.open_nursery() as acting:
            acting.start_soon(serve, box, handle)
            for _ in range(waiting):
                nursery.start_soon(one, box)
            await (held.wait() if waiting else wait_all_tasks_blocked())
            await wait_all_tasks_blocked()
            acting.cancel_scope.cancel()
    assert len(outcomes) == waiting
    assert all(isinstance(what, ActorStopped) for what in outcomes)


async def test_an_actor_cancelled_while_it_is_fair_tells_everybody():
    """The checkpoint after every 64 messages may be where it ends."""
    outcomes = []

    async def one(box):
        outcomes.append(await outcome(ask, box, Request(nine)))

    box = Mailbox()
    async with trio.open_nursery() as nursery:
        for _ in range(2 * FAIR):
            nursery.start_soon(one, box)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await serve(box, answer)
    assert scope.cancelled_caught
    assert outcomes.count(9) == FAIR
    assert sum(isinstance(what, ActorStopped) for what in outcomes) == FAIR


async def test_mail_that_is_no_request_is_simply_left_when_an_actor_ends():
    refuse(["a", None, 5])
    box = Mailbox()
    box.send_nowait("plain")

    async def handle(message):
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="plain"):
        await serve(box, handle)


async def test_a_cancelled_asker_leaves_nothing_stuck(autojump_clock):
    done = []

    async def work():
        done.append(1)

    async with serving() as box:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ask(box, Request(work))
        assert scope.cancelled_caught
        with trio.fail_after(30):
            assert await ask(box, Request(nine)) == 9
        assert done == [1]


async def test_a_refused_request_is_told_so_and_the_mailbox_goes_on():
    gate, outcomes = trio.Event(), []

    async def handle(request):
        await gate.wait()
        await answer(request)

    async def one(box):
        outcomes.append(await outcome(ask, box, Request(nine)))

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


async def test_others_get_their_turn_every_64_messages():
    """However much mail there is, and though neither the handler nor `take` waits for anything."""

    class Steps(trio.abc.Instrument):
        """How much the actor does without a pause."""

        before = 0

        def before_task_step(self, task):
            self.before = handled

        def after_task_step(self, task):
            steps.append(handled - self.before)

    handled, steps, box = 0, [], Mailbox()

    async def handle(number):
        nonlocal handled
        handled += 1
        if number:
            box.send_nowait(number - 1)  # there is always more
        elif handled == 5201:
            box.close()

    for _ in range(200):
        box.send_nowait(0)
    box.send_nowait(5000)
    instrument = Steps()
    trio.lowlevel.add_instrument(instrument)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, box, handle)
    finally:
        trio.lowlevel.remove_instrument(instrument)
    assert sum(steps) == 5201
    assert max(steps) == FAIR == 64


# Ctrl-C

EVERY_LINE = """
import json, os, signal, sys
import trio
from trio.testing import wait_all_tasks_blocked
from hermes.actors.kernel import mailbox
from hermes.actors.kernel.mailbox import Mailbox, Request, ask, serve

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

async def answer(request):
    request.answer(await request.work())

async def converse():
    # Askers, an actor and a late asker: everything that waits and wakes.
    with trio.fail_after(20):
        box = Mailbox()
        async with trio.open_nursery() as acting:
            acting.start_soon(serve, box, answer)
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(ask, box, Request(nine))
            await wait_all_tasks_blocked()
            assert await ask(box, Request(nine)) == 9
            with trio.move_on_after(0):
                await ask(box, Request(nine))
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
    """A task that does not wait is never woken: Trio would end by an internal error."""
    done = subprocess.run(
        [sys.executable, "-c", EVERY_LINE],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
        text=True,
        timeout=90,
    )
    hits, problems = json.loads(done.stdout)
    assert hits > 60
    assert problems == {}
