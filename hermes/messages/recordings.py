"""What is recorded of a turn, so that it can be shown and repeated later."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from hermes.messages.replies import ReplyStatus, Usage
from hermes.messages.transcript import StoredMessage

TurnEventKind: TypeAlias = Literal["tool", "retry", "steered", "approval"]


class CallReport(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a model, as the agent that made it reports it.

    The messages of the request are not part of it: they are the history of the turn, and the first
    `rows` messages of the turn itself. All other texts of the request are, without credentials.
    Times are on Trio's clock.
    """

    settings: str
    """The endpoint and the fields of the request, as JSON."""
    tools: str | None = None
    """The tools that the model may call, as JSON in the format of the endpoint."""
    system: str | None = None
    """The system prompt."""
    injected: str | None = None
    """Messages that follow the conversation and are not stored, as JSON."""
    rows: int
    digest: str | None
    """The SHA-256 of the request body; None if it was not sent to its end."""
    redacted: bool = False
    """Whether something was removed from the texts."""
    hidden_files: Sequence[str] = ()
    """The ids of files that the model got a note about instead."""
    started: float
    first: float | None = None
    """When the answer began."""
    ended: float
    usage: Usage | None = None
    error: str | None = None
    """None if the model answered, else "interrupted" or the class of the error."""


class Repeats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says that a message repeats a recorded turn of another conversation."""

    session_key: str
    turn_id: int
    instructions: str | None = None
    """A system message for the repeated turn only."""


class RecordedResult(msgspec.Struct, frozen=True):
    """A tool call of a recorded turn; `result` is None if it was interrupted."""

    tool: str
    arguments: str
    """As the model sent them."""
    result: StoredMessage | None
    failed: bool = False


class Content(msgspec.Struct, frozen=True):
    """A text that many calls share; it is stored once."""

    text: str
    digest: str

    @classmethod
    def of(cls, text: str) -> Content:
        """Return the text with its SHA-256."""
        return cls(text, hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest())


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a model, as it is stored with its turn.

    `started`, `first` and `duration` are milliseconds; the first two count from the turn's start.
    """

    settings: Content
    tools: Content | None = None
    system: Content | None = None
    injected: Content | None = None
    session_id: str
    """The session that the history belongs to."""
    history: tuple[int, ...] = ()
    """The first and last number of each range of rows that the request began with."""
    rows: int
    digest: str | None = None
    redacted: bool = False
    hidden_files: Sequence[str] = ()
    started: int = 0
    first: int | None = None
    duration: int = 0
    usage: Usage | None = None
    error: str | None = None


class TurnEvent(msgspec.Struct, frozen=True):
    """Something that happened during a turn; times as in `RecordedCall`."""

    kind: TurnEventKind
    name: str
    started: int
    duration: int | None = None
    """How long a tool ran; None for other events, and if it did not finish."""
    failed: bool = False
    call_id: str | None = None
    """The id of a tool call; None if it is very long."""


class TurnOfRows(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded turn: which rows it has stored, and how its tool calls went."""

    turn_id: int
    first_id: int
    row_count: int
    tools: Sequence[TurnEvent]


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a turn with its commit, besides its rows."""

    started_at: float
    status: ReplyStatus
    agent: str | None = None
    error: str | None = None
    calls: Sequence[RecordedCall] = ()
    events: Sequence[TurnEvent] = ()
    repeats: tuple[str, int] | None = None
    """The session key and the number of the turn that this one repeats."""


class PastTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that was recorded."""

    turn_id: int
    session_id: str
    started_at: float
    ended_at: float
    status: ReplyStatus
    agent: str | None = None
    error: str | None = None
    repeats: tuple[str, int] | None = None
    calls: Sequence[RecordedCall] = ()
    events: Sequence[TurnEvent] = ()
    messages: Sequence[StoredMessage] = ()
    """The rows of the turn, as far as they still exist; none in a list of turns."""
    row_count: int = 0
    """How many rows it had."""


class CallRows(msgspec.Struct, frozen=True, kw_only=True):
    """The stored rows that a request was made of."""

    history: Sequence[StoredMessage]
    turn: Sequence[StoredMessage]
    missing: int = 0
    """How many of them do not exist any more."""


class RebuiltCall(msgspec.Struct, frozen=True):
    """A request that was put together again from what is stored."""

    body: bytes | None
    """None if that is impossible."""
    verdict: Literal["same", "different", "unknown"]
    """Whether it is what was sent, by its hash."""
    reasons: Sequence[str] = ()
    """Why it is not, or why that is unknown; for people."""
