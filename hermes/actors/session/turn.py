"""One turn: from the messages that waited to the commit of what came of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs
import trio
from msgspec.structs import replace

from hermes import user_code
from hermes.actors.compression.compressor import Compressed
from hermes.actors.context import RuntimeContext
from hermes.actors.session import attempts
from hermes.actors.session.agent_cache import AgentCache, CachedTranscript
from hermes.actors.session.attempts import Answered, Attempt, Retry, TurnOutcome
from hermes.actors.session.compression import SessionCompression
from hermes.actors.session.operations import SessionOperations
from hermes.actors.session.route_state import RouteState
from hermes.actors.session.running_turn import Mail, RunningTurn
from hermes.context import TurnContext, within
from hermes.errors import (
    ContextOverflow,
    HermesError,
    Overloaded,
    StoreBusy,
    StoreFailed,
    StoreFull,
)
from hermes.events import Notice, TurnStarted
from hermes.messages import (
    Committed,
    Discarded,
    Head,
    Message,
    Reply,
    TurnCommit,
    TurnResult,
    Usage,
)
from hermes.session_keys import begun_by
from hermes.transcript.overflow import is_overflow

log = logging.getLogger(__name__)

EXPIRED = "The last conversation was over, so this is a new one; /resume goes back to it."
ABANDONED = (
    "The agent did not stop when it was told to, and was left behind: what it still does has no "
    "effect on this conversation. The next message gets a new one."
)
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class TurnRunner:
    """Runs the turns of one actor, one at a time."""

    __slots__ = (
        "_cache", "_context", "_key", "_place", "_scope", "_stopped", "turn",
    )  # fmt: skip

    def __init__(
        self, session_key: str, context: RuntimeContext, place: RouteState, cache: AgentCache
    ) -> None:
        self._key = session_key
        self._context = context
        self._place = place
        self._cache = cache
        self._scope: trio.CancelScope | None = None
        self._stopped = False
        self.turn: RunningTurn | None = None

    @property
    def room(self) -> SessionCompression:
        """What keeps the conversation within the window of its model."""
        return SessionCompression(self._key, self._context, self._place, self._cache)

    @property
    def _verbs(self) -> SessionOperations:
        return SessionOperations(self._key, self._context, self._place, self._cache)

    def interrupt(self) -> bool:
        """Stop the running turn at its next checkpoint; False where none runs."""
        if self.turn is None:
            return False
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()
        return True

    async def run(
        self,
        mails: Sequence[Mail],
        following: Callable[[], Sequence[int]],
        *,
        retry: bool = False,
    ) -> TurnOutcome:
        """Answer the messages, or what was asked before them, and commit what came of it."""
        cell = TurnContext(self._key, self._place.session_id or "", mails[0].inbox_id)
        messages = [mail.message for mail in mails]
        context = self._context
        turn = self.turn = RunningTurn(
            cell,
            mails,
            messages,
            self._publish,
            context.store,
            context.in_flight,
            redact=context.redact,
        )
        context.in_flight.begin(turn.turn_id, turn.source, turn.charged)
        try:
            return await self._run(turn, following, retry=retry)
        finally:
            context.in_flight.end(turn.turn_id)

    async def _run(
        self, turn: RunningTurn, following: Callable[[], Sequence[int]], *, retry: bool
    ) -> TurnOutcome:
        try:
            await self._place.locate()
            notices = [EXPIRED] if self._place.notice == "expired" else []
            notices += await self.room.make(turn)
            attempt = await self._attempt(turn, retry=retry)
            if self._overflowed(attempt):
                attempt = await self._once_more(turn, attempt, retry=retry)
        finally:
            left = turn.close()
            self.turn = self._scope = None
            self._stopped = False
        if self._cache.drop_abandoned():
            notices.append(ABANDONED)
        done = await self._finish(turn, attempt, following, notices)
        return TurnOutcome(turn.mails, left, discarded=isinstance(done, Discarded))

    async def _once_more(self, turn: RunningTurn, first: Attempt, *, retry: bool) -> Attempt:
        """The conversation was too long for the model: compress it, and run the turn again."""
        outcome = await self.room.compress_for(turn, "overflow")
        if not isinstance(outcome, Compressed) and await self._stands_where(first):
            return first
        turn.restart()
        second = await self._attempt(turn, retry=retry)
        build_reason = first.answered.build_reason or second.answered.build_reason
        second.answered = replace(second.answered, build_reason=build_reason)
        return second

    async def _stands_where(self, attempt: Attempt) -> bool:
        return (await self._place.locate()).session_id == attempt.held.head.session_id

    def _publish(self, event: object) -> None:
        turn = self.turn
        if turn is not None:
            self._context.publish(self._key, turn.turn_id, event)  # type: ignore[arg-type]

    # The agent

    async def _attempt(self, turn: RunningTurn, *, retry: bool) -> Attempt:
        held = await self._cache.transcript(await self._place.locate())
        self._place.seen(held.head)
        turn.cell.session_id = held.head.session_id
        turn.history = held.rows
        turn.deadline = trio.current_time() + self._context.config.turn_timeout
        again = Retry.of(held.rows) if retry else None
        if again is not None:
            turn.history, turn.input = again.history, again.messages
        epoch = self._place.epoch  # what is learned from now on must not move the fence
        answered = await self._answer(turn, held.head)
        return Attempt(held, epoch, None if again is None else again.rewind_to, answered)

    async def _answer(self, turn: RunningTurn, head: Head) -> Answered:
        answered = Answered(TurnResult(interrupted=True, api_calls=0), "interrupted")
        try:
            with trio.CancelScope(deadline=turn.deadline) as self._scope:
                if self._stopped:
                    return answered
                spec = self._context.describe(self._key, turn.source)
                agent, build_reason = await self._cache.ready(spec, head)
                self._cache.begin(head)
                answered = Answered(TurnResult(interrupted=True), "interrupted", build_reason)
                ids = tuple(mail.inbox_id for mail in turn.mails)
                waited = self._context.waited(turn.mails)
                self._publish(TurnStarted(turn.turn_id, head.session_id, build_reason, ids, waited))
                with within(turn.cell):
                    result = attempts.checked(await agent.run(turn), self._context.redact)
                return Answered(
                    result, attempts.status(result), build_reason, kind=attempts.kind(result)
                )
        except BaseException as error:  # noqa: BLE001 - foreign code: its failure is this turn's
            if (through := user_code.passing(error)) is not None:
                raise through from None
            self._log(turn, error)
            # Who raises because the runtime is left has not failed: the turn runs again later.
            await trio.lowlevel.checkpoint_if_cancelled()
            if not self._stopped:
                return attempts.failed(error, answered.build_reason, self._context.redact)
        if self._stopped:
            return answered
        late = f"it took longer than {self._context.config.turn_timeout:g} seconds"
        result = TurnResult(failed=True, error=late)
        return Answered(result, "failed", answered.build_reason, kind="TooLate")

    def _log(self, turn: RunningTurn, error: BaseException) -> None:
        if isinstance(user_code.leaf(error), ContextOverflow):  # a matter of course, and dealt with
            log.info("turn %d of %s is too long for its model", turn.turn_id, self._key)
        else:
            log.error("turn %d of %s failed", turn.turn_id, self._key, exc_info=error)

    def _overflowed(self, attempt: Attempt) -> bool:
        result = attempt.answered.result
        if not result.failed or result.text or self._stopped:
            return False
        overflow = attempt.answered.overflow or is_overflow(result.error, len(attempt.held.rows))
        return overflow and self._context.compression.possible

    # After the agent

    async def _finish(
        self,
        turn: RunningTurn,
        attempt: Attempt,
        following: Callable[[], Sequence[int]],
        notices: Sequence[str],
    ) -> Committed | Discarded:
        attempt, commit, done = await self._store(turn, attempt, following, notices)
        if isinstance(done, Discarded):
            return done
        answered = attempt.answered
        reply = Reply(
            text=attempt.text,
            session_id=done.head.session_id,
            turn_id=turn.turn_id,
            status=answered.status,
            usage=tuple(commit.usage),
            error=answered.result.error,
            build_reason=answered.build_reason,
            error_kind=answered.kind,
        )
        for notice in notices:
            self._context.publish(self._key, turn.turn_id, Notice(notice))
        self._context.tell(turn.mails, reply)  # before all that could fail: the reply is on disk
        self._settle(done, commit, attempt.held)
        await self._after(done, commit.usage, turn)
        titling = self._context.titling
        if titling is not None and answered.status == "complete" and begun_by(self._key) is None:
            exchange = [*turn.input, Message("assistant", reply.text)]
            titling.offer(self._key, self._place, exchange, len(commit.rows))
        return done

    async def _store(
        self,
        turn: RunningTurn,
        attempt: Attempt,
        following: Callable[[], Sequence[int]],
        notices: Sequence[str],
    ) -> tuple[Attempt, TurnCommit, Committed | Discarded]:
        """Commit the turn. An answer that cannot be stored is left out, and then what it cost."""
        costs = [(), attempt.answered.result.usage]
        while True:
            try:
                commit = self._commit_of(turn, attempt, following(), notices)
                return attempt, commit, await self._commit(commit)
            except (StoreFailed, StoreBusy, StoreFull, Overloaded):
                raise
            except Exception as error:
                if not costs:
                    raise
                log.exception("turn %d of %s cannot be stored as it is", turn.turn_id, self._key)
                told = TurnResult(failed=True, error=user_code.describe(error), usage=costs.pop())
                if not costs:
                    turn.charged.clear()
                answered = Answered(
                    told, "failed", attempt.answered.build_reason, kind=user_code.kind(error)
                )
                attempt = attrs.evolve(attempt, answered=answered, rewind_to=None)
                turn.cell.session_id = attempt.held.head.session_id
                turn.restart()

    def _commit_of(
        self,
        turn: RunningTurn,
        attempt: Attempt,
        following: Sequence[int],
        notices: Sequence[str],
    ) -> TurnCommit:
        held, result = attempt.held, attempt.answered.result
        wanted = result.session_id or turn.cell.session_id
        rotated_to = None if wanted == held.head.session_id else wanted
        return TurnCommit(
            session_key=self._key,
            session_id=held.head.session_id,
            epoch=attempt.epoch,
            revision=held.head.revision,
            inbox_ids=[mail.inbox_id for mail in turn.mails],
            rows=attempts.rows(turn, result, self._context.redact),
            outbox=attempts.replies(
                turn, rotated_to or held.head.session_id, notices, attempt.text
            ),
            usage=self._billed([*turn.charged, *result.usage]),
            next_inbox_ids=following,
            rotated_to=rotated_to,
            upto=held.last_id,
            rewind_to=attempt.rewind_to,
            policy=self._context.config.expiry_of(turn.source.platform, turn.source.chat_type),
        )

    def _billed(self, calls: Sequence[Usage]) -> Sequence[Usage]:
        """The calls, with what they were made for."""
        if begun_by(self._key) is None:
            return calls
        return [
            replace(call, purpose="background") if call.purpose == "turn" else call
            for call in calls
        ]

    async def _commit(self, commit: TurnCommit) -> Committed | Discarded:
        """Commit, again and again while the disk is full or another process holds the file."""
        pause = FIRST_PAUSE
        done: Committed | Discarded | None = None
        with trio.CancelScope(shield=True):
            begun = trio.current_time()
            give_up = begun + self._context.config.commit_timeout
            while done is None:
                try:
                    done = await self._context.store.commit_turn(commit)
                except (StoreBusy, StoreFull, Overloaded):
                    if trio.current_time() + pause > give_up:
                        raise
                    await trio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        assert done is not None
        self._context.counts.commits.add(begun, trio.current_time())
        return done

    def _settle(self, done: Committed, commit: TurnCommit, held: CachedTranscript) -> None:
        """Our turn is on disk: move what we know, and never past what somebody else wrote."""
        before, head = held.head, done.head
        self._place.moved(done.epoch, head)
        self._place.notice = None
        if head.session_id != before.session_id:
            self.room.left(before.session_id, head.session_id, None)
            if head.session_id == commit.rotated_to and not done.foreign:
                self._cache.settle(head)
            return
        if done.foreign:
            self._cache.release(head.session_id)
            return
        if commit.rewind_to is None:
            held.extend(done.rows, head)
        else:
            self._cache.release(head.session_id)
        self._cache.settle(head)

    async def _after(self, done: Committed, usage: Sequence[Usage], turn: RunningTurn) -> None:
        """What a finished turn gives rise to; none of it can undo the turn."""
        if self._place.pending_title:
            try:
                await self._verbs.apply_title()
            except (HermesError, RuntimeError) as error:
                log.warning("the title of %s waits: %s", self._key, user_code.loggable(error))
        if usage:
            await self.room.keep(done.head.session_id, usage[-1], turn)
