"""When a session is compressed, and how its actor moves to the child session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from hermes.actors.compression.compressor import prompt_tokens
from hermes.actors.compression.types import (
    Compressed,
    CompressionFailed,
    CompressionJob,
    CompressionResult,
    PastAttempt,
    Trigger,
    result_text,
)
from hermes.actors.session.agent_cache import CachedTranscript
from hermes.actors.session.running_turn import RunningTurn
from hermes.actors.session.state import SessionState
from hermes.errors import HermesError, StoreFailed
from hermes.events import Notice, SessionMoved
from hermes.messages import InboxReply, Message, Skipped, Usage
from hermes.outbound import reply_rows
from hermes.transcript.tokens import estimate_tokens
from hermes.user_code import loggable

log: logging.Logger = logging.getLogger(__name__)


def is_due(state: SessionState, transcript: CachedTranscript, turn: RunningTurn) -> bool:
    """Whether transcript and input are too long for the model's context window."""
    compressor = state.context.compressor
    tokens = used_tokens(state, transcript) + estimate_tokens(turn.input)
    return compressor.automatic and tokens >= compressor.limits.compress_at


def used_tokens(state: SessionState, transcript: CachedTranscript) -> int:
    """Return the size of a transcript in tokens: counted by the provider, or estimated.

    An estimate does not include the system prompt and the tools. It is corrected by what it missed
    at the last count.
    """
    session_id, counted, missed = state.cache.counted
    if session_id == transcript.head.session_id:
        return max(transcript.tokens, counted)
    return transcript.tokens + missed


async def before_turn(state: SessionState, turn: RunningTurn) -> list[str]:
    """Compress before a turn. Returns what the user must know."""
    result = await _try_compress(
        state, f"{turn.turn_id}:size", "size", waiting=turn.unstored, turn=turn
    )
    if not isinstance(result, CompressionFailed):
        return []
    return [result_text(result, state.context.texts)]


async def after_overflow(state: SessionState, turn: RunningTurn) -> bool:
    """Compress after the model refused the turn as too long. Returns whether to run it again."""
    if not state.context.compressor.automatic:
        return False
    session_id = state.session_id
    rotation_id = f"{turn.turn_id}:overflow"
    result = await _try_compress(state, rotation_id, "overflow", waiting=turn.unstored, turn=turn)
    # Another process may have compressed the session meanwhile.
    return isinstance(result, Compressed) or (await state.locate()).session_id != session_id


async def after_turn(state: SessionState, session_id: str, call: Usage, turn: RunningTurn) -> None:
    """Record what the provider counted for a turn, and compress if that was too much."""
    compressor = state.context.compressor
    limit = compressor.limits.compress_at
    counted = prompt_tokens(call) + call.output_tokens
    missed = state.cache.counted[2]
    if estimate := state.cache.estimate(session_id):
        # At most half: otherwise a child would count as too long from its first message on.
        missed = min(max(0, counted - estimate), limit // 2)
    state.cache.counted = (session_id, counted, missed)
    if counted < limit or not compressor.automatic:
        return
    result = await _try_compress(state, f"{turn.turn_id}:after", "size")
    if not isinstance(result, CompressionFailed):
        return
    text = result_text(result, state.context.texts)
    state.context.bus.publish(state.key, turn.turn_id, Notice(text))
    outbox = reply_rows(turn.rows[-1], session_id, text, "notice")
    try:
        await state.store.answer(InboxReply(session_key=state.key, inbox_ids=(), outbox=outbox))
    except StoreFailed:
        raise
    except HermesError as error:
        log.warning("%s was not notified of a failed compression: %s", state.key, loggable(error))


async def _try_compress(
    state: SessionState,
    rotation_id: str,
    trigger: Trigger,
    *,
    waiting: Sequence[Message] = (),
    turn: RunningTurn | None = None,
) -> CompressionResult | None:
    """Compress automatically: an error must not affect the turn."""
    try:
        return await compress(state, rotation_id, trigger=trigger, waiting=waiting, turn=turn)
    except StoreFailed:
        raise
    except (HermesError, ValueError) as error:
        log.warning("%s was not compressed: %s", state.key, loggable(error))
        return None


async def on_request(
    state: SessionState,
    rotation_id: str,
    asked_before: Callable[[PastAttempt], bool],
    *,
    focus: str | None = None,
    keep_exchanges: int | None = None,
    answer: Callable[[str], InboxReply] | None = None,
) -> CompressionResult:
    """Compress the current session, unless that was tried since it was asked for.

    `asked_before` says whether it was asked for before an attempt ended.
    """
    past = state.last_attempt
    if past is not None and asked_before(past):
        return past.skipped(state.context.texts)
    return await compress(
        state, rotation_id, focus=focus, keep_exchanges=keep_exchanges, answer=answer
    )


async def compress(  # noqa: PLR0913 - the options of a compression
    state: SessionState,
    rotation_id: str,
    *,
    trigger: Trigger = "asked",
    focus: str | None = None,
    keep_exchanges: int | None = None,
    waiting: Sequence[Message] = (),
    answer: Callable[[str], InboxReply] | None = None,
    turn: RunningTurn | None = None,
) -> CompressionResult:
    """Compress the current session and continue in its child; `turn` is the running turn."""
    head = await state.locate(refresh=turn is None)
    result = await state.context.compressor.run(
        CompressionJob(
            session_key=state.key,
            session_id=head.session_id,
            epoch=state.epoch,
            rotation_id=rotation_id,
            trigger=trigger,
            focus=focus,
            keep_exchanges=keep_exchanges,
            waiting=waiting,
            answer=answer,
            store=state.store,
        )
    )
    if not isinstance(result, Skipped) or result.paid:
        _record_attempt(state, trigger, result)
    if isinstance(result, Compressed):
        rotated = result.rotated
        state.moved(rotated.epoch or state.epoch, rotated.head)
        moved_to_child(state, head.session_id, rotated.session_id, turn)
    elif isinstance(result, Skipped) and result.winner is not None:
        state.forget()  # another process compressed it first, and may have moved the route
        await state.locate()
    return result


def _record_attempt(state: SessionState, trigger: Trigger, result: CompressionResult) -> None:
    context = state.context
    context.compressor.attempts += 1
    state.last_attempt = PastAttempt(
        by_turn=trigger != "asked",
        number=context.compressor.attempts,
        latest_command=state.latest_command,
        result=result,
    )


def moved_to_child(state: SessionState, old: str, new: str, turn: RunningTurn | None) -> None:
    """Continue in another session of the same lineage."""
    state.cache.release(old)
    if turn is not None:
        turn.context.session_id = new
    turn_id = None if turn is None else turn.turn_id
    state.context.bus.publish(state.key, turn_id, SessionMoved(old, new, "compression"))
