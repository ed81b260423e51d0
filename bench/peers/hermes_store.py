"""hermes-agent 0.19.0: `SessionDB`, and `AsyncSessionDB` as its gateway uses it."""

# ruff: noqa: SLF001 - the private connection is used to read settings and to add rows in bulk

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import statistics
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from hermes_state import AsyncSessionDB, SessionDB

from bench.harness import driver
from bench.harness.driver import Figures, serve
from bench.harness.sample_text import role, session_id, text

CHUNK = 1000
ADD_SESSIONS = (
    "INSERT INTO sessions (id, source, started_at, message_count) VALUES (?, 'bench', ?, ?)"
)
ADD_MESSAGES = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"


def append_blocking(path: str, seconds: float) -> Figures:
    db = SessionDB(Path(path))
    driver.check_durability(db._conn.execute)
    db.create_session(session_id(0), source="bench")

    def append(turn: int) -> None:
        db.append_message(session_id(0), role(turn), text(0, turn))

    run = driver.time_blocking(append, seconds)
    db.close()
    return run.figures()


def append_awaited(path: str, callers: int, seconds: float, count: int = 0) -> Figures:
    db = SessionDB(Path(path))
    driver.check_durability(db._conn.execute)
    for number in range(callers):
        db.create_session(session_id(number), source="bench")
    async_db = AsyncSessionDB(db)

    async def append(caller: int, turn: int) -> None:
        await async_db.append_message(session_id(caller), role(turn), text(caller, turn))

    run = asyncio.run(driver.time_calls(append, callers, seconds, count))
    marker = f"marker{time.time_ns()}"
    db.append_message(session_id(0), "user", marker)
    started = perf_counter()
    hits = len(db.search_messages(marker))
    figures = run.figures_with_search(perf_counter() - started, hits)
    db.close()
    return figures


def fill(path: str, sessions: int, turns: int) -> None:
    """Add rows in bulk, but through its write path, so that its search triggers run."""
    db = SessionDB(Path(path))
    now = time.time()

    def add(statement: str, rows: Iterator[tuple[object, ...]]) -> None:
        def add_chunk(connection: sqlite3.Connection) -> int:
            chunk = list(itertools.islice(rows, CHUNK))
            connection.executemany(statement, chunk)
            return len(chunk)

        while db._execute_write(add_chunk):
            pass

    add(ADD_SESSIONS, ((session_id(number), now, turns) for number in range(sessions)))
    numbers = itertools.product(range(turns), range(sessions))  # rows of sessions interleave
    add(ADD_MESSAGES, ((session_id(n), role(turn), text(n, turn), now) for turn, n in numbers))
    db.optimize_fts()  # it does this after every 1,000 writes; a pending merge would be unfair
    db.close()


def size(path: str, sessions: int, turns: int) -> Figures:
    fill(path, sessions, turns)
    return driver.size_figures(Path(path))


def load(path: str, session: int, turns: int, times: int) -> Figures:
    """Load a conversation in the same way as the gateway."""
    db = SessionDB(Path(path))
    took = []
    for _ in range(times + 1):
        started = perf_counter()
        messages = db.get_messages_as_conversation(session_id(session), repair_alternation=True)
        took.append(perf_counter() - started)
        if len(messages) != turns:
            raise AssertionError(f"{len(messages)} messages were loaded instead of {turns}")
        del messages
    db.close()
    return {"ms": statistics.median(took[1:]) * 1e3}


def open_file(path: str, times: int) -> Figures:
    def query(db: SessionDB) -> object:
        return db.get_session(session_id(7))

    return driver.time_opening(lambda: SessionDB(Path(path)), query, times)


if __name__ == "__main__":
    about = {"hermes-agent": version("hermes-agent"), "sqlite": sqlite3.sqlite_version}
    serve(about, append_blocking, append_awaited, fill, size, load, open_file)
