"""One gateway of hermes-agent 0.19.0 in a home of its own: fill the home, start it, chat.

A process of its own for each measurement, started by `hermes_gateway`: the home is read at import.
The gateway, its `SessionStore`, its `SessionDB` and its thread pools are the real ones. In place of
`AIAgent` is a stub that stores what the real one stores of a plain turn and answers at once.
"""

# ruff: noqa: SLF001 - the way into a turn is private, and so is all that fills a home in bulk

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
from time import perf_counter

import run_agent
from gateway.config import Platform, PlatformConfig, load_gateway_config
from gateway.platforms.base import BasePlatformAdapter, MessageEvent, MessageType, SendResult
from gateway.run import GatewayRunner
from gateway.session import SessionEntry, SessionSource, SessionStore
from hermes_state import SessionDB

from bench import texts
from bench.peers import timing
from bench.peers.wire import Figures

WARM_UP = 2  # turns of each chat: the first one makes its agent
Message = dict[str, object]


class Agent:
    """In place of `AIAgent`: the question and the answer become durable, each in its own commit."""

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
        reply = texts.text(self.chat, len(conversation_history) + 1)
        asked: Message = {"role": "user", "content": persist_user_message or message}
        answered: Message = {"role": "assistant", "content": reply}
        append = self.session_db.append_message
        append(session_id=self.session_id, timestamp=persist_user_timestamp, **asked)
        append(session_id=self.session_id, **answered)
        messages = [*conversation_history, asked, answered]
        return {"final_response": reply, "messages": messages, "api_calls": 1, "completed": True}


class Adapter(BasePlatformAdapter):
    """A platform that is connected and sends nowhere."""

    async def connect(self, *, is_reconnect: bool = False) -> bool:
        return True

    async def disconnect(self) -> None:
        pass

    async def send(self, chat_id: str, content: str, *_: object, **__: object) -> SendResult:
        return SendResult(success=True, message_id="1")

    async def get_chat_info(self, chat_id: str) -> Message:
        return {}


def source(chat: int) -> SessionSource:
    name = str(chat)
    return SessionSource(platform=Platform.TELEGRAM, chat_id=name, user_id=name, chat_type="dm")


def fill(sessions: int, chats: int, history: int) -> None:
    """A home that knows so many sessions; the first `chats` of them have a history."""
    config = load_gateway_config()
    store = SessionStore(config.sessions_dir, config)
    keys = [store._generate_session_key(source(number)) for number in range(sessions)]
    with store._lock:
        store._ensure_loaded_locked()
        store._entries |= {key: entry(number, key) for number, key in enumerate(keys)}
    store._save_entries()
    store._db._execute_write(lambda connection: add_rows(connection, keys, chats, history))
    store._db.close()


def entry(number: int, key: str) -> SessionEntry:
    now = datetime.now()  # without a time zone, as the gateway has it
    return SessionEntry(
        session_key=key,
        session_id=texts.session_id(number),
        created_at=now,
        updated_at=now,
        origin=source(number),
        platform=Platform.TELEGRAM,
    )


def add_rows(connection: sqlite3.Connection, keys: list[str], chats: int, history: int) -> None:
    now = time.time()
    connection.executemany(
        "INSERT INTO sessions (id, source, session_key, chat_id, user_id, chat_type, started_at, "
        "message_count) VALUES (?, 'telegram', ?, ?, ?, 'dm', ?, ?)",
        [
            (texts.session_id(n), key, str(n), str(n), now, history if n < chats else 0)
            for n, key in enumerate(keys)
        ],
    )
    connection.executemany(
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
        [
            (texts.session_id(n), texts.role(turn), texts.text(n, turn), now)
            for turn in range(history)
            for n in range(chats)
        ],
    )


def start(*, adapter: bool) -> GatewayRunner:
    """As its own `start` leaves it, without what would listen, watch or restore."""
    runner = GatewayRunner()
    runner._running = True
    runner._gateway_loop = asyncio.get_running_loop()
    if adapter:
        config = PlatformConfig(enabled=True, token="none")
        runner.adapters[Platform.TELEGRAM] = Adapter(config, Platform.TELEGRAM)
    for db in (runner.session_store._db, runner._session_db._db):
        journal = db._conn.execute("PRAGMA journal_mode").fetchone()[0]
        synchronous = db._conn.execute("PRAGMA synchronous").fetchone()[0]
        if (journal, synchronous) != ("wal", 2):
            raise AssertionError(f"the gateway stores with {journal}, synchronous={synchronous}")
    return runner


class Chats:
    """Callers of a gateway, each awaiting the answer of a turn before its next."""

    def __init__(
        self, runner: GatewayRunner, callers: int, history: int, *, real: bool = False
    ) -> None:
        self.runner = runner
        self.history = history
        self.real = real
        self.turns = [0] * callers

    async def turn(self, caller: int) -> None:
        said = self.history + 2 * self.turns[caller]
        event = MessageEvent(
            text=texts.text(caller, said),
            message_type=MessageType.TEXT,
            source=source(caller),
            message_id=str(said),
        )
        reply = await self.runner._handle_message(event)
        if reply != texts.text(caller, 0 if self.real else said + 1):
            raise AssertionError(f"chat {caller} was answered {reply!r}")
        self.turns[caller] += 1

    async def warm_up(self, caller: int) -> None:
        # Of many, one turn each: what they share has been used by all of them then.
        for _ in range(WARM_UP if len(self.turns) == 1 else 1):
            await self.turn(caller)

    async def call(self, caller: int, run: timing.Run) -> None:
        while run.going():
            started = perf_counter()
            await self.turn(caller)
            run.add(started)

    async def measure(self, seconds: float, count: int) -> Figures:
        callers = range(len(self.turns))
        await asyncio.gather(*(self.warm_up(caller) for caller in callers))
        cpu = time.process_time()
        run = timing.Run(seconds, count)
        await asyncio.gather(*(self.call(caller, run) for caller in callers))
        run.finish()
        cpu = time.process_time() - cpu
        return {**run.figures(), "cpu_ms": cpu / len(run.latencies) * 1e3}


async def chat(request: dict[str, float]) -> dict[str, Figures | list[int]]:
    """The figures, and how many turns each chat had altogether."""
    runner = start(adapter=bool(request["adapter"]))
    real = bool(request.get("real"))
    chats = Chats(runner, int(request["callers"]), int(request["history"]), real=real)
    figures = await chats.measure(request["seconds"], int(request["count"]))
    await runner.stop()
    return {"figures": figures, "turns": chats.turns}


def main(request: dict[str, float]) -> None:
    if not request.get("real"):
        run_agent.AIAgent = Agent
    fill(int(request["sessions"]), int(request["callers"]), int(request["history"]))
    result = asyncio.run(chat(request))
    (Path(os.environ["HERMES_HOME"]) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
