"""An asyncio program with a runtime inside; its agent is a coroutine of the host's own loop."""

from __future__ import annotations

import asyncio
import sys

import hermes
from hermes.embed import open_runtime_asyncio
from hermes.events import TextDelta, TurnEnded


async def reply(turn):
    for word in turn.text.upper().split():
        await asyncio.sleep(0.01)
        turn.emit(TextDelta(f"{word} "))
    return f"{turn.text.upper()} (session {hermes.current_session_id()[:8]}…)"


async def main(path):
    async with open_runtime_asyncio(path, agent=reply) as runtime:
        async for event in runtime.stream("example:carla", "speak up please"):
            match event:
                case TextDelta(text):
                    print(f"piece: {text}")
                case TurnEnded(answer):
                    print(f"whole: {answer.text}")
        both = await asyncio.gather(
            runtime.ask("example:carla", "one"), runtime.ask("example:dora", "two")
        )
        print(sorted(answer.text.split(" (")[0] for answer in both))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "example.db"))
