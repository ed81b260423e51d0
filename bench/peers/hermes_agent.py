"""hermes-agent 0.19.0: `SessionDB`, and `AsyncSessionDB` as its gateway uses it."""

# ruff: noqa: SLF001 - its connection is where the settings can be checked and rows added in bulk

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

from bench import texts
from bench.peers import timing
from bench.peers.wire import Figures, serve

CHUNK = 1000


def sessions_of(db: SessionDB, count: int) -> None:
    """Create what is missing of the first `count` sessions."""
    for number in range(count):
        db.create_session(texts.session_id(number), source="bench")


def durability(path: str) -> Figures:
    db = SessionDB(Path(path))
    journal = db._conn.execute("PRAGMA journal_mode").fetchone()[0]
    synchronous = db._conn.execute("PRAGMA synchronous").fetchone()[0]
    db.close()
    return {"wal": float(journal == "wal"), "synchronous": float(synchronous)}


def append_blocking(path: str, seconds: float) -> Figures:
    db = SessionDB(Path(path))
    sessions_of(db, 1)

    def append(turn: int) -> None:
        db.append_message(texts.session_id(0), texts.role(turn), texts.text(0, turn))

    run = timing.blocking(append, seconds)
    db.close()
    return run.figures()


def append_awaited(path: str, callers: int, seconds: float, count: int = 0) -> Figures:
    db = SessionDB(Path(path))
    sessions_of(db, callers)
    door = AsyncSessionDB(db)

    async def append(caller: int, turn: int) -> None:
        words = texts.text(caller, turn)
        await door.append_message(texts.session_id(caller), texts.role(turn), words)

    run = asyncio.run(timing.with_asyncio(append, callers, seconds, count))
    marker = f"marker{time.time_ns()}"
    db.append_message(texts.session_id(0), "user", marker)
    started = perf_counter()
    hits = len(db.search_messages(marker))
    figures = run.searched(perf_counter() - started, hits)
    db.close()
    return figures


def rows(sessions: int, turns: int) -> Iterator[tuple[str, str, str, float]]:
    """The sessions' messages in turn: first of each, second of each, …"""
    now = time.time()
    for turn, number in itertools.product(range(turns), range(sessions)):
        yield texts.session_id(number), texts.role(turn), texts.text(number, turn), now


def fill(path: str, sessions: int, turns: int) -> Figures:
    """Bulk, but through its own connection and write path, so that its search triggers run."""
    db = SessionDB(Path(path))
    pending = rows(sessions, turns)
    numbers = iter(range(sessions))

    def add_sessions(connection: sqlite3.Connection) -> int:
        chunk = list(itertools.islice(numbers, CHUNK))
        connection.executemany(
            "INSERT INTO sessions (id, source, started_at, message_count) "
            "VALUES (?, 'bench', ?, ?)",
            [(texts.session_id(number), time.time(), turns) for number in chunk],
        )
        return len(chunk)

    def add_messages(connection: sqlite3.Connection) -> int:
        chunk = list(itertools.islice(pending, CHUNK))
        connection.executemany(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)", chunk
        )
        return len(chunk)

    started = perf_counter()
    while db._execute_write(add_sessions):
        pass
    while db._execute_write(add_messages):
        pass
    db.optimize_fts()  # as it does after every 1000 writes: a merge left over would be unfair to it
    db.close()
    return {"seconds": perf_counter() - started}


def load(path: str, session: int, turns: int, times: int) -> Figures:
    """The gateway's path when it restores a conversation."""
    db = SessionDB(Path(path))
    took = []
    for _ in range(times + 1):
        started = perf_counter()
        messages = db.get_messages_as_conversation(
            texts.session_id(session), repair_alternation=True
        )
        took.append(perf_counter() - started)
        if len(messages) != turns:
            raise AssertionError(f"{len(messages)} messages came back instead of {turns}")
        del messages
    db.close()
    return {"ms": statistics.median(took[1:]) * 1e3}


def open_file(path: str, times: int) -> Figures:
    """From nothing to the first answer."""
    opened, answered = [], []
    for _ in range(times + 1):
        started = perf_counter()
        db = SessionDB(Path(path))
        opened.append(perf_counter() - started)
        if db.get_session(texts.session_id(7)) is None:
            raise AssertionError("a stored session was not found")
        answered.append(perf_counter() - started)
        db.close()
    return {
        "ms": statistics.median(answered[1:]) * 1e3,
        "open_ms": statistics.median(opened[1:]) * 1e3,
    }


if __name__ == "__main__":
    serve(
        {"hermes-agent": version("hermes-agent"), "sqlite": sqlite3.sqlite_version},
        {
            "durability": durability,
            "append_blocking": append_blocking,
            "append_awaited": append_awaited,
            "fill": fill,
            "load": load,
            "open_file": open_file,
        },
    )
