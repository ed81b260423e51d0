"""`python -m hermes.run`: the standalone bot. So far: a console, and an agent that echoes.

Exit codes: 0 all was answered, 1 a turn failed, 2 wrong usage, 3 the data cannot be used, 4 the
store failed while running, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from hermes.adapters.console import SOURCE, Console
from hermes.config import data_path
from hermes.embed import open_runtime
from hermes.errors import StoreFailed, StoreRefused
from hermes.keys import session_key
from hermes.protocols import Turn

GREETING = """\
Hermes. The echo agent answers: it repeats what you say, and no model is connected yet.
Your conversations are kept in {path}
/help shows the commands; Ctrl-D ends.
"""


async def echo(turn: Turn) -> str:
    """Say it again."""
    return f"You said: {turn.text}"


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
    at_terminal = sys.stdin.isatty()
    if path == data_path():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with open_runtime(path, agent=echo) as runtime:
        if at_terminal:
            sys.stdout.write(GREETING.format(path=path))
        prompt = "> " if at_terminal else ""
        return await Console(runtime, session_key(SOURCE), prompt, sys.stdin, sys.stdout).run()


if __name__ == "__main__":
    sys.exit(main())
