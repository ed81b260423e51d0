"""Whether a runtime can take work: it does not drain, and its store commits."""

from __future__ import annotations

import math

import trio

from hermes.actors.runtime import Runtime
from hermes.background import holding
from hermes.user_code import contained

MAX_AGE = 1.0
"""Seconds for which a result is used again, so that checks cost at most a commit per second."""
TIMEOUT = 2.0
"""Seconds in which the store must commit."""


class Readiness:
    """The last check of a runtime."""

    def __init__(self) -> None:
        self._ready = False
        self._checked_at = -math.inf
        self._checking = trio.Lock()

    async def check(self, runtime: Runtime, process: str) -> bool:
        """Return whether the runtime is ready; `process` is recorded as alive."""
        async with holding(self._checking):
            if trio.current_time() - self._checked_at >= MAX_AGE:
                self._ready = False
                with trio.move_on_after(TIMEOUT), contained():  # whatever it is, it is not ready
                    await runtime.api.record_process(process)
                    self._ready = not (await runtime.admin.statistics()).draining
                self._checked_at = trio.current_time()
        return self._ready
