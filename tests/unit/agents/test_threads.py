"""Handing items over to another thread."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from hermes.agents.remote_turns import LoopTurn
from hermes.agents.threads import Handover
from hermes.events import TextDelta


class Scheduled(list):
    """Functions that another thread will call."""

    def run(self):
        while self:
            self.pop(0)()


def test_items_that_gather_are_handed_over_together_and_in_order():
    scheduled, received = Scheduled(), []
    handover = Handover(scheduled.append, received.append)
    for number in range(200):
        handover.put(number)
    assert len(scheduled) == 1
    scheduled.run()
    assert received == list(range(200))
    handover.put("later")
    assert len(scheduled) == 1
    scheduled.run()
    assert received[-1] == "later"


def test_an_item_that_is_put_while_others_are_received_is_not_forgotten():
    scheduled, received = Scheduled(), []

    def receive(item):
        received.append(item)
        if item < 3:
            handover.put(item + 1)

    handover = Handover(scheduled.append, receive)
    handover.put(0)
    scheduled.run()
    assert received == [0, 1, 2, 3]


def test_a_receiver_that_raises_gets_the_other_items_later():
    scheduled, received = Scheduled(), []

    def receive(item):
        received.append(item)
        if item == 1:
            raise ZeroDivisionError

    handover = Handover(scheduled.append, receive)
    for number in range(4):
        handover.put(number)
    with pytest.raises(ZeroDivisionError):
        scheduled.run()
    assert received == [0, 1]
    scheduled.run()
    assert received == [0, 1, 2, 3]


async def test_many_threads_lose_nothing():
    received = []
    token = trio.lowlevel.current_trio_token()
    handover = Handover(token.run_sync_soon, received.append)
    threads = [
        threading.Thread(target=lambda first=first: [handover.put((first, n)) for n in range(500)])
        for first in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await trio.to_thread.run_sync(thread.join)
    await trio.testing.wait_all_tasks_blocked()
    for first in range(4):
        assert [n for number, n in received if number == first] == list(range(500))


class Listening:
    """A turn that keeps its events."""

    turn_id = 1

    def __init__(self):
        self.events = []

    def emit(self, event):
        self.events.append(event)


async def test_the_events_of_a_turn_on_a_loop_cross_together():
    turn = Listening()
    remote = LoopTurn(turn)
    pieces = [TextDelta(f"{number}") for number in range(200)]
    for piece in pieces:
        remote.emit(piece)
    assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == 1
    await trio.testing.wait_all_tasks_blocked()
    assert turn.events == pieces
