"""Opening a runtime can be cancelled or interrupted at any point; nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from pathlib import Path

import anyio
import pytest
import trio

from hermes import open_runtime
from hermes.embed import open_runtime_asyncio
from hermes.store.sqlite.engine import open_in_thread
from hermes.store.sqlite.runtime_lock import owner
from tests.support.runtime import SECONDS

MAX_STEPS = 2000


async def echo(turn):
    return f"echo: {turn.text}"


def threads():
    """The threads that Hermes has started and that still run."""
    return [each.name for each in threading.enumerate() if each.name.startswith("hermes")]


def descriptors():
    """The files that this process has open."""
    gc.collect()
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one of this loop
            found.append(str(link.readlink()))
    return found


def nothing_is_left(path):
    for thread in threading.enumerate():  # a thread of the store ends just after its last call
        if thread.name == "hermes store":
            thread.join(SECONDS)
    assert threads() == []
    assert owner(path) is None
    assert [each for each in descriptors() if each.startswith(f"{path}")] == []


class Countdown(trio.abc.Instrument):
    """Cancels a scope after a number of task steps."""

    def __init__(self, scope, steps):
        self.scope, self.steps = scope, steps

    def before_task_step(self, task):
        self.steps -= 1
        if self.steps == 0:
            self.scope.cancel()


async def opened_on_trio(path, steps):
    """Open a runtime and cancel that after some steps. Returns whether it was open by then."""
    opened = False
    with trio.CancelScope() as scope:
        countdown = Countdown(scope, steps)
        trio.lowlevel.add_instrument(countdown)
        try:
            async with open_runtime(path, agent=echo):
                opened = True
        finally:
            trio.lowlevel.remove_instrument(countdown)
    return opened


async def test_on_trio_opening_can_be_cancelled_at_every_step(path):
    for steps in range(1, MAX_STEPS):
        with trio.fail_after(SECONDS):
            opened = await opened_on_trio(path, steps)
        nothing_is_left(path)
        if opened:
            break
    assert 10 < steps < MAX_STEPS - 1
    async with open_runtime(path, agent=echo) as runtime:
        assert (await runtime.ask("k", "hello")).text == "echo: hello"


class Held(trio.abc.Instrument):
    """Makes the host's loop act after a number of steps of the runtime's thread, and waits."""

    def __init__(self, steps, action):
        self.steps, self.action = steps, action
        self.loop = asyncio.get_running_loop()
        self.counting = False

    def before_task_step(self, task):
        self.steps -= 1
        if self.steps == 0:
            done = threading.Event()
            self.loop.call_soon_threadsafe(self.act, done)
            assert done.wait(SECONDS)

    def act(self, done):
        self.action()
        self.loop.call_soon(self.loop.call_soon, done.set)  # after what the action has caused

    async def open_worker(self, connect, **options):
        """Open a connection. The first one starts the count."""
        if not self.counting:
            self.counting = True
            trio.lowlevel.add_instrument(self)
        return await open_in_thread(connect, **options)


async def cancelled_task(path, steps):
    """Cancel the task that opens a runtime. Returns whether it was open by then."""
    opened = False

    async def host():
        nonlocal opened
        async with open_runtime_asyncio(path, agent=echo, open_worker=held.open_worker):
            opened = True

    task = asyncio.create_task(host())
    held = Held(steps, task.cancel)
    if steps == 0:
        task.cancel()
    await asyncio.wait([task], timeout=SECONDS)
    assert task.done()
    assert opened or task.cancelled()
    return opened


async def cancelled_scope(path, steps):
    """Cancel an anyio scope around the opening, as Starlette does."""
    opened = False
    with anyio.fail_after(SECONDS), anyio.CancelScope() as scope:
        held = Held(steps, scope.cancel)
        if steps == 0:
            scope.cancel()
        async with open_runtime_asyncio(path, agent=echo, open_worker=held.open_worker):
            opened = True
    return opened


@pytest.mark.parametrize("cancelled", [cancelled_task, cancelled_scope])
def test_on_asyncio_opening_can_be_cancelled_at_every_step(path, cancelled):
    for steps in range(MAX_STEPS):
        opened = asyncio.run(cancelled(path, steps))
        nothing_is_left(path)
        if opened:
            break
    assert 10 < steps < MAX_STEPS - 1

    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            return (await runtime.ask("k", "hello")).text

    assert asyncio.run(main()) == "echo: hello"
