"""`python -m hermes.run`: the standalone bot. So far: a console, and an agent.

A model answers where OPENAI_API_KEY or OPENAI_BASE_URL is set (OPENAI_MODEL names it), else the
offline agent.

Exit codes: 0 all was answered, 1 a turn failed, 2 wrong usage, 3 the data cannot be used, 4 the
store failed while running, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.console import SOURCE, Console
from hermes.agents.offline import OfflineAgent
from hermes.config import data_path
from hermes.embed import open_runtime
from hermes.errors import StoreFailed, StoreRefused
from hermes.keys import session_key

GREETING = """\
Hermes. {agent}
Your conversations are kept in {path}
/help shows the commands; Ctrl-D ends.
"""
OFFLINE = "The offline agent answers, since no model is connected: say help to see what it can do."
OPENAI = "https://api.openai.com/v1"
MODEL = "gpt-4.1-mini"
SYSTEM = "You are a helpful assistant in a terminal. Answer briefly, in plain text."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bot; returns its exit code."""
    parser = argparse.ArgumentParser("hermes.run", description="A chat bot in the terminal.")
    parser.add_argument("--db", type=Path, help="the file of the conversations")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    path = options.db or data_path()
    try:
        return 0 if trio.run(_chat, path) else 1
    except StoreRefused as refusal:
        sys.stderr.write(f"{refusal}\n")
        return 3
    except StoreFailed as failure:
        sys.stderr.write(f"The store failed: {failure}\n")
        return 4
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130


async def _chat(path: Path) -> bool:
    if path == data_path():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(name in os.environ for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL")):
        return await _chat_with_a_model(path)
    agent = OfflineAgent()
    async with open_runtime(path, agent=lambda _: agent) as runtime:
        agent.search = runtime.search
        return await _console(runtime, OFFLINE, path)


async def _chat_with_a_model(path: Path) -> bool:
    from hermes.agents.models import chat_agents  # noqa: PLC0415 - it brings an HTTP client
    from hermes.agents.provider import Endpoint, Secret  # noqa: PLC0415

    endpoint = Endpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", OPENAI),
        model=os.environ.get("OPENAI_MODEL", MODEL),
        name="the model",
        key=Secret.env("OPENAI_API_KEY"),
    )
    async with (
        chat_agents(endpoint, system=SYSTEM) as agents,
        open_runtime(
            path,
            agent=agents.build,
            describe=agents.describe,
            compressor=agents.compressor(),
            titler=agents.titler(),
        ) as runtime,
    ):
        return await _console(runtime, f"{endpoint.model} answers.", path)


async def _console(runtime: Runtime, agent: str, path: Path) -> bool:
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        sys.stdout.write(GREETING.format(agent=agent, path=path))
    prompt = "> " if at_terminal else ""
    return await Console(runtime, session_key(SOURCE), prompt, sys.stdin, sys.stdout).run()


if __name__ == "__main__":
    sys.exit(main())
