"""The loopback model in a process of its own; it prints its URL and serves until stdin closes."""

from __future__ import annotations

import json
import platform
import sys

import trio

from bench.harness.sample_text import text
from hermes.testing import ModelAnswer, ModelRequest, open_model

LONG_REPLY = "a long answer, please"
PIECES = 2000
PIECE = 16


def reply(request: ModelRequest) -> ModelAnswer:
    """Return always the same text at once, or a long one in many pieces."""
    if request.text == LONG_REPLY:
        return ModelAnswer("word " * (PIECE * PIECES // 5), chunk_size=PIECE)
    return ModelAnswer(text(0, 0), chunk_size=10_000)


async def main() -> None:
    async with open_model(reply, cache=False, keep=1) as model:
        about = {"python": platform.python_version(), "url": model.openai_url}
        print(json.dumps(about), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(main)
