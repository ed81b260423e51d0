"""The timed loop of `harness.driver` for Trio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from bench.harness.driver import Task, time_calls


async def _together(tasks: Sequence[Task]) -> None:
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)


time_trio = partial(time_calls, together=_together, sleep=trio.sleep)
