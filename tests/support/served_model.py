"""A model on loopback for tests without an event loop of their own."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import trio

from hermes.testing import open_model


@contextmanager
def served(*faults, script=lambda _: "good evening", **options):
    """Serve a model in a thread while the test waits for other programs."""
    started, stop, found = threading.Event(), trio.Event(), []

    async def serve():
        async with open_model(script, faults, **options) as model:
            found[:] = [model, trio.lowlevel.current_trio_token()]
            started.set()
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert started.wait(30)
    try:
        yield found[0]
    finally:
        found[1].run_sync_soon(stop.set)
        thread.join(30)
