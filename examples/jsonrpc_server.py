"""A JSON-RPC server on standard input and output. jsonrpc_client.py is a client for it."""

from __future__ import annotations

import sys

import trio

import hermes
from hermes.adapters.jsonrpc import serve_stdio


async def reply(turn: hermes.Turn) -> str:
    for word in f"You said: {turn.text}".split(" "):
        turn.emit(hermes.TextDelta(f"{word} "))
        await trio.sleep(0.01)
    return f"You said: {turn.text}"


async def main(path: str) -> None:
    async with hermes.open_runtime(path, agent=reply) as runtime:
        await serve_stdio(runtime)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "example.db")
