"""Delivery of boundaries to hooks: one lane per session_key, in order, each call under a deadline.

No commit and no reply waits for a hook. One that raises or hangs is logged, and the lane goes on.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args

import trio
from msgspec.structs import asdict

from hermes import user_code
from hermes.context import TurnContext, within
from hermes.errors import Overloaded, StoreError
from hermes.messages import Boundary, Event, Hooks, Transcript

log = logging.getLogger(__name__)

HOOK_TIMEOUT = 30.0
LANES_AT_ONCE = 16
CLOSE_AGAIN_SECONDS = 1.0
Load = Callable[[str], Awaitable[Transcript]]
Close = Callable[[int, str | None], Awaitable[object]]


class HookRunner:
    """Runs the hooks of boundaries; `offer` never waits."""

    def __init__(
        self,
        nursery: trio.Nursery,
        hooks: Hooks,
        *,
        close: Close,
        load: Load,
        seconds: float = HOOK_TIMEOUT,
        threads: bool = True,
    ) -> None:
        self._nursery = nursery
        self._hooks = hooks
        self._close = close
        self._load = load
        self._seconds = seconds
        self._threads = threads
        self._running = trio.Semaphore(LANES_AT_ONCE)
        self._threads_left = trio.CapacityLimiter(LANES_AT_ONCE)
        self._waiting: dict[str, deque[Boundary]] = {}
        self._quiet = trio.Event()
        self._quiet.set()
        self._nudged = trio.Event()
        self.newest = 0

    def nudge(self) -> None:
        """There are new boundaries to fetch."""
        self._nudged.set()

    async def wait_nudge(self) -> None:
        """Wait for the next nudge."""
        await self._nudged.wait()
        self._nudged = trio.Event()

    def offer(self, boundaries: list[Boundary]) -> None:
        """Take boundaries in the order of their ids; those already taken are ignored."""
        for boundary in boundaries:
            if boundary.boundary_id <= self.newest:
                continue
            self.newest = boundary.boundary_id
            lane = self._waiting.get(boundary.session_key)
            if lane is not None:
                lane.append(boundary)
                continue
            self._waiting[boundary.session_key] = deque([boundary])
            if self._quiet.is_set():
                self._quiet = trio.Event()
            self._nursery.start_soon(self._run_lane, boundary.session_key)

    async def wait_quiet(self) -> None:
        """Wait until every boundary that was offered has been heard."""
        await self._quiet.wait()

    @trio.lowlevel.enable_ki_protection
    async def _run_lane(self, session_key: str) -> None:
        lane = self._waiting[session_key]
        while lane:
            try:
                async with self._running:
                    error = await self._tell(lane[0])
            except _NoThread:
                log.warning(
                    "%s of %s was not delivered: hooks that do not end hold all %d threads",
                    lane[0].event, lane[0].session_id, LANES_AT_ONCE,
                )  # fmt: skip
            else:
                await self._close_until_done(lane[0], error)
            lane.popleft()
        del self._waiting[session_key]
        if not self._waiting:
            self._quiet.set()

    async def _close_until_done(self, boundary: Boundary, error: str | None) -> None:
        while True:
            try:
                await self._close(boundary.boundary_id, error)
            except (StoreError, Overloaded) as problem:
                log.warning("boundary %d stays open for now: %s", boundary.boundary_id, problem)
                await trio.sleep(CLOSE_AGAIN_SECONDS)
            else:
                return

    async def _tell(self, boundary: Boundary) -> str | None:
        """Call each hook; returns the last thing that went wrong."""
        error = None
        for hook in self._hooks.get(boundary.event, ()):
            try:
                with within(TurnContext(boundary.session_key, boundary.session_id)):
                    await self._call(hook, boundary)
            except trio.TooSlowError:
                error = f"{_name(hook)} did not end within {self._seconds:g} s"
                log.warning("%s of %s: %s", boundary.event, boundary.session_id, error)
            except _NoThread:
                raise
            except BaseException as problem:  # foreign code: its failure is its own
                if (through := user_code.passing(problem)) is not None:
                    raise through from None
                error = f"{_name(hook)} raised {user_code.loggable(user_code.leaf(problem))}"
                log.exception("%s of %s: a hook failed", boundary.event, boundary.session_id)
        return error

    async def _call(self, hook: Callable[..., Any], boundary: Boundary) -> None:
        wanted = self._arguments(hook, boundary)
        if inspect.iscoroutinefunction(hook) or not self._threads:
            with trio.fail_after(self._seconds):
                await _finished(hook(**wanted))
            return
        call = await self._get_thread(lambda: hook(**wanted))
        with trio.fail_after(self._seconds):
            # A plain function may block; its thread is left behind when the deadline passes.
            own = trio.CapacityLimiter(1)
            answer = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=own)
            await _finished(answer[0])

    async def _get_thread(self, hook: Callable[[], object]) -> Callable[[], tuple[object]]:
        """The hook with the right to a thread, which it gives back when it really ends."""
        owner = object()
        with trio.move_on_after(self._seconds):
            await self._threads_left.acquire_on_behalf_of(owner)
            token = trio.lowlevel.current_trio_token()

            def call() -> tuple[object]:  # Trio would take a coroutine itself for a mistake
                try:
                    return (hook(),)
                finally:
                    with contextlib.suppress(trio.RunFinishedError):
                        token.run_sync_soon(self._threads_left.release_on_behalf_of, owner)

            return call
        raise _NoThread

    def _arguments(self, hook: Callable[..., Any], boundary: Boundary) -> Mapping[str, object]:
        """What the hook names, of all there is; session_id and platform always."""

        async def transcript() -> Transcript:
            return await self._load(boundary.session_id)

        offered: dict[str, object] = {**asdict(boundary), "transcript": transcript}
        parameters = inspect.signature(hook).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return offered
        named = {parameter.name for parameter in parameters} | {"session_id", "platform"}
        return {name: value for name, value in offered.items() if name in named}


class _NoThread(Exception):
    """Every thread is held by a hook that does not end."""


async def _finished(answer: object) -> None:
    if inspect.isawaitable(answer):
        await answer


def require_hooks(hooks: Hooks) -> None:
    """Refuse what could only be noticed when it is too late."""
    known = get_args(Event)
    for event, callables in hooks.items():
        if event not in known:
            raise ValueError(f"there is no event {event!r}; there are {', '.join(known)}")
        if callable(callables) or not all(callable(hook) for hook in callables):
            raise ValueError(f"the hooks of {event} must be a list of callables")


def _name(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", type(hook).__name__)
