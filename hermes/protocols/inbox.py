"""The inbox as its consumers see it: accepted messages, and what finishes them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from hermes.messages import (
    Accepted,
    Committed,
    Discarded,
    ExpiryPolicy,
    Inbound,
    InboxReply,
    InboxRow,
    JsonObject,
    Message,
    MessageOutcome,
    Outbound,
    Posted,
    Source,
    StoredMessage,
    ToolCall,
    TurnCommit,
    Withdrawn,
)


class InboxStore(Protocol):
    """Accepted messages and the turns that finish them."""

    def accept(
        self, inbound: Inbound, *, policy: ExpiryPolicy = ..., max_queued: int = ...
    ) -> Awaitable[Accepted]:
        """Store an inbound message. Raises `Overloaded` if too many of its key are open."""
        ...

    def accept_request(
        self, inbound: Inbound, *, policy: ExpiryPolicy = ..., max_queued: int = ...
    ) -> Awaitable[Accepted]:
        """Store the message of an API client, with results and decisions that it returns.

        Raises `RequestRefused` if nothing waits for them.
        """
        ...

    def list_branches(self, prefix: str, limit: int = 30) -> Awaitable[list[str]]:
        """Return the session keys that begin with this text, last active first."""
        ...

    def waiting_calls(self, session_key: str) -> Awaitable[list[ToolCall]]:
        """Return the calls of a client's tools that wait for their results."""
        ...

    def commit_turn(self, turn: TurnCommit) -> Awaitable[Committed | Discarded]:
        """Store a finished turn, or discard it if its session changed underneath it."""
        ...

    def answer(self, answer: InboxReply | None) -> Awaitable[None]:
        """Close inbox rows without a turn and store the replies to their senders."""
        ...

    def open_inbox(
        self, session_key: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> Awaitable[list[InboxRow]]:
        """Return accepted messages without a finished turn, in inbox order."""
        ...

    def waiting_keys(self, after: int = 0, limit: int = 1000) -> Awaitable[list[tuple[str, int]]]:
        """Return the key and the id of each open message after an id, in inbox order."""
        ...

    def start_inbox(self, inbox_ids: Sequence[int]) -> Awaitable[None]:
        """Count one more attempt for each of these rows."""
        ...

    def store_transcripts(
        self, session_key: str, inbox_id: int, transcripts: Mapping[str, str]
    ) -> Awaitable[bool]:
        """Add transcripts, by file id, to an open message. Returns False if it is not open."""
        ...

    def restore_attempts(self, attempts: Mapping[int, int]) -> Awaitable[None]:
        """Set the attempts of open rows, by inbox id."""
        ...

    def park_inbox(
        self, inbox_ids: Sequence[int], note: str, *, answer: InboxReply | None = None
    ) -> Awaitable[int]:
        """Set rows aside that cannot be finished. Returns how many."""
        ...

    def withdraw(self, session_key: str, inbox_id: int) -> Awaitable[Withdrawn | None]:
        """Close an open message without an answer; None if it is not open."""
        ...

    def post(
        self,
        session_key: str,
        text: str,
        source: Source,
        replies: Sequence[Outbound] = (),
        parts: Sequence[JsonObject] = (),
    ) -> Awaitable[Posted]:
        """Append a message of the assistant to the current session, and enqueue its delivery.

        Raises `UnknownFile` if the conversation cannot read a file that `parts` names.
        """
        ...

    def add_messages(
        self, session_key: str, rows: Sequence[Message], source: Source
    ) -> Awaitable[list[StoredMessage]]:
        """Append messages of a history to the current session; no turn answers them.

        Raises `UnknownFile` if the conversation cannot read a file that a message names.
        """
        ...

    def last_source(self, session_key: str) -> Awaitable[Source | None]:
        """Return where the last reply of a conversation was sent, if that is known."""
        ...

    def get_outcome(self, inbox_id: int) -> Awaitable[MessageOutcome | None]:
        """Return what became of a message; None if it is unknown."""
        ...

    def get_outcomes(self, inbox_ids: Sequence[int]) -> Awaitable[list[MessageOutcome]]:
        """Return what became of these messages, by id; without those that are unknown."""
        ...

    def open_ids(self, session_keys: Sequence[str]) -> Awaitable[list[tuple[str, int]]]:
        """Return the keys and the ids of the open messages of these conversations, by id."""
        ...

    def find_event(
        self, session_key: str, event_id: str, platform: str, account: str = ""
    ) -> Awaitable[MessageOutcome | None]:
        """Return what became of the event of a conversation; None if it is unknown."""
        ...
