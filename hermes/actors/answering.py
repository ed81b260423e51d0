"""One turn: from the messages that waited to the commit of what came of them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from hermes import foreign
from hermes.actors.answers import OVERFLOW, is_overflow, normalize
from hermes.actors.cache import AgentCache, Held
from hermes.actors.compression import Compressed, Failed, Job, Outcome, prompt_tokens
from hermes.actors.cutting import as_message, estimate_tokens, is_question
from hermes.actors.house import House, outbound
from hermes.actors.place import Place
from hermes.actors.turn import Mail, RunningTurn, rows_of
from hermes.context import Cell, within
from hermes.errors import (
    ContextOverflow,
    HermesError,
    Overloaded,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
)
from hermes.events import Notice, SessionMoved, Steered, TurnStarted
from hermes.messages import (
    Answer,
    Committed,
    Discarded,
    Head,
    Message,
    Outbound,
    Rebuilt,
    Reply,
    ReplyStatus,
    StoredMessage,
    TurnCommit,
    TurnResult,
    Usage,
)

log = logging.getLogger(__name__)

EXPIRED = "The last conversation was over, so this is a new one; /resume goes back to it."
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


@attrs.frozen(kw_only=True)
class Retry:
    """A turn that is run again: what was asked then, and the message it takes back."""

    messages: Sequence[Message]
    rewind_to: int
    history: Sequence[StoredMessage]

    @classmethod
    def of(cls, rows: Sequence[StoredMessage]) -> Retry | None:
        """The last thing that was asked, with everything before it as history."""
        asked = [place for place, row in enumerate(rows) if is_question(row)]
        if not asked:
            return None
        first = asked[-1]
        while first > 0 and is_question(rows[first - 1]):
            first -= 1
        return cls(
            messages=[as_message(row) for row in rows[first : asked[-1] + 1]],
            rewind_to=rows[first].id,
            history=rows[:first],
        )


@attrs.frozen
class Ran:
    """How a turn went: the messages it was for, and input that its agent never took."""

    mails: Sequence[Mail]
    left: Sequence[Mail]
    discarded: bool = False


@attrs.frozen
class Answered:
    """What the agent made of a turn."""

    result: TurnResult
    status: ReplyStatus
    rebuilt: Rebuilt | None = None
    overflow: bool = False


@attrs.define
class Attempt:
    """A turn on its way: where it began, and what it will take back."""

    held: Held
    epoch: int
    rewind_to: int | None
    answered: Answered


class Answering:
    """Runs the turns of one actor, one at a time."""

    __slots__ = (
        "_cache", "_house", "_key", "_place", "_prompt", "_scope", "_stopped", "turn",
    )  # fmt: skip

    def __init__(self, session_key: str, house: House, place: Place, cache: AgentCache) -> None:
        self._key = session_key
        self._house = house
        self._place = place
        self._cache = cache
        self._scope: trio.CancelScope | None = None
        self._stopped = False
        self._prompt: tuple[str, int] = ("", 0)
        self.turn: RunningTurn | None = None

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
    ) -> Ran:
        """Answer the messages, or what was asked before them, and commit what came of it."""
        cell = Cell(self._key, self._place.session_id or "", mails[0].inbox_id)
        messages = [mail.message for mail in mails]
        turn = self.turn = RunningTurn(cell, mails, messages, self._publish)
        try:
            await self.locate()
            notices = [EXPIRED] if self._place.notice == "expired" else []
            notices += await self._make_room(turn)
            attempt = await self._attempt(turn, retry=retry)
            if self._overflowed(attempt):
                attempt = await self._once_more(turn, attempt, retry=retry)
        finally:
            left = turn.close()
            self.turn = self._scope = None
            self._stopped = False
        done = await self._finish(turn, attempt, following, notices)
        return Ran(turn.mails, left, discarded=isinstance(done, Discarded))

    async def _once_more(self, turn: RunningTurn, first: Attempt, *, retry: bool) -> Attempt:
        """The conversation was too long for the model: compress it, and run the turn again."""
        outcome = await self._compress_unasked(f"{turn.turn_id}:overflow", forced=True)
        if not isinstance(outcome, Compressed):
            return first
        turn.restart()
        second = await self._attempt(turn, retry=retry)
        rebuilt = first.answered.rebuilt or second.answered.rebuilt
        second.answered = attrs.evolve(second.answered, rebuilt=rebuilt)
        return second

    def _publish(self, event: object) -> None:
        turn = self.turn
        if turn is not None:
            self._house.publish(self._key, turn.turn_id, event)  # type: ignore[arg-type]

    async def locate(self, *, look: bool = False) -> Head:
        """Where the key leads; asked of the store where that is not known, or to be sure."""
        if look or self._place.head is None:
            found = await self._house.store.route_head(self._key)
            if found is not None:
                self._place.adopt(*found)
        head = self._place.head
        if head is None:
            raise StoreError(f"there is no route for {self._key}")
        return head

    # Before the agent

    async def _make_room(self, turn: RunningTurn) -> list[str]:
        """Compress where the conversation has become too long; returns what the user must know."""
        if not self._house.compression.possible:
            return []
        held = await self._cache.transcript(await self.locate())
        self._place.seen(held.head)
        size = self.context_tokens(held) + estimate_tokens(turn.input)
        if size < self._house.compression.limits.compress_at:
            return []
        outcome = await self._compress_unasked(f"{turn.turn_id}:before")
        return [outcome.text] if isinstance(outcome, Failed) else []

    async def _compress_unasked(self, rotation_id: str, *, forced: bool = False) -> Outcome | None:
        """Compress where nobody asked for it: what hinders it must not hinder the turn."""
        try:
            return await self.compress(rotation_id, forced=forced)
        except StoreFailed:
            raise
        except (HermesError, ValueError) as error:
            log.warning("%s was not compressed: %s", self._key, error)
            return None

    def context_tokens(self, held: Held) -> int:
        """How much of the window the conversation takes: counted by the provider, or estimated."""
        session_id, counted = self._prompt
        return max(held.tokens, counted if session_id == held.head.session_id else 0)

    async def compress(
        self,
        rotation_id: str,
        *,
        focus: str | None = None,
        keep_exchanges: int | None = None,
        forced: bool = False,
    ) -> Outcome:
        """Compress the current session, and go on in its child."""
        head = await self.locate(look=self.turn is None)
        outcome = await self._house.compression.run(
            Job(
                session_key=self._key,
                session_id=head.session_id,
                epoch=self._place.epoch,
                rotation_id=rotation_id,
                focus=focus,
                keep_exchanges=keep_exchanges,
                forced=forced,
            )
        )
        if isinstance(outcome, Compressed):
            rotated = outcome.rotated
            self._place.moved(rotated.epoch or self._place.epoch, rotated.head)
            self._cache.release(head.session_id)
            self._moved(head.session_id, rotated.session_id, "compression")
        return outcome

    def _moved(self, old: str, new: str, reason: str) -> None:
        turn = self.turn
        if turn is not None:
            turn.cell.session_id = new
        turn_id = None if turn is None else turn.turn_id
        self._house.publish(self._key, turn_id, SessionMoved(old, new, reason))

    # The agent

    async def _attempt(self, turn: RunningTurn, *, retry: bool) -> Attempt:
        held = await self._cache.transcript(await self.locate())
        self._place.seen(held.head)
        turn.cell.session_id = held.head.session_id
        turn.history = held.rows
        turn.deadline = trio.current_time() + self._house.config.turn_seconds
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
                spec = self._house.describe(self._key, turn.source)
                agent, rebuilt = await self._cache.ready(spec, head)
                self._cache.begin(head)
                answered = Answered(TurnResult(interrupted=True), "interrupted", rebuilt)
                ids = tuple(mail.inbox_id for mail in turn.mails)
                self._publish(TurnStarted(turn.turn_id, head.session_id, rebuilt, ids))
                with within(turn.cell):
                    result = _checked(await agent.run(turn))
                return Answered(result, _status(result), rebuilt)
        except BaseException as error:  # foreign code: its failure is this turn's
            if (through := foreign.passing(error)) is not None:
                raise through from None
            log.exception("turn %d of %s failed", turn.turn_id, self._key)
            # Who raises because the runtime is left has not failed: the turn runs again later.
            await trio.lowlevel.checkpoint_if_cancelled()
            if not self._stopped:
                return _failed(error, answered.rebuilt)
        if self._stopped:
            return answered
        late = f"it took longer than {self._house.config.turn_seconds:g} seconds"
        return Answered(TurnResult(failed=True, error=late), "failed", answered.rebuilt)

    def _overflowed(self, attempt: Attempt) -> bool:
        result = attempt.answered.result
        if not result.failed or result.text or self._stopped:
            return False
        overflow = attempt.answered.overflow or is_overflow(result.error, len(attempt.held.rows))
        return overflow and self._house.compression.possible

    # After the agent

    async def _finish(
        self,
        turn: RunningTurn,
        attempt: Attempt,
        following: Callable[[], Sequence[int]],
        notices: Sequence[str],
    ) -> Committed | Discarded:
        answered, length = attempt.answered, len(attempt.held.rows)
        try:
            text = OVERFLOW if answered.overflow else normalize(answered.result, length)
            commit = self._commit_of(turn, attempt, following(), notices, text)
            done = await self._commit(commit)
        except (StoreFailed, StoreBusy, StoreFull, Overloaded):
            raise
        except Exception as error:
            # What the agent answered cannot be stored; what the user said can.
            log.exception("turn %d of %s could not be stored as it was", turn.turn_id, self._key)
            answered = Answered(
                TurnResult(failed=True, error=foreign.told(error)), "failed", answered.rebuilt
            )
            text = normalize(answered.result, length)
            attempt = attrs.evolve(attempt, answered=answered, rewind_to=None)
            turn.cell.session_id = attempt.held.head.session_id
            turn.restart()
            commit = self._commit_of(turn, attempt, following(), notices, text)
            done = await self._commit(commit)
        if isinstance(done, Discarded):
            return done
        self._settle(done, commit, attempt.held)
        reply = Reply(
            text=text,
            session_id=done.head.session_id,
            turn_id=turn.turn_id,
            status=answered.status,
            usage=tuple(answered.result.usage),
            error=answered.result.error,
            rebuilt=answered.rebuilt,
        )
        for notice in notices:
            self._house.publish(self._key, turn.turn_id, Notice(notice))
        self._house.tell(turn.mails, reply)
        await self._after(done, answered.result.usage, turn)
        return done

    def _commit_of(
        self,
        turn: RunningTurn,
        attempt: Attempt,
        following: Sequence[int],
        notices: Sequence[str],
        text: str,
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
            rows=_rows(turn, result),
            outbox=_outbox(turn, rotated_to or held.head.session_id, notices, text),
            usage=result.usage,
            next_inbox_ids=following,
            rotated_to=rotated_to,
            upto=held.last_id,
            rewind_to=attempt.rewind_to,
            policy=self._house.config.expiry_of(turn.source.platform, turn.source.chat_type),
        )

    async def _commit(self, commit: TurnCommit) -> Committed | Discarded:
        """Commit, again and again while the disk is full or another process holds the file."""
        pause = FIRST_PAUSE
        done: Committed | Discarded | None = None
        with trio.CancelScope(shield=True):
            give_up = trio.current_time() + self._house.config.commit_seconds
            while done is None:
                try:
                    done = await self._house.store.commit_turn(commit)
                except (StoreBusy, StoreFull, Overloaded):
                    if trio.current_time() + pause > give_up:
                        raise
                    await trio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        assert done is not None
        return done

    def _settle(self, done: Committed, commit: TurnCommit, held: Held) -> None:
        """Our turn is on disk: move what we know, and never past what somebody else wrote."""
        before, head = held.head, done.head
        self._place.moved(done.epoch, head)
        self._place.notice = None
        if head.session_id != before.session_id:
            self._cache.release(before.session_id)
            if head.session_id == commit.rotated_to and not done.foreign:
                self._cache.settle(head)
            self._moved(before.session_id, head.session_id, "compression")
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
                await self._house.store.apply_pending_title(self._key)
                self._place.pending_title = False
            except (HermesError, RuntimeError) as error:
                log.warning("the title of %s waits: %s", self._key, error)
        if usage:
            counted = prompt_tokens(usage[-1])
            self._prompt = (done.head.session_id, counted)
            if counted >= self._house.compression.limits.compress_at:
                await self._keep_short(done.head.session_id, turn)

    async def _keep_short(self, session_id: str, turn: RunningTurn) -> None:
        """Compress by what the provider counted."""
        if not self._house.compression.possible:
            return
        outcome = await self._compress_unasked(f"{turn.turn_id}:after")
        if isinstance(outcome, Failed):
            self._house.publish(self._key, turn.turn_id, Notice(outcome.text))
            said = outbound(turn.mails[-1], session_id, outcome.text, "notice")
            answer = Answer(session_key=self._key, inbox_ids=(), outbox=said)
            await self._unasked(self._house.store.answer(answer))

    async def _unasked(self, work: Awaitable[None]) -> None:
        try:
            await work
        except StoreFailed:
            raise
        except HermesError as error:
            log.warning("after a turn of %s: %s", self._key, error)


def _checked(result: object) -> TurnResult:
    if isinstance(result, str):
        return TurnResult(text=result)
    if not isinstance(result, TurnResult):
        raise TypeError(
            f"an agent answers with a TurnResult or a text, not {type(result).__name__}"
        )
    for name in ("text", "error", "session_id"):
        value = getattr(result, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"the {name} of a TurnResult is a text, not {type(value).__name__}")
    return result


def _rows(turn: RunningTurn, result: TurnResult) -> list[Message]:
    if result.rows is None:
        return [*turn.input, *rows_of(turn.log, result.text or None)]
    steered = [event.message for event in turn.log if isinstance(event, Steered)]
    return [*turn.input, *steered, *result.rows]


def _outbox(
    turn: RunningTurn, session_id: str, notices: Sequence[str], text: str
) -> list[Outbound]:
    said = [row for n in notices for row in outbound(turn.mails[0], session_id, n, "notice")]
    return [*said, *outbound(turn.mails[-1], session_id, text)]


def _status(result: TurnResult) -> ReplyStatus:
    if result.failed:
        return "failed"
    return "interrupted" if result.interrupted else "complete"


def _failed(error: BaseException, rebuilt: Rebuilt | None) -> Answered:
    overflow = isinstance(foreign.leaf(error), ContextOverflow)
    return Answered(TurnResult(failed=True, error=foreign.told(error)), "failed", rebuilt, overflow)
