"""hermes-agent 0.19.0: whole turns through its gateway, each measurement in a home of its own.

With `adapter=1` a platform is connected, and its way of streaming looks every 50 ms whether there
is something to send: a turn then waits up to that long. Without, what is timed is work alone.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from bench import texts
from bench.peers.wire import Figures, serve

LIMIT = 600.0
HISTORY = 10
NOBODY = "http://127.0.0.1:9/v1"
"""Nobody is there, and nobody is asked: an agent that answers by itself stands in for a model."""
CONFIG = """\
model:
  default: stub
  provider: custom
  base_url: http://127.0.0.1:9/v1
  api_key: none
  context_length: 100000000
compression:
  enabled: false  # a long transcript stays as long as it is
security:
  tirith_enabled: false  # or it would be downloaded
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


def turns(path: str, history: int, sessions: int, count: int, adapter: int = 0) -> Figures:
    """One chat, turn after turn, in a home that knows so many sessions."""
    request = {"history": history, "sessions": sessions, "count": count, "adapter": adapter}
    return in_home(Path(path), {"callers": 1, "seconds": 0.0, **request})


def turns_at_once(
    path: str, callers: int, seconds: float, history: int = HISTORY, adapter: int = 0
) -> Figures:
    """Many chats, each awaiting the answer before its next message."""
    request = {"callers": callers, "seconds": seconds, "history": history, "adapter": adapter}
    return in_home(Path(path), {"sessions": callers, "count": 0, **request})


def model_turns(path: str, url: str, history: int, count: int) -> Figures:
    """One chat, turn after turn, with the real agent and a model at this address."""
    request = {"history": history, "sessions": 1, "count": count, "adapter": 0, "real": 1}
    return in_home(Path(path), {"callers": 1, "seconds": 0.0, **request}, url)


def in_home(home: Path, request: dict[str, float], url: str | None = None) -> Figures:
    """Make the home, have a gateway run in it, check what is stored there, remove it."""
    if request["history"] < 2 or request["history"] % 2:
        raise ValueError("a history is pairs of a question and an answer")
    home.mkdir()
    try:
        (home / "config.yaml").write_text(CONFIG.replace(NOBODY, url or NOBODY))
        run(home, request)
        result = json.loads((home / "result.json").read_text())
        if url is None:
            check(home / "state.db", request, result["turns"])
        figures: Figures = result["figures"]
        return figures
    finally:
        shutil.rmtree(home)


def run(home: Path, request: dict[str, float]) -> None:
    """It ends by itself, and is ended where it does not."""
    name = os.fspath(home)
    subprocess.run(
        [sys.executable, "-m", "bench.peers.hermes_turns", json.dumps(request)],
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": name, "HERMES_HOME": name, "GATEWAY_ALLOW_ALL_USERS": "true"},
        cwd=home,
        timeout=LIMIT,
    )


def check(file: Path, request: dict[str, float], turns_of: list[int]) -> None:
    """Each chat has its history, then a question and an answer for each turn; nobody has more."""
    connection = sqlite3.connect(file)
    total = 0
    for chat, count in enumerate(turns_of):
        stored = connection.execute(
            "SELECT role, content FROM messages WHERE session_id = ? AND active = 1 ORDER BY id",
            (texts.session_id(chat),),
        ).fetchall()
        said = range(int(request["history"]) + 2 * count)
        if stored != [(texts.role(turn), texts.text(chat, turn)) for turn in said]:
            raise AssertionError(f"chat {chat} is not what was said in {count} turns")
        total += len(stored)
    messages = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
    routes = connection.execute("SELECT count(*) FROM gateway_routing").fetchone()[0]
    connection.close()
    if (messages, routes) != (total, request["sessions"]):
        raise AssertionError(f"{messages} messages and {routes} routes are stored")


if __name__ == "__main__":
    serve(
        {"hermes-agent": version("hermes-agent"), "sqlite": sqlite3.sqlite_version},
        {"turns": turns, "turns_at_once": turns_at_once, "model_turns": model_turns},
    )
