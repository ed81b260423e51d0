"""One node as a process: `python -m bench.cluster.node TARGET DELAY`.

It answers each line of its input with a line of JSON, after it has done what the line says.
"""

from __future__ import annotations

import json
import sys
import time

import trio

from bench.harness.sample_text import text
from hermes import Runtime, Turn, open_runtime


async def converse(
    runtime: Runtime, keys: list[str], seconds: float, turns: int
) -> dict[str, float]:
    """Ask in each of these conversations, until both the time and the turns are over."""
    done = 0
    cpu, started = time.process_time(), time.perf_counter()

    async def ask(key: str) -> None:
        nonlocal done
        asked = 0
        while asked < turns or time.perf_counter() - started < seconds:
            reply = await runtime.ask(key, text(0, asked))
            if reply.text != text(0, 0):
                raise AssertionError(f"the reply was {reply.text!r}")
            asked += 1
            done += 1

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(ask, key)
    elapsed = time.perf_counter() - started
    return {"count": done, "seconds": elapsed, "cpu": time.process_time() - cpu}


async def main(target: str, delay: float) -> None:
    async def answer(_: Turn) -> str:
        await trio.sleep(delay)
        return text(0, 0)

    async def answer_at_once(_: Turn) -> str:
        return text(0, 0)

    async with open_runtime(target, agent=answer if delay else answer_at_once) as runtime:
        say("open")
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            say(await converse(runtime, **json.loads(line)))


def say(content: object) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], float(sys.argv[2]))
