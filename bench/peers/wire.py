"""JSON lines between the benchmark and a driver: one line says who is there, then ask and answer.

Standard library only: the peers' interpreters import it too.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Mapping

Figures = dict[str, float]
Command = Callable[..., Figures]  # each has its own arguments


def serve(about: Mapping[str, str], commands: Mapping[str, Command]) -> None:
    """Answer requests until the benchmark closes the pipe."""
    # What a peer prints goes to standard error, so that it cannot garble an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"python": platform.python_version(), **about}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Figures | str]
        try:
            reply = {"figures": commands[request["do"]](**request["with"])}
        except Exception as error:  # noqa: BLE001 - reported to the benchmark, which stops
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=answers)
