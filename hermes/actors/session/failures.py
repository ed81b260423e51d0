"""What users are told about errors: the message of some, and only a reference to the others."""

from __future__ import annotations

import logging

from hermes.errors import (
    Draining,
    HasContinuation,
    NotInLineage,
    Overloaded,
    SessionEnded,
    StoreBusy,
    StoreFull,
    UnknownSession,
)
from hermes.messages import InboxRow
from hermes.texts import Texts
from hermes.user_code import new_reference

log: logging.Logger = logging.getLogger(__name__)

_SHOWN = (
    UnknownSession, SessionEnded, HasContinuation, NotInLineage, StoreBusy, StoreFull, Overloaded,
    Draining,
)  # fmt: skip
"""Errors whose message is written for users, in addition to a plain `ValueError`."""


def command_failure(row: InboxRow, error: Exception, texts: Texts) -> str:
    """Return what the sender of a command is told if it raises.

    Any other error is logged with a reference, and the sender gets only that.
    """
    if type(error) is ValueError or isinstance(error, _SHOWN):
        return texts.command_failed.format(error=error)
    reference, key = new_reference(), row.inbound.session_key
    log.error(
        "command %d of %s failed (reference %s)", row.inbox_id, key, reference, exc_info=error
    )
    return texts.command_unexpected.format(reference=reference)
