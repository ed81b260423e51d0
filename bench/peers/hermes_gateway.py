"""hermes-agent 0.19.0: whole turns through its gateway, each measurement in a new home.

The gateway, its `SessionStore`, its `SessionDB` and its thread pools are the real ones. Unless a
model is given, a stub replaces `AIAgent`. No platform is connected, so only work is timed: the
streaming of a connected platform polls every 50 ms and would delay each turn.
"""

# ruff: noqa: SLF001 - the entry point of a turn is private, and so is what fills a home in bulk

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import chdir, closing, contextmanager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import run_agent
from gateway.config import Platform, load_gateway_config
from gateway.platforms.base import MessageEvent, MessageType
from gateway.run import GatewayRunner
from gateway.session import SessionEntry, SessionSource, SessionStore
from hermes_state import SessionDB

from bench.harness import driver
from bench.harness.driver import Figures, serve
from bench.harness.sample_text import role, session_id, text

ABOUT = {"hermes-agent": version("hermes-agent"), "sqlite": sqlite3.sqlite_version}
DATABASE = "state.db"
WARM_UP = 2  # the first turn of a chat creates its agent
UNUSED = "http://127.0.0.1:9/v1"  # the stub never calls a model
CONFIG = """\
model:
  default: stub
  provider: custom
  base_url: URL
  api_key: none
  context_length: 100000000
compression:
  enabled: false  # so that a long transcript keeps its length
security:
  tirith_enabled: false  # it would be downloaded
session_reset:
  mode: none
display:
  tool_progress: off
onboarding:
  profile_build: off
streaming:
  enabled: false
auxiliary:
  title_generation:
    enabled: false
"""

Message = dict[str, object]


@contextmanager
def new_home(path: str, config: str, url: str) -> Iterator[Path]:
    """Create a home, in which new processes run until the block ends; then it is removed."""
    home, initial = Path(path), Path("/proc/self/environ").read_text().rstrip("\0").split("\0")
    environment = dict(each.split("=", 1) for each in initial)  # importing hermes-agent changes it
    environment.update(HOME=path, HERMES_HOME=path, GATEWAY_ALLOW_ALL_USERS="true")
    home.mkdir()
    (home / "config.yaml").write_text(config.replace("URL", url))
    try:
        with patch.dict(os.environ, environment, clear=True), chdir(home):
            yield home
    finally:
        shutil.rmtree(home)


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


def measure(
    sessions: int, callers: int, history: int, seconds: float, count: int, real: bool
) -> Figures:
    """Fill this home and chat; with the stub, check what was stored."""
    turns = [0] * callers
    fill(sessions, callers, history)
    if real:
        return asyncio.run(chat(turns, history, seconds, count, real))
    run_agent.AIAgent = StubAgent
    figures = asyncio.run(chat(turns, history, seconds, count, real))
    check([history + 2 * done for done in turns], sessions)
    return figures


async def chat(turns: list[int], history: int, seconds: float, count: int, real: bool) -> Figures:
    """Time turns, and count them for each chat."""
    runner, callers = start_gateway(), len(turns)
    for db in (runner.session_store._db, runner._session_db._db):
        driver.check_durability(db._conn.execute)

    async def turn(caller: int, _: int) -> None:
        number = history + 2 * turns[caller]
        reply = await runner._handle_message(event(caller, text(caller, number), str(number)))
        if reply != text(caller, 0 if real else number + 1):
            raise AssertionError(f"the reply in chat {caller} was {reply!r}")
        turns[caller] += 1

    warm_up = WARM_UP if callers == 1 else 1
    run = await driver.time_calls(turn, callers, seconds, count, turns=warm_up, stalls=False)
    await runner.stop()
    return run.figures_with_cpu()


def check(lengths: list[int], sessions: int) -> None:
    """Each chat must contain its history, then all messages and replies, and nothing else."""
    stored = defaultdict(list)
    with closing(sqlite3.connect(Path(os.environ["HERMES_HOME"]) / DATABASE)) as connection:
        rows = connection.execute("SELECT session_id, content FROM messages ORDER BY id")
        for name, content in rows:
            stored[name].append(content)
        routes = connection.execute("SELECT count(*) FROM gateway_routing").fetchone()[0]
    chats = enumerate(lengths)
    if stored != {session_id(n): [text(n, turn) for turn in range(length)] for n, length in chats}:
        raise AssertionError("the stored messages are not those of the chats")
    if routes != sessions:
        raise AssertionError(f"{routes} routes are stored instead of {sessions}")


def turns(
    path: str,
    history: int,
    sessions: int = 1,
    callers: int = 1,
    count: int = 0,
    seconds: float = 0.0,
    url: str = "",
) -> Figures:
    """Concurrent chats in a home with this many sessions; with a URL, the real agent replies."""
    with new_home(path, CONFIG, url or UNUSED):
        work = sessions, callers, history, seconds, count
        return driver.call_in_new_process(measure, *work, bool(url))


if __name__ == "__main__":
    serve(ABOUT, turns, driver.importing)
