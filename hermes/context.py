"""Which conversation the running code belongs to.

The value is a cell that a turn shares with all its tasks and worker threads, which copy the context
but not the cell: what one of them writes, the others see. Nothing here is process-wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import attrs

from hermes.errors import TurnClosed


@attrs.define
class TurnContext:
    """The conversation of a turn or of a hook."""

    session_key: str
    session_id: str
    turn_id: int | None = None
    over: bool = False
    """Whether the turn has ended; what it has begun beside may live on with its context."""


_cell: ContextVar[TurnContext | None] = ContextVar("hermes_conversation", default=None)


def current_session_id() -> str | None:
    """The session that the running turn or hook belongs to; None outside of one."""
    cell = _cell.get()
    return None if cell is None else cell.session_id


def current_session_key() -> str | None:
    """The session_key of the running turn or hook; None outside of one."""
    cell = _cell.get()
    return None if cell is None else cell.session_key


def current_turn_id() -> int | None:
    """The running turn, by the id that stays the same when a crash makes it run again."""
    cell = _cell.get()
    return None if cell is None else cell.turn_id


def inside_turn_of(session_key: str) -> bool:
    """Whether the running code is part of a turn of this conversation, which waits for it."""
    cell = _cell.get()
    if cell is None or cell.turn_id is None or cell.over:
        return False
    return cell.session_key == session_key


def inside_hook() -> bool:
    """Whether the running code is a hook, or belongs to one."""
    cell = _cell.get()
    return cell is not None and cell.turn_id is None


def set_current_session_id(session_id: str) -> None:
    """For agents that compress by themselves: say that the turn goes on in another session.

    `TurnClosed` once the turn is over.
    """
    cell = _cell.get()
    if cell is None or cell.turn_id is None:
        raise LookupError("set_current_session_id works inside a turn only")
    if cell.over:  # perhaps not committed yet: what is left of it must not move it any more
        raise TurnClosed(f"turn {cell.turn_id} is over")
    cell.session_id = session_id


@contextmanager
def within(cell: TurnContext) -> Iterator[None]:
    """Run a block as part of this conversation."""
    token = _cell.set(cell)
    try:
        yield
    finally:
        _cell.reset(token)
