"""A program with a console whose agent streams a given text; for test_console.py."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import trio

from hermes import open_runtime
from hermes.adapters.console import Console
from hermes.events import TextDelta, ToolFinished, ToolStarted
from hermes.messages import ToolCall, TurnResult


async def main(path: Path, script: dict) -> None:
    async def reply(turn):
        if "raise" in turn.text:
            nursery.start_soon(fail)
            await trio.sleep_forever()
        if "oops" in turn.text:
            await trio.sleep(script["pause"])
            raise RuntimeError("oops")
        await trio.sleep(script.get("wait", 0))
        text = script["text"]
        size = script.get("piece", 7)
        if name := script.get("tool"):
            turn.emit(ToolStarted(ToolCall("c1", name, name)))
            turn.emit(ToolFinished("c1", name))
        for index in range(0, len(text), size):
            turn.emit(TextDelta(text[index : index + size]))
            await trio.sleep(script.get("pause", 0))
        return TurnResult(text=text)

    async def fail():
        raise RuntimeError("as the test says")

    logging.basicConfig(format="LOGGED %(message)s")
    console = Console(greeting="Welcome.", history=path.with_name("history"))
    async with open_runtime(path, agent=reply, adapters=[console]) as runtime:
        async with trio.open_nursery() as nursery:
            await console.run(runtime)
            nursery.cancel_scope.cancel()
    sys.exit(130 if console.left else console.failed)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), json.loads(sys.argv[2]))
