"""Errors on their way to another node: they arrive as the same class, with the same arguments."""

from __future__ import annotations

from typing import Any

import msgspec

from hermes import errors
from hermes.errors import HermesError

BUILTIN: dict[str, type[Exception]] = {
    each.__name__: each for each in (KeyError, LookupError, TypeError, ValueError)
}


class RemoteError(msgspec.Struct, frozen=True):
    """An error of a verb."""

    name: str
    """Of its class."""
    text: str
    arguments: tuple[Any, ...] | None = None
    """Makes the error again; None if its arguments cannot be sent."""


def describe_error(error: Exception) -> RemoteError:
    """Return an error as it is sent: a `HermesError`, or one of Python's."""
    reduced = error.__reduce__()
    arguments = reduced[1] if isinstance(reduced, tuple) and isinstance(reduced[1], tuple) else None
    if arguments is not None and not all(map(_is_plain, arguments)):
        arguments = None
    return RemoteError(type(error).__name__, str(error), arguments)


def make_error(described: RemoteError) -> Exception:
    """Return the error; one of a class that this version does not know is a `HermesError`."""
    found = vars(errors).get(described.name) or BUILTIN.get(described.name)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return HermesError(described.text)
    if described.arguments is None:
        return HermesError(described.text)
    arguments = [tuple(each) if isinstance(each, list) else each for each in described.arguments]
    made: Exception = found(*arguments)
    return made


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | None)
