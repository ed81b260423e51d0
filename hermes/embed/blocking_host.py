"""A runtime inside a synchronous program: the same verbs, called from any thread."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from hermes.actors.runtime import Runtime
from hermes.actors.stream import Stream
from hermes.embed.trio_host import open_runtime
from hermes.events import RuntimeEvent

P = ParamSpec("P")
R = TypeVar("R")


def call(portal: BlockingPortal, function: Callable[[], Awaitable[R]]) -> R:
    """Run it in the runtime's thread and wait; a Ctrl-C here cancels it there."""
    future = portal.start_task_soon(function)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _waits(
    verb: Callable[Concatenate[Runtime, P], Awaitable[R]],
) -> Callable[Concatenate[BlockingRuntime, P], R]:
    @functools.wraps(verb)
    def blocking(self: BlockingRuntime, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return call(self.portal, lambda: verb(self.runtime, *args, **kwargs))

    return blocking


def _looks(
    verb: Callable[Concatenate[Runtime, P], R],
) -> Callable[Concatenate[BlockingRuntime, P], R]:
    @functools.wraps(verb)
    def blocking(self: BlockingRuntime, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def look() -> R:
            return verb(self.runtime, *args, **kwargs)

        return call(self.portal, look)

    return blocking


class BlockingStream:
    """The events of one message, for a `for` loop."""

    def __init__(self, portal: BlockingPortal, stream: Stream) -> None:
        self._portal = portal
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RuntimeEvent:
        event = call(self._portal, self._next)
        if event is None:
            raise StopIteration
        return event

    async def _next(self) -> RuntimeEvent | None:
        async for event in self._stream:
            return event
        return None

    def close(self) -> None:
        """Hear no more."""
        call(self._portal, self._stream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BlockingRuntime:
    """The verbs of `Runtime`, each waiting for its answer. Threads may share it."""

    def __init__(self, portal: BlockingPortal, runtime: Runtime) -> None:
        self.portal = portal
        self.runtime = runtime

    submit = _waits(Runtime.submit)
    ask = _waits(Runtime.ask)
    new_session = _waits(Runtime.new_session)
    switch = _waits(Runtime.switch)
    close = _waits(Runtime.close)
    branch = _waits(Runtime.branch)
    compress = _waits(Runtime.compress)
    undo = _waits(Runtime.undo)
    retry = _waits(Runtime.retry)
    set_title = _waits(Runtime.set_title)
    steer = _waits(Runtime.steer)
    interrupt = _waits(Runtime.interrupt)
    adopt = _waits(Runtime.adopt)
    status = _waits(Runtime.status)
    history = _waits(Runtime.history)
    sessions = _waits(Runtime.sessions)
    search = _waits(Runtime.search)
    find = _waits(Runtime.find)
    transcript = _waits(Runtime.transcript)
    delete = _waits(Runtime.delete)
    branch_off = _waits(Runtime.branch_off)
    rewind = _waits(Runtime.rewind)
    title = _waits(Runtime.title)
    answered = _waits(Runtime.answered)
    facts = _waits(Runtime.facts)
    recall = _waits(Runtime.recall)
    remember = _waits(Runtime.remember)
    wait_hooks = _waits(Runtime.wait_hooks)
    drain = _waits(Runtime.drain)
    snapshot = _looks(Runtime.snapshot)
    statistics = _looks(Runtime.statistics)
    running_turns = _looks(Runtime.running_turns)

    def stream(self, session_key: str, text: str, **options: Any) -> BlockingStream:
        """Say something and hear what happens until the reply, which is the last event."""

        async def begin() -> Stream:
            return self.runtime.stream(session_key, text, **options)

        return BlockingStream(self.portal, call(self.portal, begin))


@contextmanager
def start_runtime(path: str | os.PathLike[str], **options: Any) -> Iterator[BlockingRuntime]:
    """A runtime in a thread of its own; options as for `open_runtime`. Leaving drains it."""
    with (
        start_blocking_portal("trio", name="hermes runtime") as portal,
        portal.wrap_async_context_manager(open_runtime(path, **options)) as runtime,
    ):
        yield BlockingRuntime(portal, runtime)
