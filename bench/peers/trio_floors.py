"""The limits of messages in Trio: memory channels, and two tasks that hand over to each other."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from time import perf_counter

import outcome
import trio
import trio.testing
from trio import lowlevel

from bench.peers import messaging
from bench.peers.wire import Figures, serve

Call = Callable[[trio.Event, int], Awaitable[None]]
"""A caller with an actor of its own: gets ready, waits for the event, asks so many times."""


async def race(call: Call, count: int, pairs: int) -> Figures:
    """`count` asks altogether, by `pairs` callers at once; getting ready is not timed."""
    each = count // pairs
    go = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(pairs):
            nursery.start_soon(call, go, each)
        await trio.testing.wait_all_tasks_blocked()
        started = perf_counter()
        go.set()
    return messaging.figures(each * pairs, perf_counter() - started)


async def handle(number: int) -> int:
    return number + 1


async def answer(
    requests: trio.MemoryReceiveChannel[int], replies: trio.MemorySendChannel[int]
) -> None:
    """An actor as a loop over a channel."""
    async for number in requests:
        await replies.send(await handle(number))


async def through_channels(go: trio.Event, count: int) -> None:
    """One channel there and one back, both without a bound, kept through all asks."""
    send, requests = trio.open_memory_channel[int](math.inf)
    replies, receive = trio.open_memory_channel[int](math.inf)
    async with trio.open_nursery() as nursery, send:
        nursery.start_soon(answer, requests, replies)
        await go.wait()
        for number in range(count):
            await send.send(number)
            if await receive.receive() != number + 1:
                raise AssertionError(f"a wrong answer to {number}")


async def told(count: int) -> Figures:
    processed = 0

    async def process(requests: trio.MemoryReceiveChannel[int]) -> None:
        nonlocal processed
        async for number in requests:
            await handle(number)
            processed += 1

    send, requests = trio.open_memory_channel[int](math.inf)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process, requests)
        await trio.testing.wait_all_tasks_blocked()
        started = perf_counter()
        for number in range(count):
            send.send_nowait(number)
        send.close()
    seconds = perf_counter() - started
    messaging.check(count, processed)
    return messaging.figures(count, seconds)


def abort(_: object) -> lowlevel.Abort:
    return lowlevel.Abort.SUCCEEDED


async def echo(
    caller: lowlevel.Task, task_status: trio.TaskStatus[lowlevel.Task] = trio.TASK_STATUS_IGNORED
) -> None:
    """Parked; woken with a number, wakes the caller with the next."""
    task_status.started(lowlevel.current_task())
    while True:
        number = await lowlevel.wait_task_rescheduled(abort)
        lowlevel.reschedule(caller, outcome.Value(number + 1))


async def hand_over(go: trio.Event, count: int) -> None:
    """Nothing between the two tasks but the scheduler."""
    async with trio.open_nursery() as nursery:
        other = await nursery.start(echo, lowlevel.current_task())
        await go.wait()
        for number in range(count):
            lowlevel.reschedule(other, outcome.Value(number))
            if await lowlevel.wait_task_rescheduled(abort) != number + 1:
                raise AssertionError(f"a wrong answer to {number}")
        nursery.cancel_scope.cancel()


def ask(count: int, pairs: int = 1) -> Figures:
    return trio.run(race, through_channels, count, pairs)


def tell(count: int) -> Figures:
    """Until the last message is processed."""
    return trio.run(told, count)


def ping_pong(count: int, pairs: int = 1) -> Figures:
    return trio.run(race, hand_over, count, pairs)


if __name__ == "__main__":
    serve({"trio": version("trio")}, {"ask": ask, "tell": tell, "ping_pong": ping_pong})
