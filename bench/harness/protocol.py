"""The driver's side of the protocol: JSON lines on standard input and output.

The first line describes the driver. After that, each request line gets one response line.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

Figures = dict[str, float]
Call = Callable[[], Coroutine[Any, Any, Any]]


def run_asyncio(call: Call) -> Any:
    return asyncio.run(call())


def serve(
    about: Mapping[str, str],
    *commands: Callable[..., Any],
    run: Callable[[Call], Any] = run_asyncio,
) -> None:
    """Answer requests by calling the functions they name, until standard input is closed.

    `run` runs the commands that are coroutine functions, like `trio.run`.
    """
    known = {command.__name__: command for command in commands}
    # Anything the measured library prints goes to standard error and cannot corrupt a response.
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"python": platform.python_version(), **about}), file=responses)
    for line in sys.stdin:
        request = json.loads(line)
        response: dict[str, Any]
        try:
            call = partial(known[request["do"]], **request["with"])
            figures = run(call) if inspect.iscoroutinefunction(call.func) else call()
            response = {"figures": figures}
        except Exception as error:  # noqa: BLE001 - reported to the benchmark, which stops
            traceback.print_exc()
            response = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(response), file=responses)
