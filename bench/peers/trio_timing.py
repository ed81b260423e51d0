"""`timing.with_asyncio` once more, for Trio."""

from __future__ import annotations

from time import perf_counter

import trio

from bench.peers.timing import NAP, Append, Run, call, warm_up


async def with_trio(append: Append, callers: int, seconds: float, count: int) -> Run:
    """Many callers in one loop, each awaiting its append before the next."""
    async with trio.open_nursery() as nursery:
        for caller in range(callers):
            nursery.start_soon(warm_up, append, callers, caller)
    run = Run(seconds, count)
    async with trio.open_nursery() as sleepers:
        if callers > 1:  # alone, it would disturb
            sleepers.start_soon(nap, run)
        async with trio.open_nursery() as nursery:
            for caller in range(callers):
                nursery.start_soon(call, run, append, callers, caller)
        run.finish()
        sleepers.cancel_scope.cancel()
    return run


async def nap(run: Run) -> None:
    """Sleep a little, again and again: what a nap lasts too long, everybody in the loop waited."""
    while True:
        started = perf_counter()
        await trio.sleep(NAP)
        run.napped(started)
