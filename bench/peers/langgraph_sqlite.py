"""langgraph-checkpoint-sqlite 3.1.2: `SqliteSaver.put`, which stores the whole state each time."""

from __future__ import annotations

import sqlite3
from importlib.metadata import version

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from bench import texts
from bench.peers import timing
from bench.peers.wire import Figures, serve

STATE = 10  # messages in the state: it is rewritten with every put, so a long one would say more


def durability(path: str) -> Figures:
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        journal = saver.conn.execute("PRAGMA journal_mode").fetchone()[0]
        synchronous = saver.conn.execute("PRAGMA synchronous").fetchone()[0]
    return {"wal": float(journal == "wal"), "synchronous": float(synchronous)}


def append_blocking(path: str, seconds: float) -> Figures:
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        config = {"configurable": {"thread_id": texts.session_id(0), "checkpoint_ns": ""}}

        def append(turn: int) -> None:
            turns = range(turn, turn + STATE)
            messages = [{"role": texts.role(n), "content": texts.text(0, n)} for n in turns]
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"]["messages"] = messages
            saver.put(config, checkpoint, {"source": "loop", "step": turn}, {})

        return timing.blocking(append, seconds).figures()


if __name__ == "__main__":
    serve(
        {
            "langgraph-checkpoint-sqlite": version("langgraph-checkpoint-sqlite"),
            "langgraph": version("langgraph"),
            "sqlite": sqlite3.sqlite_version,
        },
        {"durability": durability, "append_blocking": append_blocking},
    )
