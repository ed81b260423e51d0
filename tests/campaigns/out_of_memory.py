"""A program in which one allocation fails: `python -m tests.campaigns.out_of_memory FILE WHEN K`.

The K-th allocation after the start of WHEN (a turn, a submit or a drain) raises `MemoryError`. The
program writes a line for each event that was acknowledged. If it hangs, a timer ends it and writes
"Timeout" and the stacks to standard error.
"""

from __future__ import annotations

import _testcapi
import faulthandler
import os
import sys

import trio

from hermes import Inbound, open_runtime

HANGS_AFTER = 40.0


async def echo(turn):
    return f"echo: {turn.text}"


def acknowledge(event_id):
    os.write(1, f"{event_id}\n".encode())


async def attempt(runtime, when, number):
    """Do one thing while an allocation fails, and report whether it was acknowledged."""
    _testcapi.set_nomemory(number, number + 1)
    try:
        if when == "turn":
            await runtime.ask("k", "during", event_id="during")  # its turn may fail
        else:
            await runtime.submit(Inbound("k", "during", "during", per_conversation=True))
    finally:
        _testcapi.remove_mem_hooks()
    acknowledge("during")


async def main(path, when, number):
    async with open_runtime(path, agent=echo) as runtime:
        for event_id in ("first", "second"):
            await runtime.ask("k", event_id, event_id=event_id)
            acknowledge(event_id)
        if when == "drain":
            _testcapi.set_nomemory(number, number + 1)
            return
        try:
            await attempt(runtime, when, number)
        except Exception as error:  # noqa: BLE001 - whatever it is, the runtime goes on or ends
            os.write(2, f"the call raised {type(error).__name__}\n".encode())
        await runtime.ask("k", "after", event_id="after")
        acknowledge("after")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
