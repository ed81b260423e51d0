"""Transcripts: messages are appended; a rewind or an edit hides rows and deletes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from hermes.errors import SessionEnded, StoreError, UnknownSession
from hermes.messages import (
    Appended,
    Head,
    InboxReply,
    JsonObject,
    Message,
    StoredMessage,
    ToolCall,
    Transcript,
    file_id_of,
)
from hermes.store.attachments import rows as attachments
from hermes.store.conversations import codec, inbox, sessions
from hermes.store.transaction import ALL_ROWS, Transaction

_COLUMNS = "(id, role, content, created_at, platform_message_id, extra) VALUES (?, ?, ?, ?, ?, ?)"
_INSERT = f"INSERT INTO messages {_COLUMNS}"
_INSERT_ARRIVAL = f"INSERT INTO arrivals {_COLUMNS}"
_COUNTERS = "no, id, seq, message_count, revision, rewrites"
# One statement instead of two: an append has two in all, and they are most of its cost.
_UPDATE_COUNTERS = (
    "UPDATE sessions SET seq = seq + ?1, message_count = message_count + ?2, "
    "tool_call_count = tool_call_count + ?3, rewrites = rewrites + ?4, revision = revision + 1, "
    "last_active = CASE WHEN last_active < ?5 THEN ?5 ELSE last_active END "
    f"WHERE id = ?6 AND end_reason IS NULL RETURNING {_COUNTERS}"
)
# `+` removes the affinity of `no`, which would keep SQLite from using the indexes on `id >> 32`.
_FIND_INDEXED = (
    "SELECT m.id FROM sessions s JOIN messages m ON m.id >> 32 = +s.no "
    "WHERE s.id = ?1 AND m.platform_message_id = ?2 AND m.live = 1"
)
FIND_PLATFORM_MESSAGE = (
    f"{_FIND_INDEXED} UNION ALL "
    "SELECT a.id FROM sessions s JOIN arrivals a ON a.id >> 32 = +s.no "
    "WHERE s.id = ?1 AND a.platform_message_id = ?2"
)


Columns: TypeAlias = tuple[str, str | None, float, str | None, str | None]
"""Role, content, creation time, platform id, and the other fields as JSON."""


@attrs.define
class _Counters:
    """The counters of a session."""

    no: int
    session_id: str
    seq: int
    message_count: int
    revision: int
    rewrites: int

    @property
    def head(self) -> Head:
        return Head(self.session_id, self.message_count, self.revision, self.rewrites)


def _require_open(tx: Transaction, session_id: str) -> _Counters:
    """Return the counters of a session, or raise if it does not exist or has ended."""
    row = tx.one(f"SELECT {_COUNTERS}, end_reason FROM sessions WHERE id = ?", session_id)
    if row is None:
        raise UnknownSession(f"there is no session {session_id!r}")
    if row[-1] is not None:
        raise SessionEnded(f"{session_id} has ended ({row[-1]}) and accepts no more messages")
    return _Counters(*row[:-1])


def _lock_open(tx: Transaction, session_id: str) -> _Counters:
    """Like `_require_open`; the session is locked, because its messages are read to be changed."""
    tx.lock_session(session_id)
    return _require_open(tx, session_id)


def _update_counters(
    tx: Transaction, session_id: str, added: int, visible: int, calls: int, rewrites: int = 0
) -> _Counters:
    """Add to the counters of an open session, and return the new values.

    `added` is the number of new rows, `visible` the change in the number of live ones.
    """
    row = tx.one(_UPDATE_COUNTERS, added, visible, calls, rewrites, tx.now, session_id)
    if row is None:
        return _require_open(tx, session_id)  # raises, and says why
    if row[2] >= codec.SPAN:
        raise StoreError(f"{session_id} is full; start a new session")
    return _Counters(*row)


def append_message(  # noqa: PLR0913 - the fields of a message
    tx: Transaction,
    session_id: str,
    role: str,
    content: str | None = None,
    *,
    parts: Sequence[JsonObject] | None = None,
    tool_calls: Sequence[ToolCall] = (),
    tool_call_id: str | None = None,
    tool_name: str | None = None,
    reasoning: str | None = None,
    reasoning_details: Sequence[JsonObject] = (),
    finish_reason: str | None = None,
    token_count: int | None = None,
    provider_data: JsonObject | None = None,
    platform_message_id: str | None = None,
    edits: str | None = None,
    chat: str | None = None,
    timestamp: float | None = None,
) -> Appended:
    """Append one message.

    A message whose `platform_message_id` the session already shows is not appended again; the
    result then names the earlier one and has `duplicate` set.
    """
    message = Message(
        role,
        content,
        timestamp,
        platform_message_id,
        parts=None if parts is None else tuple(parts),
        tool_calls=tuple(tool_calls),
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        reasoning=reasoning,
        reasoning_details=tuple(reasoning_details),
        finish_reason=finish_reason,
        token_count=token_count,
        provider_data=provider_data,
        edits=edits,
        chat=chat,
    )
    if platform_message_id is not None:
        tx.lock_session(session_id)
        earlier = _find_platform_message(tx, session_id, platform_message_id)
        if earlier is not None:
            return Appended(earlier, _require_open(tx, session_id).head, duplicate=True)
    head, rows = append_rows(tx, session_id, [message])
    return Appended(rows[0].id, head)


def append_messages(tx: Transaction, session_id: str, messages: Sequence[Message]) -> Head:
    """Append the messages as one block.

    A message whose `platform_message_id` the session already shows is not appended again.
    """
    seen: set[str] = set()
    fresh: list[Message] = []
    if any(message.platform_message_id is not None for message in messages):
        tx.lock_session(session_id)
    for message in messages:
        platform_id = message.platform_message_id
        if platform_id is not None:
            if platform_id in seen or _find_platform_message(tx, session_id, platform_id):
                continue
            seen.add(platform_id)
        fresh.append(message)
    return append_rows(tx, session_id, fresh)[0]


def append_rows(
    tx: Transaction, session_id: str, messages: Sequence[Message]
) -> tuple[Head, list[StoredMessage]]:
    """Append all messages as one block; return the new head, and the rows as they are stored."""
    if any(message.parts for message in messages):
        messages = attachments.use_in_session(tx, session_id, messages)
    columns = values(messages, tx.now)  # may raise, so it comes before the first write
    calls = codec.tool_calls_in(messages)
    if not columns:
        return _require_open(tx, session_id).head, []
    counters = _update_counters(tx, session_id, len(columns), len(columns), calls)
    first = counters.no * codec.SPAN + counters.seq - len(columns) + 1
    rows = [(message_id, *row) for message_id, row in enumerate(columns, first)]
    tx.run_each(_INSERT_ARRIVAL if tx.has_arrivals else _INSERT, rows)
    tx.unindexed = True
    return counters.head, codec.to_messages(rows)


def values(messages: Sequence[Message], now: float) -> list[Columns]:
    """Return what is stored of messages, without their ids. Raises `ValueError`."""
    rows: list[Columns] = []
    for message in messages:
        at = now if message.timestamp is None else message.timestamp
        extra = codec.encode_extra(message)
        platform_id = codec.without_nul(message.platform_message_id)
        rows.append((message.role, codec.text_of(message), at, platform_id, extra))
    return rows


def _find_platform_message(
    tx: Transaction, session_id: str, platform_message_id: str
) -> int | None:
    sql = FIND_PLATFORM_MESSAGE if tx.has_arrivals else _FIND_INDEXED
    row = tx.one(sql, session_id, codec.without_nul(platform_message_id))
    return None if row is None else int(row[0])


def _live_messages(tx: Transaction, no: int, first: int = 0) -> list[StoredMessage]:
    """Return the live rows of a session, from the id `first` on."""
    low, high = codec.bounds(no)
    ids = (max(low, first), high)
    # Two queries instead of the view: merging 10,000 rows would take as long as reading them.
    rows = tx.all(
        f"SELECT {codec.COLUMNS} FROM messages WHERE id BETWEEN ? AND ? AND live = 1 ORDER BY id",
        *ids,
    )
    if tx.has_arrivals:
        sql = f"SELECT {codec.COLUMNS} FROM arrivals WHERE id BETWEEN ? AND ? ORDER BY id"
        rows += tx.all(sql, *ids)
    return codec.to_messages(rows)


def load(tx: Transaction, session_id: str) -> Transcript:
    """Return the live rows and the head; empty if the session has no row yet."""
    no = sessions.number(tx, session_id)
    messages = [] if no is None else _live_messages(tx, no)
    return Transcript(sessions.head(tx, session_id), messages)


def get_messages(
    tx: Transaction,
    session_id: str,
    *,
    include_rewound: bool = False,
    limit: int = -1,
    offset: int = 0,
) -> list[StoredMessage]:
    """Return messages in order; with `include_rewound` also hidden ones.

    A negative `limit` means all. Raises `UnknownSession`.
    """
    low, high = codec.bounds(sessions.require(tx, session_id))
    return codec.to_messages(
        tx.all(
            f"SELECT {codec.COLUMNS} FROM all_messages WHERE id BETWEEN ? AND ? "
            "AND (live = 1 OR ? = 1) ORDER BY id LIMIT ? OFFSET ?",
            low,
            high,
            int(include_rewound),
            limit if limit >= 0 else ALL_ROWS,
            offset,
        )
    )


def latest(tx: Transaction, session_id: str, limit: int) -> list[StoredMessage]:
    """Return the last live rows of a session, in order. Raises `UnknownSession`."""
    low, high = codec.bounds(sessions.require(tx, session_id))
    rows = tx.all(
        f"SELECT {codec.COLUMNS} FROM all_messages WHERE id BETWEEN ? AND ? AND live = 1 "
        "ORDER BY id DESC LIMIT ?",
        low,
        high,
        limit,
    )
    return codec.to_messages(rows[::-1])


def messages_after(tx: Transaction, no: int, message_id: int) -> list[StoredMessage]:
    """Return the live rows after the given message."""
    return _live_messages(tx, no, message_id + 1)


def _hide(
    tx: Transaction, counters: _Counters, first: int, last: int | None = None
) -> list[StoredMessage]:
    """Hide the live rows from `first` to `last` (default: the end), and return them."""
    tx.search.index_session(tx, counters.no)
    end = codec.bounds(counters.no)[1] if last is None else last
    hidden = [message for message in _live_messages(tx, counters.no, first) if message.id <= end]
    tx.run("UPDATE messages SET live = 0 WHERE id BETWEEN ? AND ? AND live = 1", first, end)
    calls = codec.tool_calls_in(hidden)
    _update_counters(tx, counters.session_id, 0, -len(hidden), -calls, rewrites=1)
    return hidden


def replace_messages(tx: Transaction, session_id: str, messages: Sequence[Message]) -> Head:
    """Hide all messages of the session and append these instead; the old rows stay in the file."""
    counters = _lock_open(tx, session_id)
    _hide(tx, counters, codec.bounds(counters.no)[0])
    return append_rows(tx, session_id, messages)[0]


def rewind(
    tx: Transaction,
    session_id: str,
    message_id: int,
    *,
    upto: int | None = None,
    answer: InboxReply | None = None,
) -> list[StoredMessage]:
    """Hide a message and all after it, or those up to the id `upto`. Return the hidden messages.

    `answer` closes the inbox rows of the command in the same transaction.
    """
    counters = _lock_open(tx, session_id)
    _require_live(tx, counters, message_id)
    hidden = _hide(tx, counters, message_id, upto)
    inbox.close(tx, answer)
    return hidden


def edit_message(tx: Transaction, session_id: str, message_id: int, content: str) -> Head:
    """Change the text of a message, which keeps its files.

    The message and all after it are appended again; the old rows stay hidden in the file.
    """
    counters = _lock_open(tx, session_id)
    _require_live(tx, counters, message_id)
    edited, *rest = (codec.as_message(m) for m in _hide(tx, counters, message_id))
    changed = Message(
        edited.role,
        content,
        edited.timestamp,
        edited.platform_message_id,
        parts=tuple(part for part in edited.parts or () if file_id_of(part)) or None,
        tool_calls=edited.tool_calls,
        tool_call_id=edited.tool_call_id,
        tool_name=edited.tool_name,
        finish_reason=edited.finish_reason,
        edits=edited.edits,
        chat=edited.chat,
    )
    return append_rows(tx, session_id, [changed, *rest])[0]


def _require_live(tx: Transaction, counters: _Counters, message_id: int) -> None:
    row = tx.one("SELECT id >> 32 FROM all_messages WHERE id = ? AND live = 1", message_id)
    if row is None or row[0] != counters.no:
        raise StoreError(f"{counters.session_id} shows no message with the id {message_id}")


def is_live(tx: Transaction, message_id: int) -> bool:
    """Return whether a message is part of the transcript."""
    return tx.one("SELECT 1 FROM all_messages WHERE id = ? AND live = 1", message_id) is not None


def copy_messages(
    tx: Transaction, source_no: int, target_id: str, *, before: int | None = None
) -> Head:
    """Append every live row of one session to another, with its timestamp and platform id.

    With `before`, only the rows with a lower id; raises `ValueError` if it is no live row.
    """
    rows = _live_messages(tx, source_no)
    if before is not None:
        if before not in [row.id for row in rows]:
            raise ValueError(f"the current session has no message {before}")
        rows = [row for row in rows if row.id < before]
    return append_rows(tx, target_id, [codec.as_message(row) for row in rows])[0]
