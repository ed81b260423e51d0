"""A node for tests as a process: `python -m tests.support.cluster_program URL NAME`.

It prints `node ID` when it has joined and whenever it has another id, `begun TEXT` for each turn,
and `ended TEXT` when its agent has finished. An agent takes `seconds`, the third argument. The
clock of the machine is wrong by the fourth one. The program drains when its input ends.

With a fifth argument it has an adapter of that platform. It prints `receiving` when it receives for
this platform, and `sending ID MARK TEXT` for each send, with the mark `new` or `recovered`. A send
of a text with "hang" does not end.
"""

from __future__ import annotations

import logging
import sys
import time

import trio

right_time = time.time
time.time = lambda: right_time() + float(sys.argv[4])  # before anything keeps a reference to it

from hermes import open_runtime  # noqa: E402
from hermes.testing import MemoryAdapter  # noqa: E402


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Platform(MemoryAdapter):
    """An adapter that says what it does."""

    async def receive(self):
        say("receiving")
        await trio.sleep_forever()

    async def send(self, row):
        say("sending", row.outbox_id, "recovered" if row.recovered else "new", row.body["text"])
        if "hang" in row.body["text"]:
            await trio.sleep_forever()


async def main(url, name, seconds, *platforms):
    adapters = [Platform(platform=platform) for platform in platforms]

    async def answer(turn):
        say("begun", turn.text)
        await trio.sleep(seconds)
        say("ended", turn.text)
        return f"{name}: {turn.text}"

    opened = open_runtime(url, agent=answer, adapters=adapters)
    async with opened as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(tell_node, runtime._context.store.cluster)
        for adapter in adapters:
            nursery.start_soon(runtime.adapter_state.receive, adapter, adapter.receive)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def tell_node(cluster):
    node = None
    while True:
        if cluster.node != node:
            node = cluster.node
            say("node", node)
        await trio.sleep(0.01)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    trio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[5:])
