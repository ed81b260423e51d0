"""Driver of the baselines in Trio: memory channels, and two tasks that wake each other."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from time import perf_counter

import outcome
import trio
import trio.testing
from trio import lowlevel

from bench.harness.protocol import Figures, serve
from bench.harness.timing import message_figures

Asking = Callable[[trio.Event, int], Awaitable[None]]
"""Starts an actor, waits for the event, then sends the given number of requests."""


async def time_requests(asking: Asking, count: int) -> Figures:
    """Time `count` requests of one caller to one actor, without their start."""
    start = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking, start, count)
        await trio.testing.wait_all_tasks_blocked()
        started = perf_counter()
        start.set()
    return message_figures(count, perf_counter() - started)


async def handle(number: int) -> int:
    return number + 1


def check_processed(count: int, processed: int) -> None:
    if processed != count:
        raise AssertionError(f"{processed} messages were processed instead of {count}")


async def _ask_channels(start: trio.Event, count: int) -> None:
    """One unbounded channel in each direction, used for all requests."""
    send, requests = trio.open_memory_channel[int](math.inf)
    replies, receive = trio.open_memory_channel[int](math.inf)

    async def actor() -> None:
        async for number in requests:
            await replies.send(await handle(number))

    async with trio.open_nursery() as nursery, send:
        nursery.start_soon(actor)
        await start.wait()
        for number in range(count):
            await send.send(number)
            if await receive.receive() != number + 1:
                raise AssertionError(f"wrong reply to {number}")


def _abort(_: object) -> lowlevel.Abort:
    return lowlevel.Abort.SUCCEEDED


async def _echo(
    caller: lowlevel.Task, task_status: trio.TaskStatus[lowlevel.Task] = trio.TASK_STATUS_IGNORED
) -> None:
    """Sleep until woken with a number; wake the caller with the next one."""
    task_status.started(lowlevel.current_task())
    while True:
        number = await lowlevel.wait_task_rescheduled(_abort)
        lowlevel.reschedule(caller, outcome.Value(number + 1))


async def _ask_scheduler(start: trio.Event, count: int) -> None:
    """Two tasks with nothing but the scheduler between them."""
    async with trio.open_nursery() as nursery:
        other = await nursery.start(_echo, lowlevel.current_task())
        await start.wait()
        for number in range(count):
            lowlevel.reschedule(other, outcome.Value(number))
            if await lowlevel.wait_task_rescheduled(_abort) != number + 1:
                raise AssertionError(f"wrong reply to {number}")
        nursery.cancel_scope.cancel()


async def ask(count: int) -> Figures:
    return await time_requests(_ask_channels, count)


async def ping_pong(count: int) -> Figures:
    return await time_requests(_ask_scheduler, count)


async def tell(count: int) -> Figures:
    """Send messages until the last one is processed."""
    processed = 0

    async def process() -> None:
        nonlocal processed
        async for number in requests:
            await handle(number)
            processed += 1

    send, requests = trio.open_memory_channel[int](math.inf)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process)
        await trio.testing.wait_all_tasks_blocked()
        started = perf_counter()
        for number in range(count):
            send.send_nowait(number)
        send.close()
    seconds = perf_counter() - started
    check_processed(count, processed)
    return message_figures(count, seconds)


if __name__ == "__main__":
    serve({"trio": version("trio")}, ask, tell, ping_pong, run=trio.run)
