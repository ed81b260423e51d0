"""What the clients of an API see of the conversations in a store."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from hermes.messages import (
    CachedConversation,
    CallRows,
    ConversationSummary,
    ConversationView,
    CostsToday,
    KnownRows,
    LaneInfo,
    LaneRow,
    LineageSession,
    Message,
    ModelCall,
    PastTurn,
    RecordedCall,
    Replacement,
    Source,
    StoredMessage,
    TurnOfRows,
    TurnUsage,
)


class ViewStore(Protocol):
    """Lists and states of conversations, and what their turns have used."""

    def list_conversations(
        self,
        *,
        prefixes: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        title_contains: str | None = None,
        archived: bool | None = False,
        before: tuple[float, str] | None = None,
        limit: int = 50,
    ) -> Awaitable[list[ConversationSummary]]:
        """Return the conversations whose keys begin with a prefix, latest activity first."""
        ...

    def get_view(
        self, session_key: str, *, known: KnownRows | None = None, limit: int = ...
    ) -> Awaitable[ConversationView]:
        """Return the state of a conversation, with the messages that the reader does not know."""
        ...

    def conversation_stamps(self, session_keys: Sequence[str]) -> Awaitable[Mapping[str, str]]:
        """Return a text for each of these keys that changes whenever its state does."""
        ...

    def usage_by_turn(self, session_key: str, *, limit: int = 100) -> Awaitable[list[TurnUsage]]:
        """Return what the turns of a conversation have used, the latest first."""
        ...

    def outbox_lanes(self, limit: int = 200) -> Awaitable[list[LaneInfo]]:
        """Return the chats that have undelivered replies."""
        ...

    def costs_today(self) -> Awaitable[CostsToday]:
        """Return what was spent since midnight, and by whom."""
        ...

    def lane_rows(
        self, lane: str | None = None, *, after: int = 0, limit: int = 100
    ) -> Awaitable[list[LaneRow]]:
        """Return the undelivered replies of one lane or of all, and those given up today."""
        ...

    def session_family(self, session_key: str) -> Awaitable[list[LineageSession]]:
        """Return the sessions of a key, those they came from, and those made from them."""
        ...

    def summary_rows(
        self, session_id: str, *, limit: int = 200
    ) -> Awaitable[tuple[Replacement, StoredMessage, list[StoredMessage]] | None]:
        """Return what the summary of a session replaced, the summary, and the replaced rows."""
        ...

    def model_calls(
        self, session_key: str, *, before: int | None = None, limit: int = 100
    ) -> Awaitable[list[ModelCall]]:
        """Return the model calls of a key's current conversation, the latest first."""
        ...

    def cached_conversations(self, limit: int = 100) -> Awaitable[list[CachedConversation]]:
        """Return the conversations that called a model, and what came from caches."""
        ...

    def list_turns(
        self, session_key: str, *, before: int | None = None, limit: int = 50
    ) -> Awaitable[list[PastTurn]]:
        """Return the recorded turns of a key's current conversation, the latest first."""
        ...

    def turns_of_rows(self, row_ids: Sequence[int]) -> Awaitable[list[TurnOfRows]]:
        """Return the recorded turns that have stored these rows."""
        ...

    def get_past_turn(self, session_key: str, turn_id: int) -> Awaitable[PastTurn | None]:
        """Return a recorded turn of any session of a key, with its messages."""
        ...

    def get_call_rows(
        self, session_key: str, turn_id: int, number: int
    ) -> Awaitable[tuple[RecordedCall, CallRows] | None]:
        """Return a call of a recorded turn, counted from 0, with the rows of its request."""
        ...

    def open_branch(
        self,
        session_key: str,
        source: Source,
        rows: Sequence[Message] = (),
        *,
        of: str | None = None,
        upto: int = 0,
    ) -> Awaitable[int]:
        """Start the session of a key with earlier messages of another one."""
        ...
