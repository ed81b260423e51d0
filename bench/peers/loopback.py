"""The loopback model in a process of its own: says where it is, and serves until told to end."""

from __future__ import annotations

import json
import platform
import sys

import trio

from bench import texts
from hermes.testing import ModelAnswer, ModelRequest, open_model

LONG = "a long answer, please"
PIECES = 2000
PIECE = 16


def answer(request: ModelRequest) -> ModelAnswer:
    """Always the same, at once; or a long one in many pieces."""
    if request.text == LONG:
        return ModelAnswer("word " * (PIECE * PIECES // 5), piece=PIECE)
    return ModelAnswer(texts.text(0, 0), piece=10_000)


async def main() -> None:
    async with open_model(answer, cache=False, keep=1) as model:
        about = {"python": platform.python_version(), "url": model.openai_url}
        print(json.dumps(about), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(main)
