"""One gateway of hermes-agent 0.19.0 in a new home: fill the home, start it, chat.

`hermes_gateway` starts this process for each measurement. The gateway, its `SessionStore`, its
`SessionDB` and its thread pools are the real ones. Unless a model is given, a stub replaces
`AIAgent`: it stores the same rows as the real one for a plain turn, and replies at once.
"""

# ruff: noqa: SLF001 - the entry point of a turn is private, and so is what fills a home in bulk

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import run_agent
from gateway.config import Platform, load_gateway_config
from gateway.platforms.base import MessageEvent, MessageType
from gateway.run import GatewayRunner
from gateway.session import SessionEntry, SessionSource, SessionStore
from hermes_state import SessionDB

from bench.harness.sample_text import role, session_id, text
from bench.harness.timing import durability_figures, time_asyncio

WARM_UP = 2  # the first turn of a chat creates its agent
Message = dict[str, object]


class StubAgent:
    """Replaces `AIAgent`: stores the message and the reply, each in a separate commit."""

    def __init__(
        self, *, session_id: str, session_db: SessionDB, chat_id: str, model: str, **_: object
    ) -> None:
        self.session_id = session_id
        self.session_db = session_db
        self.model = model
        self.chat = int(chat_id)

    def run_conversation(
        self,
        message: str,
        conversation_history: Sequence[Message],
        persist_user_message: str | None = None,
        persist_user_timestamp: float | None = None,
        **_: object,
    ) -> Message:
        reply = text(self.chat, len(conversation_history) + 1)
        asked: Message = {"role": "user", "content": persist_user_message or message}
        answered: Message = {"role": "assistant", "content": reply}
        append = self.session_db.append_message
        append(session_id=self.session_id, timestamp=persist_user_timestamp, **asked)
        append(session_id=self.session_id, **answered)
        messages = [*conversation_history, asked, answered]
        return {"final_response": reply, "messages": messages, "api_calls": 1, "completed": True}


def source(chat: int) -> SessionSource:
    """The direct chat of a user."""
    name = str(chat)
    return SessionSource(platform=Platform.TELEGRAM, chat_id=name, user_id=name, chat_type="dm")


def event(chat: int, words: str, message_id: str) -> MessageEvent:
    """A text message in this chat."""
    return MessageEvent(
        text=words, message_type=MessageType.TEXT, source=source(chat), message_id=message_id
    )


def start_gateway() -> GatewayRunner:
    """Create a gateway in the state that its `start` leaves it in, without its listeners."""
    runner = GatewayRunner()
    runner._running = True
    runner._gateway_loop = asyncio.get_running_loop()
    return runner


def fill(sessions: int, chats: int, history: int) -> None:
    """Add this many sessions to the home; the first `chats` of them have a history."""
    config = load_gateway_config()
    store = SessionStore(config.sessions_dir, config)
    now = datetime.now()  # without a time zone, as in the gateway
    keys = [store._generate_session_key(source(number)) for number in range(sessions)]
    with store._lock:
        store._ensure_loaded_locked()
        store._entries |= {
            key: SessionEntry(
                session_key=key,
                session_id=session_id(number),
                created_at=now,
                updated_at=now,
                origin=source(number),
                platform=Platform.TELEGRAM,
            )
            for number, key in enumerate(keys)
        }
    store._save_entries()
    store._db._execute_write(lambda connection: _add_rows(connection, keys, chats, history))
    store._db.close()


def _add_rows(connection: sqlite3.Connection, keys: list[str], chats: int, history: int) -> None:
    now = time.time()
    connection.executemany(
        "INSERT INTO sessions (id, source, session_key, chat_id, user_id, chat_type, started_at, "
        "message_count) VALUES (?, 'telegram', ?, ?, ?, 'dm', ?, ?)",
        [
            (session_id(n), key, str(n), str(n), now, history if n < chats else 0)
            for n, key in enumerate(keys)
        ],
    )
    connection.executemany(
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
        [
            (session_id(n), role(turn), text(n, turn), now)
            for turn in range(history)
            for n in range(chats)
        ],
    )


def _check_durability(runner: GatewayRunner) -> None:
    for db in (runner.session_store._db, runner._session_db._db):
        settings = durability_figures(db._conn.execute)
        if settings != {"wal": 1, "synchronous": 2}:
            raise AssertionError(f"the gateway stores with {settings}")


async def chat(
    history: int, callers: int, seconds: float, count: int, *, real: bool
) -> dict[str, object]:
    """Return the figures and the number of turns."""
    runner = start_gateway()
    _check_durability(runner)
    turns = [0] * callers

    async def turn(caller: int, _: int) -> None:
        number = history + 2 * turns[caller]
        reply = await runner._handle_message(event(caller, text(caller, number), str(number)))
        if reply != text(caller, 0 if real else number + 1):
            raise AssertionError(f"the reply in chat {caller} was {reply!r}")
        turns[caller] += 1

    warm_up = WARM_UP if callers == 1 else 1
    run = await time_asyncio(turn, callers, seconds, count, turns=warm_up, stalls=False)
    await runner.stop()
    return {"figures": run.figures_with_cpu(), "turns": sum(turns)}


def main(request: dict[str, float]) -> None:
    history, callers = int(request["history"]), int(request["callers"])
    if not request["real"]:
        run_agent.AIAgent = StubAgent
    fill(int(request["sessions"]), callers, history)
    count, real = int(request["count"]), bool(request["real"])
    result = asyncio.run(chat(history, callers, request["seconds"], count, real=real))
    (Path(os.environ["HERMES_HOME"]) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
