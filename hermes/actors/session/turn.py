"""One turn, from the messages that waited to the commit of their answer. Read top to bottom."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

import attrs
import trio

from hermes.actors.budget import in_background
from hermes.actors.recording.repeating import recorded_results
from hermes.actors.session import compression, operations
from hermes.actors.session.agent_cache import CachedTranscript
from hermes.actors.session.approvals import with_details, with_questions
from hermes.actors.session.inbox import SessionInbox
from hermes.actors.session.retries import TEMPORARY, commit_later
from hermes.actors.session.running_turn import RunningTurn
from hermes.actors.session.state import SessionState
from hermes.actors.session.transcription import transcribe_input
from hermes.background import cancel
from hermes.context import TurnContext, within
from hermes.errors import ContextOverflow, NotInLineage, NotOwner
from hermes.events import ApprovalAsked, Notice, TurnStarted
from hermes.messages import (
    BuildReason,
    Committed,
    Discarded,
    InboxRow,
    Message,
    Reply,
    ReplyStatus,
    StoredMessage,
    TurnCommit,
    TurnResult,
)
from hermes.outbound import metadata_of, reply_rows
from hermes.redaction import redact_result
from hermes.texts import Texts
from hermes.transcript.compaction import as_message, is_question
from hermes.transcript.notices import visible_text
from hermes.transcript.overflow import is_overflow
from hermes.transcript.validate import as_result, check_result
from hermes.user_code import contained, describe, kind, leaf, new_reference

log: logging.Logger = logging.getLogger(__name__)

_NOT_STARTED = TurnResult(interrupted=True, api_calls=0)


@attrs.define
class Attempt:
    """One run of the agent: where it started, and its outcome."""

    transcript: CachedTranscript
    epoch: int
    """The epoch of the route at the start. The commit is discarded if it has changed."""
    texts: Texts
    rewind_to: int | None = None
    """The message that a retry takes back."""
    result: TurnResult = _NOT_STARTED
    build_reason: BuildReason | None = None
    error_kind: str | None = None
    reference: str | None = None
    """Finds an exception in the log; its message is not shown."""
    overflow: bool = False
    notice: str | None = None
    """What the user is shown after an exception."""

    def fail(self, error: str, error_kind: str) -> None:
        """Record why the turn failed, in words for the user."""
        self.result = TurnResult(failed=True, error=error)
        self.error_kind = error_kind

    def fail_with(self, error: BaseException, reference: str) -> None:
        """Record that the agent raised, or that its result cannot be stored."""
        self.fail(f"{kind(error)} (reference {reference})", kind(error))
        self.reference = reference
        length, cause = len(self.transcript.rows), leaf(error)
        self.overflow = isinstance(cause, ContextOverflow) or is_overflow(describe(error), length)
        text = self.texts.overflow if self.overflow else self.texts.unexpected
        self.notice = text.format(reference=reference)

    @property
    def status(self) -> ReplyStatus:
        """How the turn ended."""
        if self.result.failed or self.result.interrupted:
            return "failed" if self.result.failed else "interrupted"
        return "partial" if self.result.partial and self.text else "complete"

    @property
    def text(self) -> str:
        """The text that the user is shown."""
        return self.notice or visible_text(self.result, len(self.transcript.rows), self.texts)


class TurnRunner:
    """Runs the turns of one session actor, one at a time."""

    __slots__ = ("_inbox", "_scope", "_state", "_stopped", "latest", "turn")

    def __init__(self, state: SessionState, inbox: SessionInbox) -> None:
        self._state = state
        self._inbox = inbox
        self._scope: trio.CancelScope | None = None
        self._stopped = False
        self.turn: RunningTurn | None = None
        """The running turn; None between turns, and while one is being committed."""
        self.latest: RunningTurn | None = None  # the same, and after its end

    def interrupt(self) -> bool:
        """Stop the running turn at its next checkpoint; False if none is running."""
        if self.turn is None:
            return False
        self._stopped = True
        if self._scope is not None:
            cancel(self._scope)
        return True

    async def run(self, rows: Sequence[InboxRow], *, retry: bool = False) -> RunningTurn:
        """Answer these messages, or with `retry` the question before them, and commit the result.

        Returns the turn with what is left to do: `discarded`, and the input in `unused`.
        """
        state, context = self._state, self._state.context
        turn = self.turn = self.latest = RunningTurn(
            TurnContext(state.key, state.session_id or "", rows[0].inbox_id),
            list(rows),
            [] if retry else [message for row in rows for message in row.messages],
            functools.partial(context.bus.publish, state.key, rows[0].inbox_id),
            state.store,
            context.in_flight,
            context.redact,
            context.turn_runtime,
            context.new_recorder(),
        )
        context.in_flight.begin(turn.turn_id, turn.source, turn.charged)
        try:
            attempt, notices = await self._answer(turn, retry=retry)
            await self._finish(turn, attempt, notices)
        finally:
            context.in_flight.end(turn.turn_id)
        return turn

    # 1. Run the agent

    async def _answer(self, turn: RunningTurn, *, retry: bool) -> tuple[Attempt, list[str]]:
        """Run the agent, and compress the conversation if it is too long for the model."""
        state = self._state
        try:
            transcript = await state.load()
            turn.stored_settings = state.settings
            notices = [state.context.texts.expired] if state.notice == "expired" else []
            if compression.is_due(state, transcript, turn):
                notices += await compression.before_turn(state, turn)
                transcript = await state.load()
            attempt = await self._attempt(turn, transcript, retry=retry)
            if self._has_overflowed(attempt):
                attempt = await self._retry_shorter(turn, attempt, retry=retry)
        finally:
            turn.close()
            self.turn, self._scope, self._stopped = None, None, False
        if state.cache.drop_abandoned():
            notices.append(state.context.texts.agent_replaced)
        return attempt, notices

    async def _attempt(
        self, turn: RunningTurn, transcript: CachedTranscript, *, retry: bool
    ) -> Attempt:
        """Run the agent once. Whatever it raises becomes a failed attempt."""
        config, texts = self._state.context.config, self._state.context.texts
        attempt = Attempt(transcript, self._state.epoch, texts)
        turn.context.session_id = transcript.head.session_id
        turn.history = transcript.rows
        turn.deadline = trio.current_time() + config.turn_timeout
        if retry and not _ask_again(turn, attempt):
            attempt.fail(texts.nothing_to_answer, "LookupError")
            return attempt
        finished = self._stopped
        with contained() as caught, trio.CancelScope(deadline=turn.deadline) as self._scope:
            if not finished:
                await self._run_agent(turn, attempt)
                finished = True
        if caught.error is not None:
            await self._failed(turn, attempt, caught.error)
        elif not finished and not self._stopped:
            attempt.fail(texts.timeout.format(seconds=f"{config.turn_timeout:g}"), "TimeoutError")
        return attempt

    async def _run_agent(self, turn: RunningTurn, attempt: Attempt) -> None:
        state, head, redact = self._state, attempt.transcript.head, self._state.context.redact
        spec = state.context.agent_spec(state.key, turn.source)
        if turn.stored_settings is not None:
            spec = spec.configured(turn.settings)
        agent, attempt.build_reason = await state.cache.get(spec, head)
        state.cache.begin(head)
        attempt.result = TurnResult(interrupted=True)
        waited = max(0.0, state.context.wall() - turn.rows[0].accepted_at)
        ids, number = tuple([row.inbox_id for row in turn.rows]), turn.rows[0].attempts + 1
        about = (attempt.build_reason, ids, waited, metadata_of(turn.rows), number)
        turn.started = TurnStarted(turn.turn_id, head.session_id, *about)
        state.context.bus.publish(state.key, turn.turn_id, turn.started)
        if state.context.transcriber is not None:
            await transcribe_input(state.context, turn)
        if (repeats := turn.rows[0].inbound.repeats) is not None:
            turn.recorded = await recorded_results(state.store, repeats, state.key)
        with within(turn.context):
            result = as_result(await agent.run(turn))
        turn.charged.extend(result.usage)  # paid for, even if the rest cannot be stored
        check_result(result)
        if result.files or result.calls:
            result = await turn.keep_files(result)
        attempt.result = result if redact is None else await redact_result(result, redact)
        attempt.error_kind = str(result.error_kind or "agent") if result.failed else None

    async def _retry_shorter(self, turn: RunningTurn, first: Attempt, *, retry: bool) -> Attempt:
        """Compress the conversation and run the agent again, if that is possible."""
        if not await compression.after_overflow(self._state, turn):
            return first
        turn.restart()
        attempt = await self._attempt(turn, await self._state.load(), retry=retry)
        attempt.build_reason = first.build_reason or attempt.build_reason
        return attempt

    async def _failed(self, turn: RunningTurn, attempt: Attempt, error: BaseException) -> None:
        reference, extra = new_reference(), {"metadata": turn.metadata}
        about = (turn.turn_id, self._state.key, f"reference {reference}")
        if isinstance(leaf(error), NotOwner):  # if it is about this conversation, the actor ends
            await trio.lowlevel.checkpoint_if_cancelled()
        if isinstance(leaf(error), ContextOverflow):  # expected, and handled
            log.info("turn %d of %s is too long for its model (%s)", *about, extra=extra)
        else:
            log.error("turn %d of %s failed (%s)", *about, exc_info=error, extra=extra)
        # If the runtime is ending, the turn has not failed: it runs again after the restart.
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._stopped:
            attempt.fail_with(error, reference)

    def _has_overflowed(self, attempt: Attempt) -> bool:
        result = attempt.result
        if not result.failed or result.text or self._stopped:
            return False
        return attempt.overflow or is_overflow(result.error, len(attempt.transcript.rows))

    # 2. Commit the turn

    async def _finish(self, turn: RunningTurn, attempt: Attempt, notices: Sequence[str]) -> None:
        """Commit the turn, give the reply to its callers, and take over the new state."""
        with contained() as caught:
            rows = await turn.transcript_rows(attempt.result)
        if caught.error is not None:
            rows = await self._refuse(turn, attempt, caught.error)
        commit = self._commit_for(turn, attempt, rows, notices)
        asked = any(isinstance(event, ApprovalAsked) for event in turn.events)
        if asked or attempt.result.files or attempt.result.calls:
            commit = with_details(commit, turn, attempt.result, self._state.context)
        try:
            done = await self._commit(commit)
        except NotInLineage as error:  # the agent named a session of another conversation
            commit, done = await self._commit_input(turn, attempt, error, notices)
        if isinstance(done, Discarded):
            turn.discarded = True
            return
        reply = turn.reply = done.reply
        assert reply is not None
        bus, key = self._state.context.bus, self._state.key
        for notice in notices:
            bus.publish(key, turn.turn_id, Notice(notice))
        bus.reply(turn.rows, reply)  # before anything that could fail: the turn is on disk
        self._take_over(done, commit, attempt.transcript)
        await self._after_commit(turn, done, commit, reply)

    async def _refuse(
        self, turn: RunningTurn, attempt: Attempt, error: BaseException
    ) -> list[Message]:
        """Fail an attempt whose result cannot be stored; returns the input, which is kept."""
        reference, text = new_reference(), "the result of turn %d cannot be stored (reference %s)"
        extra = {"metadata": turn.metadata}
        log.error(text, turn.turn_id, reference, exc_info=error, extra=extra)
        attempt.fail_with(error, reference)
        attempt.rewind_to = None
        turn.context.session_id = attempt.transcript.head.session_id
        return await turn.transcript_rows(TurnResult(rows=()))

    async def _commit_input(
        self, turn: RunningTurn, attempt: Attempt, error: BaseException, notices: Sequence[str]
    ) -> tuple[TurnCommit, Committed | Discarded]:
        """Commit a turn without its result, which was refused."""
        rows = await self._refuse(turn, attempt, error)
        commit = self._commit_for(turn, attempt, rows, notices)
        commit = with_questions(commit, turn, self._state.context)
        return commit, await self._commit(commit)

    def _commit_for(
        self, turn: RunningTurn, attempt: Attempt, rows: Sequence[Message], notices: Sequence[str]
    ) -> TurnCommit:
        state, head, source = self._state, attempt.transcript.head, turn.source
        target = attempt.result.session_id or turn.context.session_id
        first, last, text = turn.rows[0], turn.rows[-1], attempt.text
        outbox = [each for note in notices for each in reply_rows(first, target, note, "notice")]
        usage = in_background(turn.charged) if state.in_background else turn.charged
        reply = Reply(
            text=text,
            session_id=target,
            turn_id=turn.turn_id,
            status=attempt.status,
            usage=tuple(usage),
            error=attempt.result.error,
            build_reason=attempt.build_reason,
            error_kind=attempt.error_kind,
            reference=attempt.reference,
            data=attempt.result.data,
            metadata=turn.metadata,
        )
        return TurnCommit(
            session_key=state.key,
            session_id=head.session_id,
            epoch=attempt.epoch,
            revision=head.revision,
            inbox_ids=[row.inbox_id for row in turn.rows],
            rows=rows,
            outbox=[*outbox, *reply_rows(last, target, text)],
            usage=usage,
            reply=reply,
            record=turn.recording(reply),
            next_inbox_ids=[row.inbox_id for row in self._inbox.next_turn()],
            rotated_to=None if target == head.session_id else target,
            upto=attempt.transcript.last_id,
            rewind_to=attempt.rewind_to,
            policy=state.context.config.expiry_of(source.platform, source.chat_type),
        )

    async def _commit(self, commit: TurnCommit) -> Committed | Discarded:
        """Commit, and retry while the disk is full or another process holds the file."""
        context, started = self._state.context, trio.current_time()
        done: Committed | Discarded | None = None
        with trio.CancelScope(shield=True):
            try:
                done = await self._state.store.commit_turn(commit)
            except TEMPORARY as error:
                done = await commit_later(self._state, commit, started, error)
        assert done is not None
        context.metrics.commits.add(started, trio.current_time(), commit.inbox_ids[0])
        return done

    # 3. Take over the new state

    def _take_over(self, done: Committed, commit: TurnCommit, transcript: CachedTranscript) -> None:
        """Move the cached state to the commit, but never past what another process wrote."""
        state, head = self._state, done.head
        state.moved(done.epoch, head)
        state.notice = None
        if head.session_id != transcript.head.session_id or done.foreign or commit.rewind_to:
            self._take_over_changed(done, commit, transcript.head.session_id)
        else:
            transcript.extend(done.rows, head)
            state.cache.committed(head)

    def _take_over_changed(self, done: Committed, commit: TurnCommit, old_id: str) -> None:
        """Take over a commit after which the cached transcript is not what the store has."""
        state, head = self._state, done.head
        if head.session_id == old_id:
            state.cache.release(head.session_id)
        else:
            compression.moved_to_child(state, old_id, head.session_id, None)
        if not done.foreign and head.session_id in (old_id, commit.rotated_to):
            state.cache.committed(head)

    async def _after_commit(
        self, turn: RunningTurn, done: Committed, commit: TurnCommit, reply: Reply
    ) -> None:
        """Publish a new title, compress, generate a title. None of it can undo the turn."""
        state = self._state
        if done.title is not None:
            operations.publish_title(state, done.head.session_id, done.title)
        if commit.usage:
            await compression.after_turn(state, done.head.session_id, commit.usage[-1], turn)
        titler = state.context.auto_titler
        if titler and reply.status in {"complete", "partial"} and not state.in_background:
            exchange = [*turn.input, Message("assistant", reply.text)]
            titler.offer(state.key, state, exchange, len(commit.rows))


def _ask_again(turn: RunningTurn, attempt: Attempt) -> bool:
    """Give the turn the last question as its input, and the rows before it as its history.

    Returns False if there is no question.
    """
    rows: Sequence[StoredMessage] = attempt.transcript.rows
    questions = [index for index, row in enumerate(rows) if is_question(row)]
    if not questions:
        return False
    first = last = questions[-1]
    while first > 0 and is_question(rows[first - 1]):
        first -= 1
    turn.input = [*(as_message(row) for row in rows[first : last + 1]), *turn.unstored]
    turn.history = rows[:first]
    attempt.rewind_to = rows[first].id
    return True
