"""Code that is not ours: what it raises is its own affair, except for what must pass.

Agents, hooks, compressors and adapters may raise anything: SystemExit, asyncio's CancelledError, a
group out of a nursery. Only Trio's own cancellation and Ctrl-C go through.
"""

from __future__ import annotations

import trio

from hermes.errors import ActorStopped, Draining, Overloaded, StoreError, StoreFailed

_PASSING = (trio.Cancelled, KeyboardInterrupt)
_OURS = (StoreError, StoreFailed, Overloaded, ActorStopped, Draining)


def passing(error: BaseException) -> BaseException | None:
    """The part of an error that is not foreign code's own, and must be raised on."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(_PASSING)
    return error if isinstance(error, _PASSING) else None


def leaf(error: BaseException) -> BaseException:
    """The first error inside of groups, which says more than they do."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def kind(error: BaseException) -> str:
    """What the error is, without its words, which may be somebody's."""
    return type(leaf(error)).__name__


def loggable(error: BaseException) -> str:
    """The error as it may be logged: its words only where they are Hermes' or the system's own.

    Words of others may quote what somebody wrote; so may the name of a file.
    """
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    if isinstance(error, _OURS):
        return f"{name}: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{name}: {error.strerror}"
    return name


def describe(error: BaseException) -> str:
    """The error in one line."""
    first = leaf(error)
    return f"{type(first).__name__}: {first}"
