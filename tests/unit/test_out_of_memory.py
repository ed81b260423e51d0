"""Without memory: if Trio fails halfway, its run ends with an error, and nobody waits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import closing

import pytest
import trio
from trio.lowlevel import reschedule, wait_task_rescheduled
from trio.testing import wait_all_tasks_blocked

from hermes.agents.threads import HostLoop
from hermes.background import (
    cancel,
    holding,
    open_background,
    set_event,
    start_soon,
    until_memory,
)
from hermes.embed.runtime_thread import await_future
from hermes.store.worker import StoreThread, run_in_thread, watch


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


async def release_half():
    """Release a lock while the task that waits for it cannot be rescheduled."""
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope(shield=True):
            async with holding(lock):
                nursery.start_soon(lock.acquire)
                await wait_all_tasks_blocked()
                reschedule(next(iter(nursery.child_tasks)))
        await trio.sleep_forever()


HALFWAY = (cancel_tasks, leave_block, set_half, start_half, release_half)
MAINS = {main.__name__: main for main in HALFWAY}


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


async def test_a_lock_is_held_during_the_block_only():
    lock = trio.Lock()
    async with holding(lock):
        assert lock.locked()
    assert not lock.locked()


def test_a_thread_that_waits_gets_its_answer_once_there_is_memory():
    failures, answers = [MemoryError(), MemoryError()], []

    def answer(text, *, loud):
        if failures:
            raise failures.pop()
        answers.append(text.upper() if loud else text)

    until_memory(answer, "yes", loud=True)
    assert answers == ["YES"]


class ForgetfulLoop(asyncio.SelectorEventLoop):
    """A Trio run whose threads never report a result, as if there was no memory for it."""

    def call_soon_threadsafe(self, callback, *args, context=None):
        raise MemoryError


def test_a_result_of_which_asyncio_was_not_told_is_found():
    future: Future[str] = Future()

    async def wait():
        asyncio.get_running_loop().call_soon(future.set_result, "found")
        return await await_future(future, interval=0.01)

    with closing(ForgetfulLoop()) as loop:
        assert loop.run_until_complete(wait()) == "found"


def test_a_wait_that_is_cancelled_cancels_the_future():
    future: Future[str] = Future()

    async def main():
        task = asyncio.get_running_loop().create_task(await_future(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(main())
    assert future.cancelled()


async def test_a_coroutine_for_which_asyncio_has_no_task_fails_the_turn():
    class LoopWithoutTasks(asyncio.SelectorEventLoop):
        def create_task(self, coro, **_):
            coro.close()
            raise MemoryError

    async def work():
        raise AssertionError

    loop = LoopWithoutTasks()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with pytest.raises(MemoryError), trio.fail_after(30):
            await HostLoop(loop, 1.0).run(work)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await trio.to_thread.run_sync(thread.join)
        loop.close()


async def test_a_result_of_which_trio_was_not_told_is_found():
    until = trio.CancelScope()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, until)
            assert await run_in_thread(StoreThread.telling.acquire)  # which the thread needs
            StoreThread.telling.release()
            until.cancel()


if __name__ == "__main__":
    try:
        trio.run(MAINS[sys.argv[1]])
    except trio.TrioInternalError as error:
        sys.stdout.write(f"{type(error).__name__}\n")
