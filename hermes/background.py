"""Context managers: safe from Ctrl-C, and with background tasks around their block."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import ParamSpec, TypeVar

import trio

from hermes.errors import actionable

P = ParamSpec("P")
T = TypeVar("T")


class _Protected(AbstractAsyncContextManager[T, bool | None]):
    """A context manager that Ctrl-C cannot enter or leave halfway.

    The methods of `contextlib` itself are not protected: an exception just after the `yield` of a
    generator would lose the generator, and nothing would ever close it.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._manager = manager

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> T:
        return await self._manager.__aenter__()

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, traceback)


def protected(
    function: Callable[P, AsyncIterator[T]],
) -> Callable[P, AbstractAsyncContextManager[T, bool | None]]:
    """Like `asynccontextmanager`. Ctrl-C arrives at checkpoints only, as a cancellation does."""
    make = asynccontextmanager(trio.lowlevel.enable_ki_protection(function))

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T, bool | None]:
        return _Protected(make(*args, **kwargs))

    return opened


@protected
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
