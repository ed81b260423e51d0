"""A bot whose agent asks for an approval, with a console at a terminal; for test_attached.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

from hermes import open_runtime
from hermes.adapters.console import Console
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
    console = Console() if os.isatty(0) else None
    adapters = [] if console is None else [console]
    async with (
        open_runtime(path, agent=reply, adapters=adapters) as runtime,
        serve_socket(runtime, path),
    ):
        if console is None:
            await trio.sleep_forever()
        else:
            await console.run(runtime)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
