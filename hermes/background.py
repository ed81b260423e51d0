"""Background tasks around a block, without exception groups for the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from hermes.errors import actionable


async def hold_shielded(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Hold a nursery whose tasks outlive a cancellation from outside; for `Nursery.start`.

    Ends when the scope of that nursery is cancelled.
    """
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True
        task_status.started(nursery)
        await trio.sleep_forever()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Open a nursery for tasks that run beside the caller's block.

    The tasks are cancelled when the block ends. An exception of the block leaves as it is, never
    wrapped in a group. If a task fails, the block is cancelled and the task's exception leaves; out
    of several, the one that a caller can act on (see `hermes.errors.actionable`).
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:  # noqa: BLE001 - raised below, outside of the group
                raised = error
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise actionable(group) from raised
    if raised is not None:
        raise raised
