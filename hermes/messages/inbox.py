"""Inbound messages, from their arrival to the start of their turn."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.messages.cluster import Claim
from hermes.messages.recordings import Repeats
from hermes.messages.replies import Reply
from hermes.messages.requests import ApiRequest, Source as Source
from hermes.messages.sessions import Route
from hermes.messages.transcript import Head, JsonObject, Message
from hermes.messages.transcripts import with_parts
from hermes.sanitize import scrub

InboxState: TypeAlias = Literal["open", "done", "parked"]
WhenBusy: TypeAlias = Literal["queue", "interrupt", "steer", "reject"]
"""What happens to a message that arrives while a turn runs."""
APPROVAL = "approval"
"""The event_id of a message about a decision is this, a colon and the number of the call.

Ids of this form are reserved: others must not use them.
"""
_decision = re.compile(f"{APPROVAL}:([0-9]{{1,18}})").fullmatch


class Inbound(msgspec.Struct, frozen=True):
    """A message or command as it arrives.

    (platform, account, event_id) identifies it for good. If `per_conversation` is set, the
    session_key belongs to its identity, too.
    """

    session_key: str
    event_id: str
    text: str
    source: Source = msgspec.field(default_factory=Source)
    command: bool = False
    parts: tuple[JsonObject, ...] | None = None
    platform_message_id: str | None = None
    """The id of the message on its platform, unique within its account and chat at most. It is not
    its identity: ids may start again, and an edited message keeps its id."""
    when_busy: WhenBusy | None = msgspec.field(default=None, name="busy")
    """What to do if a turn is running; None means the configured default."""
    linger: float = 0.0
    """Seconds that the turn waits for more messages. For platforms that split one message."""
    sent_at: float | None = None
    """When it was sent, by the platform's clock. Rate limits use it, so that messages which
    arrive together after a downtime do not count as a burst. A platform sets it always or never."""

    per_conversation: bool = False
    """Whether the event_id is unique only within its conversation. `ask` and `stream` set it: their
    callers choose ids for one conversation, while the ids of a platform are unique everywhere."""

    metadata: JsonObject = msgspec.field(default_factory=dict)
    """What the host attached: a small mapping of JSON values. It reaches the turn, its events, the
    hooks, the log and the reply."""

    edits: str | None = None
    """The platform id of the message that this one is a new version of."""

    request: ApiRequest | None = None
    """The request of an API client that this message came with. It has a turn of its own."""

    repeats: Repeats | None = None
    """The recorded turn that this message repeats."""

    @property
    def decided_call(self) -> int | None:
        """The number of the tool call that the user has decided about, if this message says so."""
        found = _decision(self.event_id)
        return None if found is None else int(found[1])

    @property
    def decided_calls(self) -> list[int]:
        """The numbers of all tool calls that the user has decided about with this message."""
        if self.request is not None:
            return [decision.approval_id for decision in self.request.decisions]
        return [] if self.decided_call is None else [self.decided_call]

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """The unique name of the message, as the store keeps it."""
        source, scope = self.source, self.session_key if self.per_conversation else ""
        return scrub(source.platform), scrub(source.account), scrub(self.event_id), scope


class Receipt(msgspec.Struct, frozen=True):
    """Proof that an inbound message is on disk; the same event gets the same receipt again."""

    inbox_id: int
    session_key: str
    session_id: str
    epoch: int
    accepted_at: float


class InboxRow(msgspec.Struct, frozen=True):
    """An accepted message without a finished turn; `attempts` counts the turns it started."""

    inbox_id: int
    inbound: Inbound
    attempts: int
    accepted_at: float

    @property
    def message(self) -> Message:
        """The message as a transcript row."""
        inbound = self.inbound
        row = Message("user", inbound.text, self.accepted_at)
        row = row if inbound.parts is None else with_parts(row, inbound.parts)
        return row if inbound.platform_message_id is None else _of_platform(row, inbound)

    @property
    def messages(self) -> list[Message]:
        """The message as transcript rows: an API client may also return results of its tools."""
        return [self.message] if self.inbound.request is None else _of_client(self)


def _of_client(row: InboxRow) -> list[Message]:
    """Return the rows of an API client's request."""
    request = row.inbound.request
    return [row.message] if request is None else request.rows(row.message)


def _of_platform(row: Message, inbound: Inbound) -> Message:
    """Return the row with the platform's ids."""
    source = inbound.source
    return replace(
        row,
        platform_message_id=inbound.platform_message_id,
        edits=inbound.edits,
        chat=None if source.chat_id is None else f"{source.account}/{source.chat_id}",
    )


class MessageOutcome(msgspec.Struct, frozen=True):
    """What became of an accepted message."""

    receipt: Receipt
    identity: tuple[str, str, str, str]
    """The identity of the message, as `Inbound.identity`."""
    state: InboxState
    note: str | None = None
    """Why it was set aside or withdrawn."""
    reply: Reply | None = None
    """The reply; None while it is open, and if an earlier version closed it."""


class Withdrawn(msgspec.Struct, frozen=True):
    """A message that was taken back, and the reply that its callers get."""

    row: InboxRow
    reply: Reply


class Accepted(msgspec.Struct, frozen=True):
    """Result of `accept`: an inbound message that is on disk."""

    receipt: Receipt
    head: Head
    inbound: Inbound
    """The message as it is read back from the store."""
    duplicate: bool = False
    """Whether the event was accepted before; `receipt` is that of the first time."""
    expired: str | None = None
    """The session that had expired when the message arrived, if any."""
    waiting: int = 0
    """Messages of the same key that were already open."""
    route: Route | None = None
    """The route of the key; None for a duplicate."""
    previous: int = 0
    """The last of the messages that were already open; 0 if there were none."""
    claim: Claim | None = None
    """The node that serves the conversation; None in a store that one process has for itself."""
