"""xoscar 0.12.2: an actor in the pool of the caller's own process, asked by messages."""

from __future__ import annotations

from importlib.metadata import version

import xoscar as xo

from bench.harness.driver import Figures, ask_async, serve

ADDRESS = "127.0.0.1"  # a pool needs an address; nothing connects to it


class Adder(xo.Actor):
    async def handle(self, number: int) -> int:
        return number + 1


async def ask(count: int) -> Figures:
    # No subprocess, and no socket file, whose path would have to be short.
    pool = await xo.create_actor_pool(ADDRESS, n_process=0, enable_internal_addresses=[False])
    async with pool:
        adder = await xo.create_actor(Adder, address=pool.external_address)
        return await ask_async(adder.handle, count)


if __name__ == "__main__":
    serve({"xoscar": version("xoscar")}, ask)
