"""Recorded turns: one row for each, and each text that is not a message once.

The row is small. It names texts by their numbers, and messages by ranges of their numbers in the
session; what is the same as in the call before is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import astuple

from hermes.messages import (
    Content,
    RecordedCall,
    StoredMessage,
    TurnEventKind,
    TurnRecord,
    Usage,
)
from hermes.store.transaction import Transaction

MAX_RANGES = 8
"""More ranges of messages than this are stored as a text, which calls share."""
_INSERT = (
    "INSERT INTO turns (session_no, id, first_id, row_count, started_at, ended_at, status, "
    "details) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADD_CONTENT = (
    "INSERT INTO contents (digest, content) VALUES (?, ?) "
    "ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest RETURNING id"
)
_ADD_REFERENCE = (
    "INSERT INTO session_contents (session_no, content_id) VALUES (?, ?) "
    "ON CONFLICT (session_no, content_id) DO NOTHING"
)


class StoredUsage(msgspec.Struct, frozen=True, array_like=True):
    """`Usage` of a turn, without names."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None
    model: str | None = None
    """None if it is the model of the request, and the same for the provider."""
    provider: str | None = None


class StoredCall(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """`RecordedCall` with numbers of contents; `history` is None if it is that of the last call."""

    settings: int
    tools: int | None
    system: int | None
    injected: int | None
    session_no: int
    """0 for the session of the turn."""
    history: tuple[int, ...] | int | None
    """Ranges of numbers, or the content that has them."""
    rows: int
    digest: str | None
    started: int
    first: int | None
    duration: int
    usage: StoredUsage | None
    error: str | None = None
    redacted: bool = False
    hidden_files: tuple[str, ...] = ()


class StoredEvent(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """`TurnEvent`, without names."""

    kind: TurnEventKind
    name: str
    started: int
    duration: int | None = None
    failed: bool = False
    call_id: str | None = None


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the row of a turn has as JSON."""

    agent: str | None = None
    error: str | None = None
    repeats: tuple[str, int] | None = None
    calls: tuple[StoredCall, ...] = ()
    events: tuple[StoredEvent, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Details).decode
_EMPTY = Details()
_DAMAGED = Details(error="what was recorded of this turn cannot be read any more")


class _Events(msgspec.Struct, frozen=True):
    events: tuple[StoredEvent, ...] = ()


_decode_events = msgspec.json.Decoder(_Events).decode


def decode(details: str | None) -> Details:
    """Return what the row of a turn has as JSON; if that is damaged, an error that says so."""
    try:
        return _EMPTY if details is None else _decode(details)
    except msgspec.MsgspecError:
        return _DAMAGED


def decode_events(details: str | None) -> tuple[StoredEvent, ...]:
    """Return the events among what the row of a turn has as JSON; none if that is damaged."""
    try:
        return () if details is None else _decode_events(details).events
    except msgspec.MsgspecError:
        return ()


def add(
    tx: Transaction, no: int, turn_id: int, record: TurnRecord, added: Sequence[StoredMessage]
) -> None:
    """Store what is recorded of a turn whose rows were added to a session."""
    details = encode(record, _Contents(tx, no))
    rows = (added[0].id, len(added)) if added else (0, 0)
    tx.run(_INSERT, no, turn_id, *rows, record.started_at, tx.now, record.status, details)


class Contents(Protocol):
    """Where the contents of a turn are stored, and the session that its numbers belong to."""

    def required(self, content: Content) -> int:
        """Return the number of a content."""
        ...

    def number_of(self, session_id: str) -> int:
        """Return the number of a session; 0 for that of the turn, or if it has no row."""
        ...


def encode(record: TurnRecord, contents: Contents) -> str | None:
    """Return what the row of a turn has as JSON, or None if that is nothing."""
    if record.calls or record.events or record.agent or record.error or record.repeats:
        return _encode(_details(record, contents)).decode()
    return None


def _details(record: TurnRecord, contents: Contents) -> Details:
    calls: list[StoredCall] = []
    before: tuple[object, ...] | None = None
    for call in record.calls:
        history = call.session_id, call.history
        calls.append(_stored(contents, call, repeated=history == before))
        before = history
    events = [StoredEvent(*astuple(event)) for event in record.events]
    return Details(record.agent, record.error, record.repeats, tuple(calls), tuple(events))


class _Contents:
    """Stores the contents of a turn; each is looked up once."""

    def __init__(self, tx: Transaction, no: int) -> None:
        self.tx = tx
        self.no = no
        self._ids: dict[str, int] = {}

    def required(self, content: Content) -> int:
        """Return the number of a content, which is stored if it is new."""
        known = self._ids.get(content.digest)
        if known is None:
            row = self.tx.one("SELECT id FROM contents WHERE digest = ?", content.digest)
            if row is None:
                row = self.tx.one(_ADD_CONTENT, content.digest, content.text)
            assert row is not None
            known = self._ids[content.digest] = int(row[0])
            self.tx.run(_ADD_REFERENCE, self.no, known)
        return known

    def number_of(self, session_id: str) -> int:
        """Return the number of a session; 0 for that of the turn, or if it has no row."""
        row = self.tx.one("SELECT no FROM sessions WHERE id = ?", session_id)
        return 0 if row is None or row[0] == self.no else int(row[0])


def _number(contents: Contents, content: Content | None) -> int | None:
    return None if content is None else contents.required(content)


def _stored(contents: Contents, call: RecordedCall, *, repeated: bool) -> StoredCall:
    history: tuple[int, ...] | int | None = None if repeated else call.history
    if not repeated and len(call.history) > 2 * MAX_RANGES:
        history = contents.required(Content.of(_encode(call.history).decode()))
    return StoredCall(
        settings=contents.required(call.settings),
        tools=_number(contents, call.tools),
        system=_number(contents, call.system),
        injected=_number(contents, call.injected),
        session_no=0 if repeated or not call.history else contents.number_of(call.session_id),
        history=history,
        rows=call.rows,
        digest=None if call.digest is None else shortened(call.digest),
        started=call.started,
        first=call.first,
        duration=call.duration,
        usage=None if call.usage is None else _usage(call.usage),
        error=call.error,
        redacted=call.redacted,
        hidden_files=tuple(call.hidden_files),
    )


def shortened(digest: str) -> str:
    """Return a hexadecimal hash as base64, which is a third shorter."""
    return base64.b64encode(bytes.fromhex(digest)).decode().rstrip("=")


def lengthened(digest: str) -> str:
    """Return what `shortened` was given."""
    return base64.b64decode(f"{digest}=").hex()


def _usage(usage: Usage) -> StoredUsage:
    tokens = (
        usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens,
        usage.reasoning_tokens,
    )  # fmt: skip
    return StoredUsage(*tokens, usage.cost, usage.model, usage.provider)


def delete_of_session(tx: Transaction, no: int) -> None:
    """Delete the turns of a session, and the contents that no other session uses."""
    used: list[Any] = tx.all("SELECT content_id FROM session_contents WHERE session_no = ?", no)
    tx.run("DELETE FROM turns WHERE session_no = ?", no)
    tx.run("DELETE FROM session_contents WHERE session_no = ?", no)
    tx.run_each(
        "DELETE FROM contents WHERE id = ? AND NOT EXISTS "
        "(SELECT 1 FROM session_contents u WHERE u.content_id = contents.id)",
        used,
    )
