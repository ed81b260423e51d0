"""Turns: what an agent is built from, what it returns, and what is committed."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import msgspec

from hermes.messages.attachments import Attachment, StoredFile
from hermes.messages.outbox import Outbound
from hermes.messages.recordings import TurnRecord
from hermes.messages.replies import BuildReason, Reply, Usage
from hermes.messages.sessions import ConversationSettings, ExpiryPolicy
from hermes.messages.transcript import Head, Message, StoredMessage, ToolCall


@attrs.frozen(kw_only=True)
class AgentSpec:
    """What an agent is built from. Agents with equal signatures are interchangeable."""

    session_key: str
    platform: str = "embedded"
    user_id: str | None = None
    model: str | None = None
    endpoint: str | None = None
    credential: str | None = attrs.field(default=None, repr=False)
    toolset: tuple[str, ...] = ()
    system_prompt: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """Other properties that are fixed when an agent is built, such as compression settings."""
    conversation: ConversationSettings = attrs.field(factory=ConversationSettings, hash=False)
    """What `Conversation.configure` has set. Hermes adds it to what `agent_spec` returns."""

    @functools.cached_property
    def signature(self) -> str:
        """A fingerprint of everything that requires a rebuild; the credential only as a hash."""
        secret = hashlib.sha256((self.credential or "").encode()).hexdigest()
        parts = (
            self.model, self.endpoint, secret, sorted(self.toolset), self.system_prompt,
            sorted(self.settings), self.user_id,
        )  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def configured(self, settings: ConversationSettings) -> AgentSpec:
        """Return the specification for a conversation with these settings."""
        return attrs.evolve(
            self,
            model=settings.model or self.model,
            settings=(*self.settings, ("conversation", settings.to_json())),
            conversation=settings,
        )


class CostTotals(msgspec.Struct, frozen=True):
    """Costs of a conversation, and since midnight of its principal and of everybody."""

    session: float = 0.0
    principal: float = 0.0
    day: float = 0.0
    payer: str = ""
    """Whose budget is charged."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent returns.

    Without `rows`, the transcript rows are built from the emitted events and `text`. Input taken by
    `Turn.steered` keeps its position among `rows`; input that is missing there comes first.
    """

    text: str | None = None
    """The answer."""
    rows: Sequence[Message] | None = None
    """The transcript rows of the turn, without the user's input."""
    session_id: str | None = None
    """For agents that compress by themselves: the session they continue in."""
    usage: Sequence[Usage] = ()
    """Provider calls that were not reported by `Turn.charge`."""
    api_calls: int = 1
    failed: bool = False
    partial: bool = False
    interrupted: bool = False
    error: str | None = None
    error_kind: str | None = None
    """The class of the error of a failed result, for `Reply.error_kind`; None means "agent"."""
    data: object = None
    """A structured result, as a JSON value. The host finds it in `Reply.data`."""
    files: Sequence[Attachment | StoredFile] = ()
    """Files that the user gets with the answer. The host finds them in `Reply.files`."""
    calls: Sequence[ToolCall] = ()
    """Calls of the client's own tools (`TurnOptions.tools`), which the client makes now. They are
    among the calls of the last assistant message in `rows`, and have no results there. The client
    finds them in `Reply.calls`, and returns the results as the input of a later turn."""


class Snapshot(msgspec.Struct, frozen=True):
    """A cached agent and the state of the transcript it last saw.

    `message_count` and `session_id` are None if they are not known.
    """

    agent: Any
    signature: str
    message_count: int | None = None
    session_id: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a conversation."""

    session_key: str
    session_id: str | None
    title: str | None
    message_count: int
    busy: bool
    """Whether a turn is running."""
    waiting: int
    """Messages that wait for their turn."""
    context_tokens: int
    """Estimated or counted size of the transcript."""
    compress_at: int
    """Size at which it is compressed."""
    window: int
    """Context window of the model."""
    builds: Mapping[BuildReason, int]
    """Agent builds of this conversation, by reason."""
    compression_note: str | None = None
    """Why automatic compression is currently suspended, if it is."""
    model: str | None = None
    """The model that answers, if the host's catalog says so."""
    cost: float = 0.0
    """What the current session has cost so far."""


class RunningTurnInfo(msgspec.Struct, frozen=True):
    """A running turn and the text of its answer so far."""

    turn_id: int
    text: str


class TurnCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A finished turn: `commit_turn` stores all of it, or nothing."""

    session_key: str
    session_id: str
    epoch: int
    revision: int
    inbox_ids: Sequence[int]
    rows: Sequence[Message] = ()
    outbox: Sequence[Outbound] = ()
    usage: Sequence[Usage] = ()
    next_inbox_ids: Sequence[int] = ()
    """Messages of the next turn; their attempt is counted with this commit."""
    rotated_to: str | None = None
    """The session that the agent continued in by itself."""
    upto: int | None = None
    """The last message known when the turn started; later ones were written by others."""
    rewind_to: int | None = None
    """Take back this message and all after it, up to `upto`, before the rows are added."""
    policy: ExpiryPolicy | None = None
    """When the conversation expires, counted from now."""
    reply: Reply | None = None
    """What callers of these messages get, now or later."""
    stored: bool = True
    """Whether the turn belongs to a session. If not, only its usage and its reply are stored."""
    record: TurnRecord | None = None
    """What is recorded of a turn that belongs to a session."""


class Committed(msgspec.Struct, frozen=True):
    """The turn is on disk.

    `foreign` means that another process had written to the session since the turn started.
    """

    head: Head
    epoch: int
    foreign: bool = False
    moved: bool = False
    rows: Sequence[StoredMessage] = ()
    """The added rows, as they are stored."""
    title: str | None = None
    """The pending title, if the session got it with this turn."""
    reply: Reply | None = None
    """The reply as it is stored."""


class Discarded(msgspec.Struct, frozen=True):
    """Nothing was written: the route or the inbox rows changed during the turn.

    Inbox rows that are still open run again on the current route.
    """

    reason: str
    session_id: str | None
    epoch: int


class ToolCallRecord(msgspec.Struct, frozen=True):
    """A tool call that must not run twice; `result` is None if its end was never recorded.

    `arguments` is canonical JSON; `ordinal` counts equal calls within one run of the turn.
    """

    turn_id: int
    tool: str
    arguments: str
    ordinal: int = 0
    result: str | None = None
    failed: bool = False
