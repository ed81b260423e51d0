"""langgraph-checkpoint-sqlite 3.1.2: `SqliteSaver.put`, which stores the whole state each time."""

from __future__ import annotations

import sqlite3
from importlib.metadata import version

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from bench.harness.driver import Figures, check_durability, serve, time_blocking
from bench.harness.sample_text import role, session_id, text

STATE = 10  # messages in the state; each put rewrites all of them


def append_blocking(path: str, seconds: float) -> Figures:
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        check_durability(saver.conn.execute)
        config = {"configurable": {"thread_id": session_id(0), "checkpoint_ns": ""}}

        def append(turn: int) -> None:
            turns = range(turn, turn + STATE)
            messages = [{"role": role(n), "content": text(0, n)} for n in turns]
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"]["messages"] = messages
            saver.put(config, checkpoint, {"source": "loop", "step": turn}, {})

        return time_blocking(append, seconds).figures()


if __name__ == "__main__":
    packages = ("langgraph-checkpoint-sqlite", "langgraph")
    versions = {name: version(name) for name in packages}
    serve({**versions, "sqlite": sqlite3.sqlite_version}, append_blocking)
