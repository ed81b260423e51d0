"""hermes-agent 0.19.0 does the script of the switching benchmark, in a home made for it.

A process of its own for each part between two restarts, started here: the home is read at import.

All is as it is shipped, but for this. The one tool of the script is its only toolset. Its SOUL.md
is so much of everybody's system prompt that with what it adds itself the prompt is as long as
everybody's: of a longer one a larger share would be cached. /new asks nobody whether it may. Off is
what reaches out of the machine (a download), what asks the model beside the turns (titles), a long
offer to get acquainted after the very first message (a short greeting remains), and questions that
only a server at a local address is asked: there were five for each new agent.
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
from time import monotonic

from bench import workload
from bench.peers.wire import serve

LIMIT = 840.0
TOOLSET = "bench"
SOUL = "\n".join(workload.SYSTEM.splitlines()[:9])
"""It adds 4,400 characters, which are eleven lines."""
RESULT = "result.json"
"""In the home: what is known and what was seen so far, from one process to the next."""
CONFIG = f"""\
model:
  default: stub
  provider: custom
  base_url: URL
  api_key: none
  context_length: 200000
  ollama_num_ctx: 0  # or each new agent would ask a local address what it is
platform_toolsets:
  telegram: [{TOOLSET}, no_mcp]  # the one tool of the script, as ours has
approvals:
  destructive_slash_confirm: false  # /new asks nobody
security:
  tirith_enabled: false  # or it would be downloaded
onboarding:
  profile_build: "off"  # as text: the YAML word is not understood
auxiliary:
  compression:
    context_length: 200000  # or each compression would ask a local address for it
  title_generation:
    enabled: false  # a request beside the first turn, at a moment of its own
"""


def run(path: str, url: str, script: str, **_: object) -> dict[str, object]:
    """Do the script with a model at this address; what was seen of it."""
    home = Path(path)
    home.mkdir()
    try:
        (home / "config.yaml").write_text(CONFIG.replace("URL", url))
        (home / "SOUL.md").write_text(SOUL)
        steps = workload.load(Path(script))
        deadline = monotonic() + LIMIT
        for start, end in parts(steps):
            in_home(home, [script, str(start), str(end)], deadline - monotonic())
        result: dict[str, object] = json.loads((home / RESULT).read_text())["record"]
        return {**result, "lost": lost(home / "state.db", steps)}
    finally:
        shutil.rmtree(home)


def parts(steps: list[workload.Step]) -> list[tuple[int, int]]:
    """From where to where there is no restart."""
    pauses = [n for n, step in enumerate(steps) if isinstance(step, workload.Restart)]
    starts = [0, *(pause + 1 for pause in pauses)]
    return list(zip(starts, [*pauses, len(steps)], strict=True))


def in_home(home: Path, arguments: list[str], limit: float) -> None:
    """It ends by itself, and is ended where it does not."""
    name = os.fspath(home)
    subprocess.run(
        [sys.executable, "-m", "bench.peers.hermes_switching", *arguments],
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": name, "HERMES_HOME": name, "GATEWAY_ALLOW_ALL_USERS": "true"},
        cwd=home,
        timeout=limit,
    )


def lost(file: Path, steps: list[workload.Step]) -> list[str]:
    """Messages that are in no row, be it shown to a model or put aside by a compression."""
    connection = sqlite3.connect(file)
    stored = [content for (content,) in connection.execute("SELECT content FROM messages")]
    connection.close()
    return workload.missing(steps, stored)


if __name__ == "__main__":
    about = {"hermes-agent": version("hermes-agent"), "sqlite": sqlite3.sqlite_version}
    serve(about, {"run": run})
