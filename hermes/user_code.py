"""Contain exceptions of user code: agents, hooks, tools, compressors, adapters.

User code may raise anything: `SystemExit`, asyncio's `CancelledError`, an exception group out of a
nursery. Only Trio's own cancellation and Ctrl-C must propagate.
"""

from __future__ import annotations

from typing import Self

import trio

from hermes.errors import ActorStopped, Draining, Overloaded, StoreError, StoreFailed

_PASSING = (trio.Cancelled, KeyboardInterrupt, GeneratorExit)
_OURS = (StoreError, StoreFailed, Overloaded, ActorStopped, Draining)


class contained:  # noqa: N801 - used as a `with` statement, like contextlib.suppress
    """Catch whatever a block of user code raises, and keep it in `error`.

    Cancellation and Ctrl-C propagate, and so do the exception types in `passing`. Out of an
    exception group only those propagate; `error` is then not set.

        with contained() as caught:
            await agent.aclose()
        if caught.error is not None:
            log.warning("an agent failed to close: %s", loggable(caught.error))
    """

    def __init__(self, *passing: type[BaseException]) -> None:
        self._passing = (*_PASSING, *passing)
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        return error is not None and self._catch(error)

    def _catch(self, error: BaseException) -> bool:
        """Keep an error; False if it must propagate."""
        if isinstance(error, self._passing):
            return False
        if isinstance(error, BaseExceptionGroup):
            through: BaseException | None = error.subgroup(self._passing)
            if through is not None:
                raise through from None
        self.error = error
        return True


def passing(error: BaseException) -> BaseException | None:
    """Return the part of an exception that must propagate, or None if user code owns all of it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(_PASSING)
    return error if isinstance(error, _PASSING) else None


def leaf(error: BaseException) -> BaseException:
    """Return the first exception inside nested groups; it says more than the groups do."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def kind(error: BaseException) -> str:
    """Return the class name of an exception, without its message, which may quote a user."""
    return type(leaf(error)).__name__


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
    """Return the class name and the message of an exception, as one line for the user."""
    first = leaf(error)
    return f"{type(first).__name__}: {first}"
