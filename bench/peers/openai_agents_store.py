"""openai-agents 0.24.0: `SQLiteSession`, one object per session on one file."""

from __future__ import annotations

import sqlite3
from importlib.metadata import version

from agents.memory.sqlite_session import SQLiteSession

from bench.harness.driver import Figures, check_durability, serve, time_calls
from bench.harness.sample_text import role, session_id, text


async def append_awaited(path: str, callers: int, seconds: float) -> Figures:
    sessions = [SQLiteSession(session_id(caller), path) for caller in range(callers)]
    with sessions[0]._locked_connection() as connection:  # noqa: SLF001 - it has the settings
        check_durability(connection.execute)

    async def append(caller: int, turn: int) -> None:
        await sessions[caller].add_items([{"role": role(turn), "content": text(caller, turn)}])

    run = await time_calls(append, callers, seconds)
    for session in sessions:
        session.close()
    return run.figures()


if __name__ == "__main__":
    about = {"openai-agents": version("openai-agents"), "sqlite": sqlite3.sqlite_version}
    serve(about, append_awaited)
