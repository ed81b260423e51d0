"""Driver of our runtime: whole durable turns, and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import apsw
import trio

from bench.harness.driver import WARM_UP, Figures, serve
from bench.harness.sample_text import role, session_id, text
from bench.harness.trio_timing import time_trio
from bench.store.ours import settings
from hermes import open_runtime
from hermes.messages import Message
from hermes.store import SessionStore, open_store

HISTORY = 10
FILLERS = 100
WARM_UP_CROWD = 3


async def reply_at_once(_: object) -> str:
    """An agent that costs nothing."""
    return text(0, 0)


def key_of(number: int) -> str:
    return f"key {number}"


async def fill(path: Path, history: int, sessions: int, chats: int = 1) -> None:
    """Create a file with this many sessions; the first `chats` of them have a history."""
    rows = [Message(role(turn), text(0, turn)) for turn in range(history)]
    async with open_store(path) as store:  # as the runtime opens it
        durability = await store.run_alone(settings)
        if durability != {"wal": 1, "synchronous": 2}:
            raise AssertionError(f"our store is opened with {durability}")

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


async def turns(path: str, history: int, sessions: int, count: int) -> Figures:
    """Sequential turns of one chat, in a file with this many sessions."""
    await fill(Path(path), history, sessions)
    return await _turns(Path(path), history, 1, 0.0, count)


async def turns_at_once(path: str, callers: int, seconds: float) -> Figures:
    """Concurrent chats, each waiting for its reply before the next message."""
    await fill(Path(path), HISTORY, callers, chats=callers)
    return await _turns(Path(path), HISTORY, callers, seconds, 0)


async def _turns(path: Path, history: int, callers: int, seconds: float, count: int) -> Figures:
    before = used_bytes(path)
    warm_up = WARM_UP if callers == 1 else WARM_UP_CROWD
    asked = [0] * callers
    async with open_runtime(path, agent=reply_at_once) as runtime:

        async def ask_once(caller: int, turn: int) -> None:
            await runtime.ask(key_of(caller), text(caller, turn))
            asked[caller] += 1

        run = await time_trio(ask_once, callers, seconds, count, turns=warm_up, stalls=False)
        for caller, turns in enumerate(asked):
            stored = await runtime.conversation(key_of(caller)).history()
            check_rows(len(stored), history + 2 * turns)
    grown = used_bytes(path) - before
    return {**run.figures_with_cpu(), "disk_bytes": grown / sum(asked)}


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


def memory(path: str, what: str, count: int) -> Figures:
    """Measure memory in a fresh process; this one has unused memory by now."""
    program = [sys.executable, "-m", "bench.runtime.memory", what, path, str(count)]
    done = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True)
    return {"kib": float(done.stdout)}


if __name__ == "__main__":
    about = {"hermes": version("hermes-runtime"), "trio": version("trio")}
    serve(about, turns, turns_at_once, memory, run=trio.run)
