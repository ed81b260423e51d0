"""A bot whose agent names the files that it gets and sends files back; for test_console_files.py.

It has a console at a terminal or with `--pipe`, and it accepts attached consoles.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import trio

from hermes import Attachment, Config, open_runtime
from hermes.adapters.console import Console
from hermes.adapters.jsonrpc.socket_server import serve_socket
from hermes.config import AttachmentLimits
from hermes.messages import TurnResult

CONFIG = Config(attachments=AttachmentLimits(message_bytes=4_000_000, message_files=3))
HOSTILE = "\x1b]0;owned\x07../..\\chart\u202e.png"


async def received(turn):
    """Return a line for each file of the messages: its name, and the beginning of its hash."""
    for message in turn.input:
        for part in message.parts or ():
            content = await (await turn.open_file(part["file"])).read()
            digest = hashlib.sha256(content).hexdigest()[:8]
            yield f"got {part['name']}, {part['type']}, {digest}"


async def reply(turn):
    lines = [f"said: {turn.input[-1].content}", *[line async for line in received(turn)]]
    files = []
    if "draw" in turn.text:
        name = HOSTILE if "hostile" in turn.text else "chart.png"
        files.append(await turn.put_file(Attachment(data=b"\x89PNG\r", name=name)))
    if "two" in turn.text:
        files.append(await turn.put_file(Attachment(data=b"1,2,3\n", name="data.csv")))
    return TurnResult(text="" if "quietly" in turn.text else "\n".join(lines), files=tuple(files))


async def main(path: Path) -> None:
    with_console = os.isatty(0) or "--pipe" in sys.argv
    console = Console(greeting="Welcome.") if with_console else None
    adapters = [] if console is None else [console]
    async with (
        open_runtime(path, agent=reply, adapters=adapters, config=CONFIG) as runtime,
        serve_socket(runtime, path),
    ):
        if console is None:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await trio.sleep_forever()
        else:
            await console.run(runtime)
    sys.exit(console is not None and console.failed)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
