"""Without memory: if Trio fails halfway, its run ends with an error, and nobody waits."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio
from trio.lowlevel import reschedule, wait_task_rescheduled
from trio.testing import wait_all_tasks_blocked

from hermes.background import cancel, open_background, set_event, start_soon


async def fail_to_cancel():
    """Wait forever; the cancellation of this task raises."""

    def abort(_):
        raise MemoryError

    await wait_task_rescheduled(abort)


async def cancel_tasks():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_to_cancel)
        await wait_all_tasks_blocked()
        cancel(nursery.cancel_scope)


async def leave_block():
    async with open_background() as nursery:
        nursery.start_soon(fail_to_cancel)
        await wait_all_tasks_blocked()


async def set_half():
    """Set an event while one of the tasks that wait for it cannot be rescheduled."""
    event = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(event.wait)
        await wait_all_tasks_blocked()
        with trio.CancelScope(shield=True):
            reschedule(next(iter(nursery.child_tasks)))
            with pytest.raises(AssertionError):
                set_event(event)
            await trio.sleep_forever()


def raise_memory_error():
    raise MemoryError


async def start_half():
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            with pytest.raises(MemoryError):
                start_soon(nursery, raise_memory_error)
            await trio.sleep_forever()


MAINS = {main.__name__: main for main in (cancel_tasks, leave_block, set_half, start_half)}


@pytest.mark.parametrize("name", MAINS)
def test_what_trio_does_halfway_ends_its_run(name):
    """In a process of its own: a run that crashes leaves coroutines behind."""
    done = subprocess.run(
        [sys.executable, __file__, name], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "TrioInternalError\n"
    assert done.stderr.startswith("hermes: out of memory")


async def test_what_succeeds_ends_nothing():
    event, scope = trio.Event(), trio.CancelScope()
    set_event(event)
    with scope:
        cancel(scope)
        await trio.sleep_forever()
    assert (event.is_set(), scope.cancelled_caught) == (True, True)


if __name__ == "__main__":
    try:
        trio.run(MAINS[sys.argv[1]])
    except trio.TrioInternalError as error:
        sys.stdout.write(f"{type(error).__name__}\n")
