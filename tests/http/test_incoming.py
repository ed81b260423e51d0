"""The queue between a connection and the app: whatever arrives is received, in order."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given, strategies as st

from hermes.adapters.http.incoming import MAX_JOINED, MAX_PIECES, Incoming

DISCONNECT = "http.disconnect"


def piece(body, *, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


async def received(incoming):
    """Receive everything until the connection has ended; returns the body and the last event."""
    body = b""
    while (event := await incoming.receive())["type"] != DISCONNECT:
        body += event["body"]
    return body, event


sizes = st.lists(st.integers(0, 2 * MAX_JOINED), max_size=3 * MAX_PIECES)


@given(sizes, st.booleans())
def test_a_body_is_received_in_order(sizes, reads_first):
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]

    async def main():
        incoming, result = Incoming(DISCONNECT), []

        async def put():
            for each in pieces:
                await incoming.put(piece(each))
            await incoming.put(piece(b"", more=False))
            await incoming.put({"type": DISCONNECT, "why": "end"})

        async def get():
            result.extend(await received(incoming))

        async with trio.open_nursery() as nursery:
            for task in (get, put) if reads_first else (put, get):
                nursery.start_soon(task)
                await trio.testing.wait_all_tasks_blocked()
        assert result == [b"".join(pieces), {"type": DISCONNECT, "why": "end"}]

    trio.run(main)


async def test_large_pieces_wait_until_the_app_receives_some():
    incoming, put = Incoming(DISCONNECT), []

    async def feed():
        for number in range(2 * MAX_PIECES):
            await incoming.put(piece(bytes(MAX_JOINED)))
            put.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        await trio.testing.wait_all_tasks_blocked()
        assert len(put) == MAX_PIECES
        await incoming.receive()
        await trio.testing.wait_all_tasks_blocked()
        assert len(put) == MAX_PIECES + 1
        incoming.close()  # what nobody receives is not waited for
    assert len(put) == 2 * MAX_PIECES


async def test_joining_tiny_pieces_lets_other_tasks_run():
    incoming, steps = Incoming(DISCONNECT), []

    async def feed():
        for _ in range(1000):
            await incoming.put(piece(b"x"))
            steps.append("put")

    async def other():
        while steps.count("put") < 1000:
            steps.append("other")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        nursery.start_soon(other)
    longest = max(len(run) for run in "".join(step[0] for step in steps).split("o"))
    assert longest <= 2 * MAX_PIECES


async def test_a_whole_body_can_be_taken_at_once_and_only_then():
    incoming = Incoming(DISCONNECT)
    assert incoming.take_whole_body() is None
    await incoming.put(piece(b"a"))
    assert incoming.take_whole_body() is None
    await incoming.put(piece(b"b"))
    await incoming.put(piece(b"", more=False))
    assert incoming.take_whole_body() == b"ab"
    assert incoming.take_whole_body() is None


async def test_the_rest_of_a_body_is_not_taken_for_the_whole():
    incoming = Incoming(DISCONNECT)
    await incoming.put(piece(b"a"))
    await incoming.receive()
    await incoming.put(piece(b"b", more=False))
    assert incoming.take_whole_body() is None
    assert (await incoming.receive())["body"] == b"b"


async def test_the_end_of_a_connection_is_told_at_once_and_received_last():
    incoming, told = Incoming(DISCONNECT), []
    incoming.on_disconnect(lambda: told.append(True))
    await incoming.put(piece(b"a"))
    await incoming.put({"type": DISCONNECT})
    assert told == [True]
    assert (await incoming.receive())["body"] == b"a"
    assert await incoming.receive() == await incoming.receive() == {"type": DISCONNECT}
