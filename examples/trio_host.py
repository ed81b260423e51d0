"""A runtime inside a Trio program: two users talk to one agent at the same time."""

from __future__ import annotations

import sys

import trio

import hermes


async def reply(turn: hermes.Turn) -> str:
    earlier = sum(message.role == "user" for message in turn.history)
    return f"Message {earlier + 1}: {turn.text}"


async def talk(runtime: hermes.Runtime, name: str) -> None:
    for text in ("hello", "how are you?", "bye"):
        answer = await runtime.ask(f"example:{name}", text)
        print(f"{name}: {answer.text}")


async def main(path: str) -> None:
    async with hermes.open_runtime(path, agent=reply) as runtime:
        async with trio.open_nursery() as nursery:
            for name in ("anna", "bert"):
                nursery.start_soon(talk, runtime, name)

        chat = runtime.conversation("example:anna")
        await chat.new()
        print((await chat.ask("and again")).text)
        for summary in await chat.sessions():
            print(f"{summary.session.title or summary.preview}: {summary.session.message_count}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "example.db")
