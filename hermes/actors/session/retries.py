"""What is tried again: commits of turns, and what an actor that has ended leaves to do."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio
from outcome import Error

from hermes.actors.context import RuntimeContext
from hermes.actors.session.state import SessionState
from hermes.background import start_soon
from hermes.errors import (
    ActorStopped,
    AlreadyAnswered,
    HermesError,
    NotOwner,
    Overloaded,
    ReplyNotFound,
    StoreBusy,
    StoreFailed,
    StoreFull,
    actionable,
)
from hermes.messages import Committed, Discarded, InboxReply, InboxRow, Receipt, TurnCommit
from hermes.outbound import reply_rows
from hermes.retry import Backoff
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

RETRY_DELAY = 0.5
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0
TEMPORARY = (StoreBusy, StoreFull, Overloaded)
"""The disk is full, another process holds the file, or too many requests wait."""


async def commit_later(
    state: SessionState, commit: TurnCommit, started: float, error: Exception
) -> Committed | Discarded:
    """Retry a commit that failed with `error` until `Config.commit_timeout` has passed."""
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    until = started + state.context.config.commit_timeout
    while trio.current_time() + (delay := backoff.next()) <= until:
        await trio.sleep(delay)
        try:
            return await state.store.commit_turn(commit)
        except TEMPORARY as again:
            error = again
    raise error


def answered_elsewhere(state: SessionState, row: InboxRow) -> AlreadyAnswered:
    """Return the error for callers who wait for a message that another process has closed."""
    located = (state.key, state.session_id or "", state.epoch)
    receipt = Receipt(row.inbox_id, *located, row.accepted_at)
    return AlreadyAnswered(f"message {row.inbox_id} was answered elsewhere", receipt)


async def settle(context: RuntimeContext, inbox_ids: Iterable[int]) -> None:
    """Answer the callers of those messages that are closed, with the replies in the store.

    The open ones get their answer from the next actor.
    """
    for inbox_id in inbox_ids:
        outcome = await context.store.get_outcome(inbox_id)
        if outcome is not None and outcome.state != "open":
            unknown = ReplyNotFound(f"message {inbox_id} was closed without a stored reply")
            context.bus.settle(outcome, outcome.reply or Error(unknown))


async def retry(problem: str, write: Callable[[], Awaitable[object]]) -> None:
    """Write to the store; on temporary errors, log the problem and try again."""
    while True:
        try:
            await write()
        except (ActorStopped, NotOwner, StoreFailed):
            raise
        except HermesError as error:
            log.warning("%s: %s", problem, error)
            await trio.sleep(RETRY_DELAY)
        else:
            return


async def finalize(context: RuntimeContext, session_keys: Sequence[str]) -> None:
    """Have the sessions of conversations finalized because the runtime ends."""
    try:
        async with trio.open_nursery() as nursery:
            for key in session_keys:
                write = functools.partial(context.store.finalize, key, reason="shutdown")
                start_soon(nursery, retry, f"{key} is not finalized yet", write)
    except BaseExceptionGroup as group:
        raise actionable(group) from None


async def notify_of_pause(context: RuntimeContext, session_key: str) -> None:
    """Notify the user of a conversation that it is paused after failures (best effort)."""
    with contained(StoreFailed) as caught:
        for row in await context.store.open_inbox(session_key, limit=1):
            outbox = reply_rows(row, "", context.texts.paused, "notice")
            reply = InboxReply(session_key=session_key, inbox_ids=(), outbox=outbox)
            await context.store.answer(reply)
    if caught.error is not None:
        log.error("%s was not notified of its pause", session_key, exc_info=caught.error)
