"""OpenAI's APIs for an agent of yours, on Trio: python http_trio.py [database] [address]

Any client of OpenAI can use it, with the printed URL as its base URL and a token as its key:

    hermes tokens create laptop --db chats.db

On SIGTERM, the requests that are running get their answers, and leaving the blocks drains the
runtime.
"""

from __future__ import annotations

import signal
import sys

import trio

import hermes
from hermes.adapters.http import HttpConfig, serve_http


async def reply(turn: hermes.Turn) -> str:
    answer = ["You ", "said: ", turn.text]
    for piece in answer:
        turn.emit(hermes.TextDelta(piece))
        await trio.sleep(0.02)
    return "".join(answer)


async def main(path: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    config = HttpConfig(host=host, port=int(port))
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            hermes.open_runtime(path, agent=reply) as runtime,
            serve_http(runtime, config) as url,
        ):
            print(f"{url}/v1", flush=True)
            await anext(signals)


if __name__ == "__main__":
    defaults = ["chats.db", "127.0.0.1:8420"]
    trio.run(main, *sys.argv[1:], *defaults[len(sys.argv) - 1 :])
