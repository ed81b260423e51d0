"""hermes-agent 0.19.0: whole turns through its gateway, each measurement in a new home.

No platform is connected, so only work is timed: the streaming of a connected platform polls every
50 ms and would delay each turn.
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

from bench.harness.protocol import Figures, serve
from bench.harness.timing import importing

TIMEOUT = 600.0
HISTORY = 10
UNUSED = "http://127.0.0.1:9/v1"  # a stub replaces the agent and never calls a model
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


def turns(path: str, history: int, sessions: int, count: int) -> Figures:
    """Sequential turns of one chat, in a home with this many sessions."""
    return _measure(path, history=history, sessions=sessions, callers=1, seconds=0, count=count)


def turns_at_once(path: str, callers: int, seconds: float) -> Figures:
    """Concurrent chats, each waiting for its reply before the next message."""
    size = {"history": HISTORY, "sessions": callers, "callers": callers}
    return _measure(path, **size, seconds=seconds, count=0)


def model_turns(path: str, url: str, history: int, count: int) -> Figures:
    """Sequential turns of one chat with the real agent and a model at this URL."""
    return _measure(path, url, history=history, sessions=1, callers=1, seconds=0, count=count)


def _measure(path: str, url: str | None = None, **request: float) -> Figures:
    """Run a gateway in a new home, and check what it stored there."""
    home = Path(path)
    home.mkdir()
    try:
        (home / "config.yaml").write_text(CONFIG.replace("URL", url or UNUSED))
        program = ["-m", "bench.peers.hermes_turns", json.dumps({**request, "real": bool(url)})]
        run_in_home(home, program, TIMEOUT)
        result = json.loads((home / "result.json").read_text())
        if url is None:
            _check(home / "state.db", request, result["turns"])
        figures: Figures = result["figures"]
        return figures
    finally:
        shutil.rmtree(home)


def run_in_home(home: Path, program: list[str], timeout: float) -> None:
    """Run Python with this home, which hermes-agent reads when it is imported."""
    name = os.fspath(home)
    subprocess.run(
        [sys.executable, *program],
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": name, "HERMES_HOME": name, "GATEWAY_ALLOW_ALL_USERS": "true"},
        cwd=home,
        timeout=timeout,
    )


def _check(file: Path, request: dict[str, float], turns: int) -> None:
    """Each chat must contain its history, then a message and a reply per turn, and no more."""
    connection = sqlite3.connect(file)
    stored = [
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("messages", "gateway_routing")
    ]
    connection.close()
    messages = request["callers"] * request["history"] + 2 * turns
    if stored != [messages, request["sessions"]]:
        raise AssertionError(f"{stored} messages and routes are stored")


if __name__ == "__main__":
    about = {"hermes-agent": version("hermes-agent"), "sqlite": sqlite3.sqlite_version}
    serve(about, turns, turns_at_once, model_turns, importing)
