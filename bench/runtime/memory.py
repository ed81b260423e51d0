"""Memory of our actors, in a new process: `python -m bench.runtime.memory WHAT FILE COUNT`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import trio

from bench.harness.sample_text import text
from bench.runtime.ours import HISTORY, check_rows, fill, key_of, reply_at_once
from hermes import open_runtime
from hermes.agents.chat import ChatAgent
from hermes.agents.providers.base import Completion, Delta, Endpoint
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.config import Config
from hermes.messages import Message

UNUSED = Endpoint(base_url="http://127.0.0.1:9/v1", model="m")
GROUP = 100
TALKING = 10


class ReplyAtOnce(OpenAIChat):
    """A provider without the network."""

    async def complete(self, body: bytes, on_delta: Callable[[Delta], None]) -> Completion:
        await trio.lowlevel.checkpoint()
        return Completion(Message("assistant", text(0, 1)))


def resident() -> int:
    """The resident memory of this process, after a garbage collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _in_groups(
    do: Callable[..., Awaitable[object]], numbers: range, size: int, *texts: str
) -> None:
    """A few at a time: the memory of concurrent requests is not that of actors."""
    for first in range(numbers.start, numbers.stop, size):
        async with trio.open_nursery() as nursery:
            for number in range(first, min(first + size, numbers.stop)):
                nursery.start_soon(do, key_of(number), *texts)


async def idle(path: Path, count: int) -> float:
    """KiB of an actor without work."""
    async with open_runtime(path, agent=reply_at_once) as runtime:

        async def begin(key: str) -> None:
            await runtime.conversation(key).new()

        await _in_groups(begin, range(GROUP), GROUP)
        before = resident()
        await _in_groups(begin, range(GROUP, GROUP + count), GROUP)
        check_rows((await runtime.admin.statistics()).actors, GROUP + count)
        return (resident() - before) / count / 1024


async def warm(path: Path, count: int) -> float:
    """KiB of an actor that has just replied: its agent, its transcript and its prompt."""
    await fill(path, HISTORY - 2, 2 * count, chats=2 * count)
    async with (
        httpx2.AsyncClient() as client,
        open_runtime(
            path,
            build_agent=lambda _: ChatAgent(ReplyAtOnce(client, UNUSED)),
            config=Config(max_agents=3 * count),
        ) as runtime,
    ):
        # The first half fills SQLite's cache and Python's memory pools.
        await _in_groups(runtime.ask, range(count), TALKING, text(0, 0))
        before = resident()
        await _in_groups(runtime.ask, range(count, 2 * count), TALKING, text(0, 0))
        check_rows((await runtime.admin.statistics()).agents, 2 * count)
        check_rows(len(await runtime.conversation(key_of(count)).history()), HISTORY)
        return (resident() - before) / count / 1024


if __name__ == "__main__":
    measure = {"idle": idle, "warm": warm}[sys.argv[1]]
    print(trio.run(measure, Path(sys.argv[2]), int(sys.argv[3])))
