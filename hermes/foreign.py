"""Code that is not ours: what it raises is its own affair, except for what must pass.

Agents, hooks, compressors and adapters may raise anything: SystemExit, asyncio's CancelledError, a
group out of a nursery. Only Trio's own cancellation and Ctrl-C go through.
"""

from __future__ import annotations

import trio

_PASSING = (trio.Cancelled, KeyboardInterrupt)


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


def told(error: BaseException) -> str:
    """The error in one line."""
    first = leaf(error)
    return f"{type(first).__name__}: {first}"
