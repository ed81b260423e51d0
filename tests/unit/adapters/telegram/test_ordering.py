"""Which updates are confirmed, and in which order messages with files are submitted."""

from __future__ import annotations

import pytest
import trio

from hermes.adapters.telegram.ordering import Confirmations, Lanes
from hermes.background import open_background
from hermes.errors import StoreBusy


def test_only_updates_before_the_first_open_one_are_confirmed():
    updates = Confirmations()
    updates.receive([5, 6, 7, 8], None, all_open=True)
    assert updates.offset() is None
    updates.done(5)
    updates.done(7)
    assert updates.offset() == 6
    updates.receive([6, 7, 8], 6, all_open=True)
    assert updates.offset() is None
    assert (updates.is_done(7), updates.is_done(5)) == (True, False)
    updates.done(6)
    assert updates.offset() == 8
    updates.done(8)
    assert updates.offset() == 9
    updates.receive([], 9, all_open=True)
    assert updates.offset() is None


def test_a_running_update_is_not_confirmed_even_if_an_answer_lacks_it():
    updates = Confirmations()
    updates.receive([5, 6], None, all_open=True)
    updates.receive([], None, all_open=True)
    updates.done(6)
    assert updates.offset(running=[5]) is None
    updates.done(5)
    assert updates.offset() == 7


def test_an_update_that_failed_and_that_telegram_has_dropped_does_not_stop_confirmations():
    updates = Confirmations()
    updates.receive([5, 6], None, all_open=True)
    updates.done(6)
    assert updates.offset() is None
    updates.receive([6], None, all_open=False)  # a poll for one update
    assert updates.offset() is None
    updates.receive([6], None, all_open=True)
    assert updates.offset() == 7


class Script:
    """Jobs that end when they are told to, and what they did."""

    def __init__(self, nursery):
        self.submitted = []
        self.done = []
        self.gates = {}
        self.lanes = Lanes(nursery, self.done.append)

    def start(self, number, key="a", album=None, error=None):
        gate = self.gates[number] = trio.Event()

        async def job(position):
            await gate.wait()
            await position.reach()
            if error is not None:
                raise error
            self.submitted.append(number)

        self.lanes.start(number, key, job, album)

    async def finish(self, *numbers):
        for number in numbers:
            self.gates[number].set()
            await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def script():
    async with open_background() as background:
        yield Script(background)


async def test_a_conversation_keeps_its_order_and_others_do_not_wait(script):
    for number, key in ((1, "a"), (2, "b"), (3, "a")):
        script.start(number, key)
    assert (script.lanes.is_busy("a"), script.lanes.is_busy("c")) == (True, False)
    await script.finish(3, 2)
    assert (script.submitted, script.done, script.lanes.running) == ([2], [2], {1, 3})
    await script.finish(1)
    assert (script.submitted, script.done) == ([2, 1, 3], [2, 1, 3])
    assert not script.lanes.is_busy("a")


async def test_a_job_without_a_submission_does_not_let_others_overtake(script):
    async def nothing(position):
        pass

    script.start(1)
    script.lanes.start(2, "a", nothing)
    script.start(3)
    await script.finish(3)
    assert script.submitted == []
    await script.finish(1)
    assert (script.submitted, script.done) == ([1, 3], [1, 2, 3])


async def test_the_files_of_an_album_are_submitted_when_all_are_there(script):
    script.start(1, album="x")
    script.start(2, album="x")
    await script.finish(1)
    script.start(3, album="x")
    await script.finish(2)
    assert script.submitted == []
    await script.finish(3)
    assert script.submitted == [1, 2, 3]


async def test_after_a_failure_those_behind_it_are_postponed(script):
    script.start(1, error=StoreBusy("busy"))
    script.start(2)
    script.start(3, "b")
    await script.finish(3, 2, 1)
    assert (script.submitted, script.done, script.lanes.running) == ([3], [3], set())
    with pytest.raises(StoreBusy):
        await script.lanes.wait(1)
    await script.lanes.wait(1)  # it is raised once


async def test_waiting_ends_with_a_job_or_after_a_time(script, autojump_clock):
    script.start(1)
    start = trio.current_time()
    await script.lanes.wait(5)
    assert trio.current_time() - start == 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(script.lanes.wait, 5)
        await trio.testing.wait_all_tasks_blocked()
        script.gates[1].set()
    assert trio.current_time() - start == 5
