"""What every driver of messages does alike: a few to warm up, then the clock, then a check.

Everybody's actor adds one to a number.
Standard library only: the peers' interpreters import it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter

from bench.peers.wire import Figures

WARM_UP = 200


def figures(count: int, seconds: float) -> Figures:
    return {"count": float(count), "rate": count / seconds, "us": seconds / count * 1e6}


def check(count: int, processed: int) -> None:
    if processed != count:
        raise AssertionError(f"{processed} messages were processed instead of {count}")


def asked_blocking(ask: Callable[[int], int], count: int) -> Figures:
    """One caller: ask, have the answer, ask the next."""
    for number in range(WARM_UP):
        ask(number)
    started = perf_counter()
    for number in range(count):
        if ask(number) != number + 1:
            raise AssertionError(f"a wrong answer to {number}")
    return figures(count, perf_counter() - started)


async def asked(ask: Callable[[int], Awaitable[int]], count: int) -> Figures:
    """`asked_blocking` once more, for any event loop."""
    for number in range(WARM_UP):
        await ask(number)
    started = perf_counter()
    for number in range(count):
        if await ask(number) != number + 1:
            raise AssertionError(f"a wrong answer to {number}")
    return figures(count, perf_counter() - started)
