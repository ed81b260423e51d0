"""hermes-agent 0.19.0 performs the script of the switching benchmark, in a new home.

Each part between two restarts runs in a new process (`hermes_switching`).

The configuration is the default except for this: The script's tool is the only toolset. SOUL.md is
a part of the common system prompt, so that together with hermes-agent's own text the prompt is as
long as ours; a longer prompt would have a larger cached share. /new needs no confirmation. Disabled
are a download, the titles (a model request beside the turns), a long onboarding message, and
requests that only a local server gets, five for each new agent.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from bench.harness.protocol import serve
from bench.peers.hermes_gateway import run_in_home
from bench.switch import workload
from bench.switch.workload import Restart, Step

TIMEOUT = 840.0
TOOLSET = "bench"
SOUL = "\n".join(workload.SYSTEM.splitlines()[:9])
"""hermes-agent adds 4,400 characters, which is as long as the other eleven lines."""
RECORD = "record.json"
"""The file in the home that one process passes to the next."""
CONFIG = f"""\
model:
  default: stub
  provider: custom
  base_url: URL
  api_key: none
  context_length: 200000
  ollama_num_ctx: 0  # otherwise each new agent sends requests to a local server
platform_toolsets:
  telegram: [{TOOLSET}, no_mcp]  # the tool of the script, as for ours
approvals:
  destructive_slash_confirm: false  # /new needs no confirmation
security:
  tirith_enabled: false  # it would be downloaded
onboarding:
  profile_build: "off"  # as a string: the YAML value is not understood
auxiliary:
  compression:
    context_length: 200000  # otherwise each compression sends requests to a local server
  title_generation:
    enabled: false  # an extra request beside the first turn
"""


def run(path: str, url: str, script: str, **_: object) -> dict[str, object]:
    """Perform the script with a model at this URL; return the record."""
    home = Path(path)
    home.mkdir()
    try:
        (home / "config.yaml").write_text(CONFIG.replace("URL", url))
        (home / "SOUL.md").write_text(SOUL)
        steps = workload.load(Path(script))
        deadline = monotonic() + TIMEOUT
        for start, end in parts(steps):
            program = ["-m", "bench.peers.hermes_switching", script, str(start), str(end)]
            run_in_home(home, program, deadline - monotonic())
        record: dict[str, object] = json.loads((home / RECORD).read_text())
        return {**record, "lost": lost(home / "state.db", steps)}
    finally:
        shutil.rmtree(home)


def parts(steps: list[Step]) -> list[tuple[int, int]]:
    """Return the ranges of steps between restarts."""
    restarts = [number for number, step in enumerate(steps) if isinstance(step, Restart)]
    starts = [0, *(number + 1 for number in restarts)]
    return list(zip(starts, [*restarts, len(steps)], strict=True))


def lost(file: Path, steps: list[Step]) -> list[str]:
    """Return the messages that are in no row, not even in one that a compression archived."""
    connection = sqlite3.connect(file)
    stored = [content for (content,) in connection.execute("SELECT content FROM messages")]
    connection.close()
    return workload.missing(steps, stored)


if __name__ == "__main__":
    about = {"hermes-agent": version("hermes-agent"), "sqlite": sqlite3.sqlite_version}
    serve(about, run)
