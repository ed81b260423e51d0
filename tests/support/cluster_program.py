"""A node for tests as a process: `python -m tests.support.cluster_program URL NAME`.

It prints `node ID` when it has joined and whenever it has another id, `begun TEXT` for each turn,
and `ended TEXT` when its agent has finished. An agent takes `seconds`, the third argument. The
clock of the machine is wrong by the fourth one. The program drains when its input ends.
"""

from __future__ import annotations

import logging
import sys
import time

import trio

right_time = time.time
time.time = lambda: right_time() + float(sys.argv[4])  # before anything keeps a reference to it

from hermes import open_runtime  # noqa: E402


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(url, name, seconds):
    async def answer(turn):
        say("begun", turn.text)
        await trio.sleep(seconds)
        say("ended", turn.text)
        return f"{name}: {turn.text}"

    async with open_runtime(url, agent=answer) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(tell_node, runtime._context.store.cluster)
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
    trio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]))
