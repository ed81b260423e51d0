"""What the endpoints for recorded turns take and return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hermes.adapters.http.api.types import Body, Name, RowId
from hermes.adapters.jsonrpc.types import Row
from hermes.messages import ReplyStatus, TurnEvent, Usage


class TurnsQuery(msgspec.Struct, kw_only=True):
    """Which turns to list."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    before: RowId | None = None
    """The `next` of the page before."""


class RepeatedTurn(msgspec.Struct):
    """The turn that another one repeats; `conversation` is null if it is not the caller's."""

    conversation: str | None
    turn_id: int


class TurnSummary(msgspec.Struct, kw_only=True):
    """A recorded turn. `cost` is null if no price is known; times are seconds since 1970."""

    turn_id: int
    session_id: str
    status: ReplyStatus
    error: str | None
    agent: str | None
    models: list[str]
    started_at: float
    ended_at: float
    calls: int
    """How many calls of a model were recorded."""
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float | None
    repeats: RepeatedTurn | None


class TurnList(msgspec.Struct):
    """Recorded turns of the current conversation, the latest first; `next` is null at the end."""

    turns: list[TurnSummary]
    next: int | None


class InjectedText(msgspec.Struct):
    """A message that followed the conversation in a request, and is not part of it."""

    role: str
    content: str | None


class PastCall(msgspec.Struct, kw_only=True):
    """A call of a model. `started`, `first` and `duration` are milliseconds of the turn."""

    number: int
    """Counts the calls of the turn from 0."""
    format: str | None
    """The protocol of the endpoint; null if what was recorded of it cannot be read any more."""
    provider: str | None
    model: str | None
    url: str | None
    settings: dict[str, Any]
    """The other fields of the request."""
    system: str | None
    tools: list[Any]
    injected: list[InjectedText]
    earlier: int
    """How many messages of earlier turns the request had."""
    rows: int
    """How many messages of this turn it had; they follow the earlier ones."""
    digest: str | None
    """The SHA-256 of the body that was sent."""
    verdict: Literal["same", "different", "unknown"]
    """Whether the body that is rebuilt now is the one that was sent."""
    reasons: Sequence[str]
    """Why it is not, or why that is unknown; for people."""
    started: int
    first: int | None
    """When the answer began."""
    duration: int
    usage: Usage | None
    error: str | None


class PastTurnDetails(TurnSummary, kw_only=True):
    """What an agent was given in a turn and what it answered.

    An agent that does not use Hermes' model client has messages and no calls: what it has sent to
    a model is unknown.
    """

    messages: list[Row]
    """The messages of the turn: its question, the calls of tools and their results, the answer."""
    missing: int
    """How many of them do not exist any more."""
    model_calls: list[PastCall]
    events: Sequence[TurnEvent]


class CallMessages(msgspec.Struct):
    """The messages of a request, oldest first. The oldest `left_out` of them are not listed."""

    messages: list[Row]
    left_out: int
    missing: int


class RepeatBody(Body):
    """How to run a turn again; what is not given stays as it was.

    `text` replaces the question, `instructions` are a system message for this turn only.
    """

    text: Annotated[str, Meta(min_length=1, max_length=1_000_000)] | None = None
    instructions: Annotated[str, Meta(min_length=1, max_length=100_000)] | None = None
    agent: Name | None = None
    model: Name | None = None


class RepeatStarted(msgspec.Struct):
    """The branch in which a turn runs again. Its turn has the number `turn_id`."""

    conversation: str
    session_key: str
    turn_id: int
