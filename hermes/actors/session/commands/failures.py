"""What users are told if a command fails: a sentence of the table, or only a reference."""

from __future__ import annotations

import logging

from hermes.actors.session.commands.listing import is_number
from hermes.errors import (
    Draining,
    HasContinuation,
    NotInLineage,
    Overloaded,
    SessionEnded,
    StoreBusy,
    StoreFull,
    TitleTaken,
    TitleTooLong,
    UnknownSession,
)
from hermes.messages import InboxRow
from hermes.texts import Texts
from hermes.user_code import leaf, new_reference

log: logging.Logger = logging.getLogger(__name__)


def command_failure(row: InboxRow, error: BaseException, texts: Texts) -> str:
    """Return what the sender of a command is told if it raises.

    The table has sentences for errors that the sender can do something about. Any other error is
    logged with a reference, and the sender gets only that.
    """
    text = _title_refused(leaf(error), texts) or _refused(leaf(error), texts)
    if text is not None:
        return text
    reference, key = new_reference(), row.inbound.session_key
    log.error(
        "command %d of %s failed (reference %s)", row.inbox_id, key, reference, exc_info=error
    )
    return texts.command_unexpected.format(reference=reference)


def _title_refused(error: BaseException, texts: Texts) -> str | None:
    match error:
        case TitleTaken(title=title, session_id=session_id):
            # `/resume 2` means the second session of the list, and not a session called 2.
            target = session_id if is_number(title) else title
            return texts.title_taken.format(title=title, target=target)
        case TitleTooLong(length=length, limit=limit):
            return texts.title_too_long.format(length=length, limit=limit)
    return None


def _refused(error: BaseException, texts: Texts) -> str | None:
    match error:
        case UnknownSession() | SessionEnded() | HasContinuation() | NotInLineage():
            reason = texts.session_changed
        case StoreBusy():
            reason = texts.store_busy
        case StoreFull():
            reason = texts.store_full
        case Overloaded():
            reason = texts.too_much_waiting
        case Draining():
            reason = texts.shutting_down
        case _:
            return None
    return texts.command_failed.format(error=reason)
