"""A bot in twenty lines, in the terminal or through a pipe: python bot.py"""

from __future__ import annotations

import sys

import trio

import hermes
from hermes.adapters.console import Console


async def reply(turn):
    before = len(turn.history) // 2
    return f"{len(turn.text.split())} words, after {before} other messages of yours."


async def main(path):
    console = Console(greeting="I count your words. Ctrl-D ends.\n")
    async with hermes.open_runtime(path, agent=reply, adapters=[console]) as runtime:
        await console.run(runtime)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "bot.db")
