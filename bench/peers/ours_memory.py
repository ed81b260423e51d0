"""What actors of ours take of memory: `python -m bench.peers.ours_memory WHAT FILE COUNT`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import trio

from bench import texts
from bench.peers.ours_runtime import HISTORY, echo, fill
from hermes import open_runtime
from hermes.actors.runtime import Runtime
from hermes.agents.chat import ChatAgent
from hermes.agents.providers.base import Endpoint, Piece, Said
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.config import Config
from hermes.messages import Message

NOWHERE = Endpoint(base_url="http://127.0.0.1:9/v1", model="m")
GROUP = 100


class AtOnce(OpenAIChat):
    """All of a provider but the network."""

    async def ask(self, body: bytes, hear: Callable[[Piece], None]) -> Said:
        await trio.lowlevel.checkpoint()
        return Said(Message("assistant", texts.text(0, 1)))


def resident() -> int:
    """The memory of this process, without what is only waiting to be collected."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def idle(path: Path, count: int) -> float:
    """KiB of an actor that has nothing to do."""
    async with open_runtime(path, agent=echo) as runtime:
        await _begin(runtime, 0, GROUP)
        before = resident()
        await _begin(runtime, GROUP, GROUP + count)
        actors = runtime.statistics().actors - GROUP
        if actors != count:
            raise AssertionError(f"there are {actors} actors instead of {count}")
        return (resident() - before) / count / 1024


async def _begin(runtime: Runtime, first: int, last: int) -> None:
    """A new session for each; what a thousand requests at once would take is not that of actors."""
    for some in range(first, last, GROUP):
        async with trio.open_nursery() as nursery:
            for number in range(some, min(some + GROUP, last)):
                nursery.start_soon(runtime.new_session, f"key {number}")


async def warm(path: Path, count: int) -> float:
    """KiB of an actor that has just answered: its agent, its transcript, what was sent."""
    config = Config(max_agents=3 * count)
    async with (
        httpx2.AsyncClient() as client,
        open_runtime(
            path, agent=lambda _: ChatAgent(AtOnce(client, NOWHERE)), config=config
        ) as runtime,
    ):
        await _talk(runtime, 0, count)  # until SQLite's cache and Python's pools have their size
        before = resident()
        await _talk(runtime, count, 2 * count)
        agents = runtime.statistics().agents
        if agents != 2 * count:
            raise AssertionError(f"{agents} agents are cached instead of {2 * count}")
        if len(await runtime.history(f"key {count}")) != HISTORY:
            raise AssertionError("the transcript is not as long as it should be")
        return (resident() - before) / count / 1024


async def _talk(runtime: Runtime, first: int, last: int) -> None:
    """One turn in each of these chats, few at a time as well."""
    for some in range(first, last, 10):
        async with trio.open_nursery() as nursery:
            for number in range(some, min(some + 10, last)):
                nursery.start_soon(runtime.ask, f"key {number}", texts.text(number, 0))


def main(what: str, path: Path, count: int) -> float:
    if what == "idle":
        return trio.run(idle, path, count)
    fill(path, HISTORY - 2, 2 * count, chats=2 * count)
    return trio.run(warm, path, count)


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
