"""Which conversation the running code belongs to.

The context variable holds a mutable object that a turn shares with all its tasks and worker
threads: they copy the context, but not the object, so all of them see what one of them sets.
Nothing here is process-wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import attrs

from hermes.errors import TurnClosed, WaitCircle


@attrs.define
class TurnContext:
    """The conversation of a turn, or of a hook (without a turn_id)."""

    session_key: str
    session_id: str
    turn_id: int | None = None
    over: bool = False
    """Whether the turn has ended. Tasks that it started may outlive it."""
    waits_for: list[str] = attrs.Factory(list)
    """The conversations whose reply its agent waits for."""


_current: ContextVar[TurnContext | None] = ContextVar("hermes_conversation", default=None)


def current_session_id() -> str | None:
    """Return the session of the running turn or hook; None outside of one."""
    context = _current.get()
    return None if context is None else context.session_id


def current_session_key() -> str | None:
    """Return the session_key of the running turn or hook; None outside of one."""
    context = _current.get()
    return None if context is None else context.session_key


def current_turn_id() -> int | None:
    """Return the id of the running turn, which stays the same if a crash makes it run again."""
    context = _current.get()
    return None if context is None else context.turn_id


def current_turn() -> TurnContext | None:
    """Return the running turn that the code belongs to; None outside of one, and after its end."""
    context = _current.get()
    if context is None or context.turn_id is None or context.over:
        return None
    return context


def refuse_circle(session_key: str, turn_of: Callable[[str], TurnContext | None]) -> None:
    """Raise `WaitCircle` inside a turn for which this conversation waits, directly or not.

    `turn_of` returns the running turn of a conversation.
    """
    caller = current_turn()
    if caller is None:
        return
    if caller.session_key == session_key:
        raise WaitCircle("a turn cannot wait for its own conversation: it would wait for itself")
    paths = [[caller.session_key, session_key]]
    seen = {session_key}
    while paths:
        path = paths.pop()
        if path[-1] == caller.session_key:
            raise WaitCircle(f"conversations would wait for each other: {' -> '.join(path)}")
        turn = turn_of(path[-1])
        for key in () if turn is None else set(turn.waits_for) - seen:
            seen.add(key)
            paths.append([*path, key])


def inside_hook() -> bool:
    """Whether the running code belongs to a hook."""
    context = _current.get()
    return context is not None and context.turn_id is None


def set_current_session_id(session_id: str) -> None:
    """Set the session in which the turn continues. For agents that compress by themselves.

    Raises `LookupError` outside of a turn, and `TurnClosed` if the turn is over.
    """
    context = _current.get()
    if context is None or context.turn_id is None:
        raise LookupError("set_current_session_id works inside a turn only")
    if context.over:  # the turn may not be committed yet, but nothing may move it any more
        raise TurnClosed(f"turn {context.turn_id} is over")
    context.session_id = session_id


@contextmanager
def within(context: TurnContext) -> Iterator[None]:
    """Run a block as part of this conversation."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
