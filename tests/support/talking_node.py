"""A node as a process: `python -m tests.support.talking_node URL NAME`.

It prints a line as soon as it has joined, and answers until it is killed. Its agent says its name,
then waits if its name begins with "held".
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager

import trio

from hermes import open_runtime
from hermes.events import TextDelta


async def main(url, name):
    async def answer(turn):
        turn.emit(TextDelta(f"{name} "))
        if name.startswith("held"):
            await trio.sleep_forever()
        turn.emit(TextDelta("answers"))
        return f"{name} answers"

    async with open_runtime(url, agent=answer) as runtime:
        sys.stdout.write(f"{runtime._context.store.cluster.node}\n")
        sys.stdout.flush()
        await trio.sleep_forever()


@asynccontextmanager
async def node_process(url, name):
    """Run a node; yields its process, with its `node` id. It is killed at the end."""
    command = [sys.executable, "-m", "tests.support.talking_node", url, name]
    process = await trio.lowlevel.open_process(command, stdout=-1)
    try:
        with trio.fail_after(30):
            line = b""
            while not line.endswith(b"\n"):
                line += await process.stdout.receive_some()
        process.node = int(line)
        yield process
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.stdout.aclose()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
