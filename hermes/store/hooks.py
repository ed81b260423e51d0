"""Delivery of boundaries to hooks: in order per session_key, each call with a timeout.

No commit and no reply waits for a hook. The failure of a hook is logged and stored with its
boundary; it affects no other hook.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, get_args

import trio
from msgspec.structs import asdict

from hermes import user_code
from hermes.background import cancel, holding, or_crash, set_event, start_soon, until_memory
from hermes.context import TurnContext, within
from hermes.errors import Overloaded, StoreError
from hermes.messages import Boundary, HookEvent, Hooks, JsonObject, Transcript
from hermes.protocols.cluster import HOOKS, Cluster

log: Final = logging.getLogger(__name__)

HOOK_TIMEOUT = 30.0
MAX_RUNNING = 16
"""Sessions whose hooks run at the same time, and threads for hooks that are plain functions."""
RETRY_SECONDS = 1.0
_TEMPORARY = (StoreError, Overloaded)

Pending: TypeAlias = Callable[[int], Awaitable[list[Boundary]]]
"""Reads the open boundaries with ids above the given one, in order."""
Close: TypeAlias = Callable[[int, str | None], Awaitable[object]]
"""Closes the boundary with this id, with the error of its hooks or None."""
Load: TypeAlias = Callable[[str], Awaitable[Transcript]]
"""Loads the transcript of a session."""


class HookRunner:
    """Calls the hooks for each boundary; one task per session_key that has any.

    With `threads`, hooks that are plain functions run in threads; without, in Trio's own.
    """

    def __init__(
        self,
        hooks: Hooks,
        *,
        pending: Pending,
        close: Close,
        load: Load,
        timeout: float = HOOK_TIMEOUT,
        threads: bool = True,
    ) -> None:
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._started = trio.Event()
        self._hooks = hooks
        self._pending = pending
        self._close = close
        self._load = load
        self._timeout = timeout
        self._threads = threads
        self._running = trio.Semaphore(MAX_RUNNING)
        self._free_threads = trio.CapacityLimiter(MAX_RUNNING)
        self._queues: dict[str, deque[Boundary]] = {}
        self._idle = trio.Event()
        set_event(self._idle)
        self._ended = False
        self._open: set[int] = set()
        """The boundaries that were queued and are not closed."""
        self._newest = 0
        self._in_order = True
        self._fetching = trio.Lock()

    @trio.lowlevel.enable_ki_protection
    async def run(self, cluster: Cluster) -> None:
        """Background task: deliver what an earlier process left, then each new boundary.

        Of several nodes, the one with the role does so. Only `stop` ends this: a runtime whose
        block is cancelled still waits for the hooks.
        """
        try:
            with self._scope:
                await cluster.run_as(HOOKS, partial(self._run, cluster))
        finally:
            self._ended = True
            set_event(self._idle)  # who waits is told that it has ended

    async def _run(self, cluster: Cluster) -> None:
        """Deliver boundaries until this is cancelled, at the end or because the role is lost."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._in_order = cluster.ids_in_order
                set_event(self._started)
                await self._fetch_always(cluster)
        finally:
            if not self._scope.cancel_called:
                self._queues, self._open, self._newest = {}, set(), 0
                self._started = trio.Event()
                set_event(self._idle)

    def stop(self) -> None:
        """End `run` and the hooks that it calls."""
        cancel(self._scope)

    async def _fetch_always(self, cluster: Cluster) -> None:
        while True:
            try:
                await self.fetch()
            except _TEMPORARY as error:
                log.warning("boundaries are delayed: %s", error)
                await trio.sleep(RETRY_SECONDS)
            else:
                await cluster.until_woken(HOOKS)

    async def fetch(self) -> None:
        """Read new boundaries from the store and queue them."""
        await self._started.wait()
        async with self._fetching:
            # With several nodes, one may be committed after others with larger ids.
            known, after = frozenset(self._open), self._newest if self._in_order else 0
            while found := await self._pending(after):
                after = found[-1].boundary_id
                for boundary in found:
                    if boundary.boundary_id not in known:
                        self._enqueue(boundary)
            self._newest = after

    def _enqueue(self, boundary: Boundary) -> None:
        self._open.add(boundary.boundary_id)
        queue = self._queues.get(boundary.session_key)
        if queue is not None:
            queue.append(boundary)
            return
        self._queues[boundary.session_key] = deque([boundary])
        if self._ended:
            return
        if self._idle.is_set():
            self._idle = trio.Event()
        assert self._nursery is not None
        start_soon(self._nursery, self._deliver_all, boundary.session_key)

    async def wait_delivered(self, cluster: Cluster) -> bool:
        """Wait until the hooks have been called for every boundary that is in the store now.

        Returns False if `run` ended before that.
        """
        if not self._ended and not cluster.holds(HOOKS):
            await self._wait_for_other_node(cluster)
            return True
        await self.fetch()
        await self._idle.wait()
        return not (self._ended and self._queues)

    async def _wait_for_other_node(self, cluster: Cluster) -> None:
        """Wait until the boundaries that are in the store now are closed."""
        waiting = {each.boundary_id for each in await self._pending(0)}
        while waiting:
            await trio.sleep(RETRY_SECONDS / 4)
            waiting &= {each.boundary_id for each in await self._pending(0)}

    @trio.lowlevel.enable_ki_protection
    async def _deliver_all(self, session_key: str) -> None:
        """Deliver the boundaries of one session_key, in order, until none is left."""
        queue = self._queues[session_key]
        while queue:
            try:
                async with holding(self._running):
                    error = await self._deliver(queue[0])
            except _NoThread:
                log.warning(
                    "%s of %s was not delivered: hooks that do not return occupy all %d threads",
                    queue[0].event, queue[0].session_id, MAX_RUNNING, extra=_extra(queue[0]),
                )  # fmt: skip
            else:
                await self._close_boundary(queue[0], error)
                self._open.discard(queue[0].boundary_id)
            queue.popleft()
        del self._queues[session_key]
        if not self._queues:
            set_event(self._idle)

    async def _close_boundary(self, boundary: Boundary, error: str | None) -> None:
        while True:
            try:
                await self._close(boundary.boundary_id, error)
            except _TEMPORARY as problem:
                about = (boundary.boundary_id, problem)
                log.warning("boundary %d stays open for now: %s", *about, extra=_extra(boundary))
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    async def _deliver(self, boundary: Boundary) -> str | None:
        """Call each hook; return the last failure, for the boundary's row."""
        failure, about = None, (boundary.event, boundary.session_id)
        for hook in self._hooks.get(boundary.event, ()):
            context = TurnContext(boundary.session_key, boundary.session_id)
            with user_code.contained(_NoThread) as caught, within(context):
                await self._call(hook, boundary)
            error = caught.error
            if isinstance(error, trio.TooSlowError):
                failure = f"{_name(hook)} did not return within {self._timeout:g} s"
                log.warning("%s of %s: %s", *about, failure, extra=_extra(boundary))
            elif error is not None:
                failure = f"{_name(hook)} raised {user_code.loggable(user_code.leaf(error))}"
                extra = _extra(boundary)
                log.error("%s of %s: a hook failed", *about, exc_info=error, extra=extra)
        return failure

    async def _call(self, hook: Callable[..., Any], boundary: Boundary) -> None:
        arguments = self._arguments(hook, boundary)
        if inspect.iscoroutinefunction(hook) or not self._threads:
            with trio.fail_after(self._timeout):
                await _result_of(hook(**arguments))
            return
        call = await self._with_thread(lambda: hook(**arguments))
        with trio.fail_after(self._timeout):
            # A plain function may block: after the timeout, its thread is abandoned.
            own = trio.CapacityLimiter(1)
            [result] = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=own)
            await _result_of(result)

    async def _with_thread(self, hook: Callable[[], object]) -> Callable[[], tuple[object]]:
        """Reserve a thread, which counts as occupied until the hook returns.

        Raises `_NoThread` if none becomes free within the timeout.
        """
        owner = object()
        with trio.move_on_after(self._timeout):
            await self._free_threads.acquire_on_behalf_of(owner)
            token = trio.lowlevel.current_trio_token()

            def call() -> tuple[object]:  # Trio refuses a coroutine as the result of a thread
                try:
                    return (hook(),)
                finally:
                    with contextlib.suppress(trio.RunFinishedError):
                        release = or_crash(self._free_threads.release_on_behalf_of)
                        until_memory(token.run_sync_soon, release, owner)

            return call
        raise _NoThread

    def _arguments(self, hook: Callable[..., Any], boundary: Boundary) -> Mapping[str, object]:
        """Return the keyword arguments that the hook names; always session_id and platform."""

        async def transcript() -> Transcript:
            return await self._load(boundary.session_id)

        offered: dict[str, object] = {**asdict(boundary), "transcript": transcript}
        parameters = inspect.signature(hook).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return offered
        named = {parameter.name for parameter in parameters} | {"session_id", "platform"}
        return {name: value for name, value in offered.items() if name in named}


class _NoThread(Exception):
    """All threads are occupied by hooks that do not return."""


def _extra(boundary: Boundary) -> JsonObject:
    """Return what log records about a boundary have besides their text."""
    return {"metadata": boundary.metadata}


async def _result_of(result: object) -> None:
    if inspect.isawaitable(result):
        await result


def require_hooks(hooks: Hooks) -> None:
    """Raise `ValueError` for an unknown event, or for hooks that are not a list of callables."""
    known = get_args(HookEvent)
    for event, callables in hooks.items():
        if event not in known:
            raise ValueError(f"unknown event {event!r}; the events are {', '.join(known)}")
        if callable(callables) or not all(callable(hook) for hook in callables):
            raise ValueError(f"the hooks of {event} must be a list of callables")


def _name(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", type(hook).__name__)
