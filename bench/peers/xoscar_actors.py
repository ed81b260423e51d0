"""xoscar 0.12.2: an actor in the pool of the caller's own process.

`xo.create_actor` returns a reference that passes messages: `ask` and `tell`. `xo.actor_ref` makes
of it, in the same process, one that calls the actor's method in the caller's own task, with a lock
and no message: `ask_direct` and `tell_direct`, for information.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from time import perf_counter

import xoscar as xo

from bench.peers import messaging
from bench.peers.wire import Figures, serve

ADDRESS = "127.0.0.1"  # a pool must have one; nobody connects to it


async def pool_of_one() -> xo.MainActorPoolType:
    """No subprocess, and no socket file, whose path would have to be short."""
    return await xo.create_actor_pool(ADDRESS, n_process=0, enable_internal_addresses=[False])


class Adder(xo.Actor):
    """Sets `done` when it has processed so many messages."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.done = asyncio.Event()
        self.processed = 0

    async def handle(self, number: int) -> int:
        return number + 1

    async def tally(self, number: int) -> int:
        self.processed += 1
        if self.processed == self.count:
            self.done.set()
        return number + 1

    async def seen(self) -> int:
        return self.processed


async def _ask(count: int, *, direct: bool) -> Figures:
    async with await pool_of_one() as pool:
        adder = await xo.create_actor(Adder, count, address=pool.external_address)
        if direct:
            adder = await xo.actor_ref(adder)
        return await messaging.asked(adder.handle, count)


async def _tell(count: int, *, direct: bool) -> Figures:
    async with await pool_of_one() as pool:
        adder = await xo.create_actor(Adder, count, address=pool.external_address)
        if direct:
            adder = await xo.actor_ref(adder)
        done = pool._actors[adder.uid].done  # noqa: SLF001 - asking when it is done would disturb
        started = perf_counter()
        for number in range(count):
            await adder.tally.tell(number)
        await done.wait()
        seconds = perf_counter() - started
        messaging.check(count, await adder.seen())
    return messaging.figures(count, seconds)


def ask(count: int) -> Figures:
    return asyncio.run(_ask(count, direct=False))


def ask_direct(count: int) -> Figures:
    return asyncio.run(_ask(count, direct=True))


def tell(count: int) -> Figures:
    """Until the last message is processed."""
    return asyncio.run(_tell(count, direct=False))


def tell_direct(count: int) -> Figures:
    return asyncio.run(_tell(count, direct=True))


if __name__ == "__main__":
    serve(
        {"xoscar": version("xoscar")},
        {"ask": ask, "tell": tell, "ask_direct": ask_direct, "tell_direct": tell_direct},
    )
