"""A chat bot in the terminal: python bot.py [database]"""

from __future__ import annotations

import sys

import trio

import hermes
from hermes.adapters.console import Console


async def reply(turn: hermes.Turn) -> str:
    earlier = sum(message.role == "user" for message in turn.history)
    return f"Words: {len(turn.text.split())}, earlier messages: {earlier}."


async def main(path: str) -> None:
    console = Console(greeting="I count your words. Press Ctrl-D to quit.\n")
    async with hermes.open_runtime(path, agent=reply, adapters=[console]) as runtime:
        await console.run(runtime)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "bot.db")
