"""Replies on their way to a platform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from hermes.messages.replies import Reply
from hermes.messages.transcript import JsonObject

OutboxState: TypeAlias = Literal["pending", "sending", "sent", "dead"]


class Outbound(msgspec.Struct, frozen=True):
    """A reply to be stored; replies of one `lane` (a chat) are sent in order."""

    lane: str
    body: JsonObject


class OutboxRow(msgspec.Struct, frozen=True):
    """A stored reply that is not yet known to be sent.

    `recovered` means that an earlier send may have reached the platform. A long text is sent in
    `parts`; the adapter receives one part as the text of the body.
    """

    outbox_id: int
    session_key: str
    turn_id: int
    lane: str
    body: JsonObject
    state: OutboxState
    attempts: int
    recovered: bool
    part: int = 0
    """Number of parts that the platform has, so the index of the part to send next."""
    parts: int = 1


class InboxReply(msgspec.Struct, frozen=True, kw_only=True):
    """Closes inbox rows that get no turn, and stores the replies to their senders.

    Both happen in the transaction of the operation that the reply is passed to.
    """

    session_key: str
    inbox_ids: Sequence[int]
    outbox: Sequence[Outbound] = ()
    reply: Reply | None = None
    """What callers of the last message get, now or later."""
    dropped: Reply | None = None
    """What callers of the others get, which the last one cancelled."""

    @property
    def metadata(self) -> JsonObject:
        """The metadata of the last message."""
        return {} if self.reply is None else self.reply.metadata


class OutboxStats(msgspec.Struct, frozen=True, kw_only=True):
    """Undelivered replies of one platform."""

    platform: str
    pending: int = 0
    sending: int = 0
    recovered: int = 0
    """Replies that will be sent again although the platform may already have them."""
    oldest_seconds: float = 0.0
    """Age of the oldest one."""
    dead: int = 0
    """Replies given up within the last day."""


class StoreStatistics(msgspec.Struct, frozen=True):
    """Counters of the store actor."""

    waiting: int
    commits: int
    requests: int
    largest_batch: int
    log_pages: int
    flushes: int = 0
    """Commits that waited for the disk."""


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts from the tables of a store."""

    inbox_open: int = 0
    """Accepted messages without a finished turn."""
    inbox_oldest_seconds: float = 0.0
    """Age of the oldest one."""
    outbox: tuple[OutboxStats, ...] = ()
    hooks_open: int = 0
    """Boundaries that have not been delivered to every hook."""
    cost_today: float = 0.0
