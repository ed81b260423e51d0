"""`timing.time_asyncio` for Trio."""

from __future__ import annotations

from time import perf_counter

import trio

from bench.harness.timing import NAP, Call, Run, call_repeatedly, warm_up, warm_up_turns


async def time_trio(
    call: Call, callers: int, seconds: float, count: int = 0, *, turns: int = 0, stalls: bool = True
) -> Run:
    """Time concurrent callers in one Trio loop; the arguments are those of `time_asyncio`."""
    turns = turns or warm_up_turns(callers)
    async with trio.open_nursery() as nursery:
        for caller in range(callers):
            nursery.start_soon(warm_up, call, caller, turns)
    run = Run(seconds, count)
    async with trio.open_nursery() as napping:
        if callers > 1 and stalls:
            napping.start_soon(_nap, run)
        async with trio.open_nursery() as nursery:
            for caller in range(callers):
                nursery.start_soon(call_repeatedly, run, call, caller, turns)
        run.finish()
        napping.cancel_scope.cancel()
    return run


async def _nap(run: Run) -> None:
    while True:
        started = perf_counter()
        await trio.sleep(NAP)
        run.add_nap(started)
