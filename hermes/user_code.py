"""Contain exceptions of user code: agents, hooks, tools, compressors, adapters.

User code may raise anything: `SystemExit`, asyncio's `CancelledError`, an exception group out of a
nursery. Only Ctrl-C and a cancellation that is really under way must propagate. A `trio.Cancelled`
that user code kept and raises later is an error like any other: no scope would catch it, and it
would end the whole runtime without a trace.
"""

from __future__ import annotations

import math
import secrets
from typing import Self

import trio

from hermes.errors import ActorStopped, Draining, Overloaded, StoreError, StoreFailed

_PASSING = (KeyboardInterrupt, GeneratorExit)
_OURS = (StoreError, StoreFailed, Overloaded, ActorStopped, Draining)


class contained:  # noqa: N801 - used as a `with` statement, like contextlib.suppress
    """Catch whatever a block of user code raises, and keep it in `error`.

    Ctrl-C and the cancellation of an enclosing scope propagate, and so do the exception types in
    `passing`. Out of an exception group only those propagate; `error` is then not set.

        with contained() as caught:
            await agent.aclose()
        if caught.error is not None:
            log.warning("an agent failed to close: %s", loggable(caught.error))
    """

    def __init__(self, *passing: type[BaseException]) -> None:
        self._passing = passing
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        return error is not None and self._catch(error)

    def _catch(self, error: BaseException) -> bool:
        """Keep an error; False if it must propagate."""
        through = passing(error, *self._passing)
        if through is error:
            return False
        if through is not None:
            raise through from None
        self.error = error
        return True


def passing(error: BaseException, *also: type[BaseException]) -> BaseException | None:
    """Return the part of an exception that must propagate, or None if user code owns all of it."""
    kinds: tuple[type[BaseException], ...] = (*_PASSING, *also)
    if _cancelled():
        kinds = (*kinds, trio.Cancelled)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds)
    return error if isinstance(error, kinds) else None


def _cancelled() -> bool:
    """Whether an enclosing cancel scope is cancelled; outside of Trio this is assumed."""
    if not trio.lowlevel.in_trio_task():
        return True
    return trio.current_effective_deadline() == -math.inf


def leaf(error: BaseException) -> BaseException:
    """Return the first exception inside nested groups; it says more than the groups do."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def kind(error: BaseException) -> str:
    """Return the class name of an exception, without its message, which may quote a user."""
    return type(leaf(error)).__name__


def new_reference() -> str:
    """Return a short name for an error, for the log and for the user who is not shown the error."""
    return secrets.token_hex(3)


def loggable(error: BaseException) -> str:
    """Return an exception as it may be logged.

    The message is included only if Hermes or the operating system wrote it. Messages of other
    code, and file names, may quote what a user wrote.
    """
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    if isinstance(error, _OURS):
        return f"{name}: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{name}: {error.strerror}"
    return name


def describe(error: BaseException) -> str:
    """Return the class name and the message of an exception; never raises."""
    first = leaf(error)
    with contained():
        return f"{type(first).__name__}: {first}"
    return type(first).__name__
