"""A process that serves the loopback model of `hermes.testing`."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from typing import Any

import trio

from hermes.testing import ModelAnswer, ModelRequest, open_model
from hermes.testing.prefix_cache import PrefixCache


async def serve_model(
    answer: Callable[[ModelRequest], ModelAnswer],
    cache: PrefixCache | None = None,
    take: Callable[[], list[dict[str, Any]]] = list,
) -> None:
    """Print the URL of a model and serve it until standard input is closed.

    Every line of input is answered with what `take` returns: the requests since the last line.
    """
    async with open_model(answer, cache=False if cache is None else cache, keep=1) as model:
        about = {"python": platform.python_version(), "url": model.openai_url}
        print(json.dumps(about), flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps({"figures": {"requests": take()}}), flush=True)
