"""What a turn is made of, and what is made of an agent's answer."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec
from msgspec.structs import replace

from hermes import user_code
from hermes.actors.context import outbound
from hermes.actors.session.agent_cache import CachedTranscript
from hermes.actors.session.running_turn import Mail, RunningTurn, rows_of
from hermes.errors import ContextOverflow
from hermes.events import Steered
from hermes.messages import BuildReason, Message, Outbound, ReplyStatus, StoredMessage, TurnResult
from hermes.redaction.events import hidden, without_secrets
from hermes.redaction.keys import Redact
from hermes.transcript.compaction import as_message, is_question
from hermes.transcript.overflow import OVERFLOW, normalize


class Retry(msgspec.Struct, frozen=True, kw_only=True):
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


class TurnOutcome(msgspec.Struct, frozen=True):
    """How a turn went: the messages it was for, and input that its agent never took."""

    mails: Sequence[Mail]
    left: Sequence[Mail]
    discarded: bool = False


class Answered(msgspec.Struct, frozen=True):
    """What the agent made of a turn."""

    result: TurnResult
    status: ReplyStatus
    build_reason: BuildReason | None = None
    overflow: bool = False
    kind: str | None = None
    """What failed, without its words."""


@attrs.define
class Attempt:
    """A turn on its way: where it began, and what it will take back."""

    held: CachedTranscript
    epoch: int
    rewind_to: int | None
    answered: Answered

    @property
    def text(self) -> str:
        """What the user is told."""
        if self.answered.overflow:
            return OVERFLOW
        return normalize(self.answered.result, len(self.held.rows))


def checked(result: object, redact: Redact | None = None) -> TurnResult:
    if isinstance(result, str):
        result = TurnResult(text=result)
    if not isinstance(result, TurnResult):
        raise TypeError(
            f"an agent answers with a TurnResult or a text, not {type(result).__name__}"
        )
    for name in ("text", "error", "session_id"):
        value = getattr(result, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"the {name} of a TurnResult is a text, not {type(value).__name__}")
    if redact is None:
        return result
    return replace(result, text=hidden(result.text, redact), error=hidden(result.error, redact))


def rows(turn: RunningTurn, result: TurnResult, redact: Redact | None = None) -> list[Message]:
    if result.rows is None:
        return [*turn.input, *_discreet(rows_of(turn.log, result.text or None), redact)]
    known = {id(row) for row in result.rows}
    steered = [event.message for event in turn.log if isinstance(event, Steered)]
    unseen = [each for each in steered if id(each) not in known]
    return [*turn.input, *unseen, *_discreet(result.rows, redact)]


def _discreet(said: Sequence[Message], redact: Redact | None) -> Sequence[Message]:
    """What an agent said, without secrets."""
    return said if redact is None else [without_secrets(message, redact) for message in said]


def replies(
    turn: RunningTurn, session_id: str, notices: Sequence[str], text: str
) -> list[Outbound]:
    said = [row for n in notices for row in outbound(turn.mails[0], session_id, n, "notice")]
    return [*said, *outbound(turn.mails[-1], session_id, text)]


def status(result: TurnResult) -> ReplyStatus:
    if result.failed:
        return "failed"
    return "interrupted" if result.interrupted else "complete"


def kind(result: TurnResult) -> str | None:
    """What failed, where the agent itself says so."""
    return "agent" if result.failed else None


def failed(
    error: BaseException, build_reason: BuildReason | None, redact: Redact | None = None
) -> Answered:
    overflow = isinstance(user_code.leaf(error), ContextOverflow)
    told = user_code.describe(error)
    result = TurnResult(failed=True, error=told if redact is None else redact(told))
    return Answered(result, "failed", build_reason, overflow, user_code.kind(error))
