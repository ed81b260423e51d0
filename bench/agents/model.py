"""The model of the agents benchmark: it replies at once, without a prefix cache."""

from __future__ import annotations

import trio

from bench.harness.model import serve_model
from bench.harness.sample_text import text
from hermes.testing import ModelAnswer, ModelRequest

LONG_REPLY = "a long answer, please"
PIECES = 2000
PIECE = 16


def reply(request: ModelRequest) -> ModelAnswer:
    """Return always the same text, or a long one in many pieces."""
    if request.text == LONG_REPLY:
        return ModelAnswer("word " * (PIECE * PIECES // 5), chunk_size=PIECE)
    return ModelAnswer(text(0, 0), chunk_size=10_000)


if __name__ == "__main__":
    trio.run(serve_model, reply)
