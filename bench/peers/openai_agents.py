"""openai-agents 0.24.0: `SQLiteSession`, one object per session on one file."""

from __future__ import annotations

import asyncio
import sqlite3
from importlib.metadata import version

from agents.memory.sqlite_session import SQLiteSession

from bench import texts
from bench.peers import timing
from bench.peers.wire import Figures, serve


def durability(path: str) -> Figures:
    session = SQLiteSession(texts.session_id(0), path)
    with session._locked_connection() as connection:  # noqa: SLF001 - where the settings are
        journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
        synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    session.close()
    return {"wal": float(journal == "wal"), "synchronous": float(synchronous)}


def append_awaited(path: str, callers: int, seconds: float) -> Figures:
    sessions = [SQLiteSession(texts.session_id(caller), path) for caller in range(callers)]

    async def append(caller: int, turn: int) -> None:
        item = {"role": texts.role(turn), "content": texts.text(caller, turn)}
        await sessions[caller].add_items([item])

    run = asyncio.run(timing.with_asyncio(append, callers, seconds, 0))
    for session in sessions:
        session.close()
    return run.figures()


if __name__ == "__main__":
    serve(
        {"openai-agents": version("openai-agents"), "sqlite": sqlite3.sqlite_version},
        {"durability": durability, "append_awaited": append_awaited},
    )
