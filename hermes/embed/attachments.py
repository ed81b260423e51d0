"""Attachments in calls from the thread of a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hermes.agents.remote_files import from_loop, from_thread
from hermes.agents.threads import HOST_LOOP
from hermes.messages import Attachment

R = TypeVar("R")


def has_attachments(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return whether a call has attachments, which the runtime reads while the host waits."""
    return "attachments" in kwargs or any(
        isinstance(each, Attachment) for each in _values(args, kwargs)
    )


def _values(args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    return [*args, *kwargs.values()]


def with_attachments(
    function: Callable[..., R], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> R:
    """Call a function in the runtime's thread, with attachments that can be read there.

    Raises `TypeError` if one has `chunks`, and the host has no event loop to read them on.
    """
    return function(
        *[_readable(each) for each in args],
        **{name: _readable(each) for name, each in kwargs.items()},
    )


def _readable(value: Any) -> Any:
    """Return an attachment, or each of a list, as the runtime's thread can read it."""
    if isinstance(value, list | tuple):
        return [_readable(each) for each in value]
    if not isinstance(value, Attachment):
        return value
    host = HOST_LOOP.get()
    return from_thread(value) if host is None else from_loop(value, host)
