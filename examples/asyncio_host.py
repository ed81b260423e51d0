"""A runtime inside an asyncio program. The agent is a coroutine on the program's own event loop."""

from __future__ import annotations

import asyncio
import sys

import hermes


async def reply(turn: hermes.Turn) -> str:
    for word in turn.text.upper().split():
        await asyncio.sleep(0.01)
        turn.emit(hermes.TextDelta(f"{word} "))
    return turn.text.upper()


async def main(path: str) -> None:
    async with hermes.embed.open_runtime_asyncio(path, agent=reply) as runtime:
        async with runtime.stream("example:carla", "speak up please") as stream:
            async for event in stream:
                match event:
                    case hermes.TextDelta(text):
                        print(f"delta: {text}")
                    case hermes.TurnEnded(answer):
                        print(f"reply: {answer.text}")
        answers = await asyncio.gather(
            runtime.ask("example:carla", "one"), runtime.ask("example:dora", "two")
        )
        print([answer.text for answer in answers])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "example.db"))
