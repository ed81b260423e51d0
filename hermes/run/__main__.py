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
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.console import Console
from hermes.agents.offline import OfflineAgent
from hermes.config import data_path
from hermes.embed import open_runtime
from hermes.errors import StoreFailed, StoreRefused

GREETING = """\
Hermes. {agent}
Your conversations are kept in {path}
/help shows the commands; Ctrl-D ends.
"""
OFFLINE = "The offline agent answers, since no model is connected: say help to see what it can do."
OPENAI = "https://api.openai.com/v1"
HISTORY = "console_history"
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
    console = _console(OFFLINE, path)
    async with open_runtime(path, agent=lambda _: agent, adapters=[console]) as runtime:
        agent.search = runtime.search
        return await _until_told(console, runtime)


async def _chat_with_a_model(path: Path) -> bool:
    from hermes.agents.models import chat_agents  # noqa: PLC0415 - it brings an HTTP client
    from hermes.agents.provider import Endpoint, Secret  # noqa: PLC0415

    endpoint = Endpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", OPENAI),
        model=os.environ.get("OPENAI_MODEL", MODEL),
        name="the model",
        key=Secret.env("OPENAI_API_KEY"),
    )
    console = _console(f"{endpoint.model} answers.", path)
    async with (
        chat_agents(endpoint, system=SYSTEM) as agents,
        open_runtime(
            path,
            agent=agents.build,
            describe=agents.describe,
            compressor=agents.compressor(),
            titler=agents.titler(),
            adapters=[console],
        ) as runtime,
    ):
        return await _until_told(console, runtime)


def _console(agent: str, path: Path) -> Console:
    return Console(greeting=GREETING.format(agent=agent, path=path), history=path.parent / HISTORY)


async def _until_told(console: Console, runtime: Runtime) -> bool:
    """Chat until the input ends, or the program is told to; then the runtime drains."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hear_terminate, nursery.cancel_scope)
        await console.run(runtime)
        nursery.cancel_scope.cancel()
    if console.left:
        raise KeyboardInterrupt
    return not console.failed


async def _hear_terminate(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


if __name__ == "__main__":
    sys.exit(main())
