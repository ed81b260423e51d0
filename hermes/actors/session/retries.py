"""What is tried again: commits of turns, and what an actor that has ended leaves to do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import trio
from outcome import Error

from hermes.actors.context import RuntimeContext
from hermes.errors import (
    ActorStopped,
    HermesError,
    Overloaded,
    ReplyNotFound,
    StoreBusy,
    StoreFailed,
    StoreFull,
)
from hermes.messages import Committed, Discarded, TurnCommit
from hermes.retry import Backoff

log: logging.Logger = logging.getLogger(__name__)

RETRY_DELAY = 0.5
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0
TEMPORARY = (StoreBusy, StoreFull, Overloaded)
"""The disk is full, another process holds the file, or too many requests wait."""


async def commit_later(
    context: RuntimeContext, commit: TurnCommit, started: float, error: Exception
) -> Committed | Discarded:
    """Retry a commit that failed with `error` until `Config.commit_timeout` has passed."""
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    until = started + context.config.commit_timeout
    while trio.current_time() + (delay := backoff.next()) <= until:
        await trio.sleep(delay)
        try:
            return await context.store.commit_turn(commit)
        except TEMPORARY as again:
            error = again
    raise error


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
        except (ActorStopped, StoreFailed):
            raise
        except HermesError as error:
            log.warning("%s: %s", problem, error)
            await trio.sleep(RETRY_DELAY)
        else:
            return
