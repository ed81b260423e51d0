"""A Trio program with a runtime inside: two people talk to an agent that counts."""

from __future__ import annotations

import sys

import trio

import hermes


async def reply(turn):
    asked = [message for message in turn.history if message.role == "user"]
    return f"That was message {len(asked) + 1} of yours: {turn.text}"


async def talk(runtime, name):
    for text in ("hello", "how are you?", "bye"):
        answer = await runtime.ask(f"example:{name}", text)
        print(f"{name}: {answer.text}")


async def main(path):
    async with hermes.open_runtime(path, agent=reply) as runtime:
        async with trio.open_nursery() as nursery:
            for name in ("anna", "bert"):
                nursery.start_soon(talk, runtime, name)
        await runtime.new_session("example:anna", title="A second talk")
        print((await runtime.ask("example:anna", "and again")).text)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "example.db")
