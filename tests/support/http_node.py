"""A node with an HTTP server as a process: `python -m tests.support.http_node URL NAME`.

It prints the address of its server, and answers until it is killed. Its agent says its name, and
then nothing more.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager

import trio

from hermes import open_runtime
from hermes.adapters.http import HttpConfig, serve_http
from hermes.events import TextDelta
from tests.support.http import Server


async def main(url, name):
    async def answer(turn):
        turn.emit(TextDelta(f"{name} "))
        await trio.sleep_forever()

    async with open_runtime(url, agent=answer) as runtime:
        async with serve_http(runtime, HttpConfig(port=0)) as address:
            sys.stdout.write(f"{address}\n")
            sys.stdout.flush()
            await trio.sleep_forever()


@asynccontextmanager
async def http_process(url, name, secret):
    """Run a node; yields its process and its server. It is killed at the end."""
    command = [sys.executable, "-m", "tests.support.http_node", url, name]
    process = await trio.lowlevel.open_process(command, stdout=-1)
    try:
        with trio.fail_after(30):
            line = b""
            while not line.endswith(b"\n"):
                line += await process.stdout.receive_some()
        yield process, Server(None, line.decode().strip(), secret)
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.stdout.aclose()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
