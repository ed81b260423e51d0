"""Lanes: rows that are offered while older ones are read from the store, and blank texts."""

from __future__ import annotations

import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from hermes.actors.delivery.lane import MAX_ROWS, Endpoint, Lane
from hermes.messages import OutboxRow
from hermes.testing import MemoryAdapter


def row(outbox_id):
    body = {"platform": "memory", "text": str(outbox_id)}
    return OutboxRow(outbox_id, "k", 1, "lane", body, "pending", 0, recovered=False)


class Outbox:
    """The rows of one lane. A read has its result when it starts, and returns it when told to."""

    def __init__(self):
        self.rows = []
        self.unknown = []
        self.reading = trio.Event()
        self.go_on = trio.Event()

    async def pending_outbox(self, lane, *, limit):
        found = self.rows[:limit]
        self.reading.set()
        await self.go_on.wait()
        return found

    async def mark_sending(self, outbox_ids):
        await trio.lowlevel.checkpoint()
        return outbox_ids

    async def mark_unknown(self, outbox_ids):
        await trio.lowlevel.checkpoint()
        self.unknown += outbox_ids


async def test_rows_that_are_offered_during_a_read_are_sent_once_and_in_order():
    outbox, adapter, sent = Outbox(), MemoryAdapter(), []
    lane = Lane("lane", Endpoint.of(adapter), outbox, sent.append, sent)

    def commit(outbox_id):
        outbox.rows.append(row(outbox_id))
        lane.offer(outbox.rows[-1])

    for outbox_id in range(1, MAX_ROWS + 11):
        commit(outbox_id)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        await outbox.reading.wait()
        for outbox_id in range(MAX_ROWS + 11, MAX_ROWS + 21):
            commit(outbox_id)
        await wait_all_tasks_blocked()
        outbox.go_on.set()
    assert sent == list(range(1, MAX_ROWS + 21))
    assert adapter.texts == [str(outbox_id) for outbox_id in sent]


async def test_rows_that_were_given_up_meanwhile_do_not_keep_a_lane_busy():
    outbox, adapter, sent = Outbox(), MemoryAdapter(), []
    outbox.go_on.set()
    lane = Lane("lane", Endpoint.of(adapter), outbox, sent.append, sent)
    for outbox_id in range(1, MAX_ROWS + 11):
        lane.offer(row(outbox_id))  # the store has none of them
    with trio.fail_after(30):
        await lane.run()
        assert sent == list(range(1, MAX_ROWS + 1))
        lane.offer(row(MAX_ROWS + 11))
        await lane.run()
    assert sent[-1] == MAX_ROWS + 11


async def test_a_blank_text_is_sent_as_it_is():
    """`split` leaves out blank parts, but a row is not marked as sent without a send."""
    adapter, sent = MemoryAdapter(limit=15), []
    lane = Lane("lane", Endpoint.of(adapter), Outbox(), sent.append, sent)
    blank = row(1)
    lane.offer(replace(blank, body={**blank.body, "text": " "}))
    await lane.run()
    assert sent == [1]
    assert adapter.texts == [" "]


async def test_what_an_ended_lane_had_in_flight_is_marked_before_it_is_sent_again():
    outbox, adapter, sent = Outbox(), MemoryAdapter(), []
    outbox.rows = [replace(row(1), state="sending"), row(2)]
    outbox.go_on.set()
    lane = Lane("lane", Endpoint.of(adapter), outbox, sent.append, sent)
    lane.look()
    await lane.run()
    assert outbox.unknown == [1]
    assert [each.recovered for each in adapter.sent] == [True, False]
