"""A bot without a console whose agent asks for an approval; for test_attached.py."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from hermes import open_runtime
from hermes.adapters.jsonrpc.socket_server import serve_socket
from hermes.events import ApprovalAsked


async def reply(turn):
    if turn.text.startswith("[The user has approved"):
        return "It is done."
    asked = await turn.records.ask_approval(
        turn.session_key, "erase", '{"file": "notes.txt"}', delivery="client"
    )
    turn.emit(ApprovalAsked(asked))
    return "I have asked."


async def main(path: Path) -> None:
    async with open_runtime(path, agent=reply) as runtime, serve_socket(runtime, path):
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
