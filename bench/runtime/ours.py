"""Driver of our runtime: whole durable turns, and memory."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import apsw
import httpx2
import trio

from bench.harness.driver import WARM_UP, Figures, call_in_new_process, serve
from bench.harness.sample_text import role, session_id, text
from bench.harness.trio_timing import time_trio
from bench.store.ours import check_connection
from hermes import Runtime, open_runtime
from hermes.agents import chat_agents
from hermes.agents.chat import ChatAgent
from hermes.agents.providers.base import Completion, Delta, Endpoint, FileBody
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.config import Config
from hermes.messages import Message
from hermes.store import SessionStore, open_store

HISTORY = 10
FILLERS = 100
WARM_UP_CROWD = 3
UNUSED = Endpoint(base_url="http://127.0.0.1:9/v1", model="m")
GROUP = 100
TALKING = 10


async def reply_at_once(_: object) -> str:
    """An agent that costs nothing."""
    return text(0, 0)


def key_of(number: int) -> str:
    return f"key {number}"


async def fill(path: Path, history: int, sessions: int, chats: int = 1) -> None:
    """Create a file with this many sessions; the first `chats` of them have a history."""
    rows = [Message(role(turn), text(0, turn)) for turn in range(history)]
    async with open_store(path) as store:  # as the runtime opens it
        await store.run_alone(check_connection)

        async def add(first: int) -> None:
            for number in range(first, sessions, FILLERS):
                name = session_id(number)
                await store.create_session(name, "bench", session_key=key_of(number))
                await store.append_messages(name, rows if number < chats else rows[:2])
                await store.switch(key_of(number), name)

        async with trio.open_nursery() as nursery:
            for first in range(min(FILLERS, sessions)):
                nursery.start_soon(add, first)
    with SessionStore(path) as blocking:
        blocking.index_pending()  # so that timed turns do not index older messages


async def turns(
    path: str,
    history: int,
    sessions: int = 1,
    callers: int = 1,
    count: int = 0,
    seconds: float = 0.0,
    url: str = "",
) -> Figures:
    """Concurrent chats in a file with this many sessions; with a URL, `ChatAgent` replies."""
    file, asked = Path(path), [0] * callers
    await fill(file, history, sessions, chats=callers)
    before = used_bytes(file)
    warm_up = WARM_UP if callers == 1 else WARM_UP_CROWD
    async with _open(file, url) as runtime:

        async def ask_once(caller: int, turn: int) -> None:
            reply = await runtime.ask(key_of(caller), text(caller, turn))
            if reply.text != text(0, 0):
                raise AssertionError(f"the reply was {reply.text!r}")
            asked[caller] += 1

        run = await time_trio(ask_once, callers, seconds, count, turns=warm_up, stalls=False)
        for caller, turns in enumerate(asked):
            stored = await runtime.conversation(key_of(caller)).history()
            check_rows(len(stored), history + 2 * turns)
    grown = {} if url else {"disk_bytes": (used_bytes(file) - before) / sum(asked)}
    return {**run.figures_with_cpu(), **grown}


@asynccontextmanager
async def _open(path: Path, url: str) -> AsyncIterator[Runtime]:
    if not url:
        async with open_runtime(path, agent=reply_at_once) as runtime:
            yield runtime
        return
    async with (
        chat_agents(Endpoint(base_url=url, model="m"), system="Be kind.") as agents,
        open_runtime(path, build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        yield runtime


def check_rows(stored: int, expected: int) -> None:
    """Every message and every reply must have been stored."""
    if stored != expected:
        raise AssertionError(f"{stored} rows were stored instead of {expected}")


def used_bytes(path: Path) -> int:
    """The bytes in use, without free pages, with an up-to-date index."""
    with SessionStore(path) as store:
        store.index_pending()
    connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
    pages, free, each = (
        int(str(connection.pragma(name))) for name in ("page_count", "freelist_count", "page_size")
    )
    connection.close()
    return (pages - free) * each


class ReplyAtOnce(OpenAIChat):
    """A provider without the network."""

    async def complete(
        self, body: bytes | FileBody, on_delta: Callable[[Delta], None]
    ) -> Completion:
        await trio.lowlevel.checkpoint()
        return Completion(Message("assistant", text(0, 1)))


def resident_bytes() -> int:
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


async def idle(path: str, count: int) -> float:
    """KiB of an actor without work."""
    async with open_runtime(Path(path), agent=reply_at_once) as runtime:

        async def begin(key: str) -> None:
            await runtime.conversation(key).new()

        await _in_groups(begin, range(GROUP), GROUP)
        before = resident_bytes()
        await _in_groups(begin, range(GROUP, GROUP + count), GROUP)
        check_rows((await runtime.admin.statistics()).actors, GROUP + count)
        return (resident_bytes() - before) / count / 1024


async def warm(path: str, count: int) -> float:
    """KiB of an actor that has just replied: its agent, its transcript and its prompt."""
    await fill(Path(path), HISTORY - 2, 2 * count, chats=2 * count)
    async with (
        httpx2.AsyncClient() as client,
        open_runtime(
            Path(path),
            build_agent=lambda _: ChatAgent(ReplyAtOnce(client, UNUSED)),
            config=Config(max_agents=3 * count),
        ) as runtime,
    ):
        # The first half fills SQLite's cache and Python's memory pools.
        await _in_groups(runtime.ask, range(count), TALKING, text(0, 0))
        before = resident_bytes()
        await _in_groups(runtime.ask, range(count, 2 * count), TALKING, text(0, 0))
        check_rows((await runtime.admin.statistics()).agents, 2 * count)
        check_rows(len(await runtime.conversation(key_of(count)).history()), HISTORY)
        return (resident_bytes() - before) / count / 1024


def memory(path: str, what: str, count: int) -> Figures:
    """Measure memory in a fresh process; this one has unused memory by now."""
    return {"kib": call_in_new_process(trio.run, {"idle": idle, "warm": warm}[what], path, count)}


if __name__ == "__main__":
    about = {"hermes": version("hermes-runtime"), "trio": version("trio")}
    serve(about, turns, memory, run=trio.run)
