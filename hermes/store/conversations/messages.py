"""Transcripts: messages are appended; a rewind or an edit hides rows and deletes none."""

from __future__ import annotations

from collections.abc import Sequence

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
)
from hermes.store.conversations import codec, inbox, search, sessions
from hermes.store.transaction import Row, Transaction, Value

_INSERT = (
    "INSERT INTO arrivals (id, role, content, created_at, platform_message_id, extra) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_COUNTERS = "no, id, seq, message_count, revision, rewrites"
# One statement instead of two: an append has two in all, and they are most of its cost.
_UPDATE_COUNTERS = (
    "UPDATE sessions SET seq = seq + ?, message_count = message_count + ?, "
    "tool_call_count = tool_call_count + ?, rewrites = rewrites + ?, revision = revision + 1, "
    f"last_active = max(last_active, ?) WHERE id = ? AND end_reason IS NULL RETURNING {_COUNTERS}"
)


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


def _update_counters(
    tx: Transaction, session_id: str, added: int, visible: int, calls: int, rewrites: int = 0
) -> _Counters:
    """Add to the counters of an open session, and return the new values.

    `added` is the number of new rows, `visible` the change in the number of live ones.
    """
    values = (added, visible, calls, rewrites, tx.now, session_id)
    row: Row | None = tx.cursor.execute(_UPDATE_COUNTERS, values).fetchone()
    if row is None:
        return _require_open(tx, session_id)  # raises, and says why
    if row[2] >= codec.SPAN:
        raise StoreError(f"{session_id} is full; start a new session")
    return _Counters(*row)


def _values(tx: Transaction, message: Message) -> tuple[Value, ...]:
    return (
        message.role,
        codec.text_of(message),
        tx.now if message.timestamp is None else message.timestamp,
        message.platform_message_id,
        codec.encode_extra(message),
    )


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
    )
    if platform_message_id is not None:
        counters = _require_open(tx, session_id)
        earlier = _find_platform_message(tx, counters.no, platform_message_id)
        if earlier is not None:
            return Appended(earlier, counters.head, duplicate=True)
    values = _values(tx, message)  # validates, so it comes before the first write
    counters = _update_counters(tx, session_id, 1, 1, len(message.tool_calls))
    message_id = counters.no * codec.SPAN + counters.seq
    tx.cursor.execute(_INSERT, (message_id, *values))
    tx.unindexed = True
    return Appended(message_id, counters.head)


def append_messages(tx: Transaction, session_id: str, messages: Sequence[Message]) -> Head:
    """Append the messages as one block, without those that the session already shows."""
    counters = _require_open(tx, session_id)
    new = _without_duplicates(tx, counters.no, messages)
    return _insert_messages(tx, session_id, new).head if new else counters.head


def _without_duplicates(tx: Transaction, no: int, messages: Sequence[Message]) -> list[Message]:
    """Return the messages whose platform message id the session does not show yet."""
    new: list[Message] = []
    seen: set[str] = set()
    for message in messages:
        platform_id = message.platform_message_id
        if platform_id is not None:
            if platform_id in seen or _find_platform_message(tx, no, platform_id):
                continue
            seen.add(platform_id)
        new.append(message)
    return new


def _find_platform_message(tx: Transaction, no: int, platform_message_id: str) -> int | None:
    for table in ("messages", "arrivals"):
        live = " AND live = 1" if table == "messages" else ""
        sql = f"SELECT id FROM {table} WHERE id >> 32 = ? AND platform_message_id = ?{live}"
        if (row := tx.one(sql, no, platform_message_id)) is not None:
            return int(row[0])
    return None


def append_rows(
    tx: Transaction, session_id: str, messages: Sequence[Message]
) -> list[StoredMessage]:
    """Do the same as `append_messages`, and return the appended rows as they are stored."""
    new = _without_duplicates(tx, _require_open(tx, session_id).no, messages)
    if not new:
        return []
    counters = _insert_messages(tx, session_id, new)
    first = counters.no * codec.SPAN + counters.seq - len(new) + 1
    return codec.to_messages(
        (message_id, *_values(tx, message)) for message_id, message in enumerate(new, first)
    )


def _insert_messages(tx: Transaction, session_id: str, messages: Sequence[Message]) -> _Counters:
    """Insert messages with one update of the counters, and return the new counters."""
    values = [_values(tx, message) for message in messages]
    number = len(values)
    counters = _update_counters(tx, session_id, number, number, codec.tool_calls_in(messages))
    first = counters.no * codec.SPAN + counters.seq - number + 1
    for message_id, row in enumerate(values, first):
        tx.cursor.execute(_INSERT, (message_id, *row))
    tx.unindexed = True
    return counters


def _live_messages(tx: Transaction, no: int, first: int = 0) -> list[StoredMessage]:
    """Return the live rows of a session, from the id `first` on."""
    low, high = codec.bounds(no)
    ids = (max(low, first), high)
    # Two queries instead of the view: merging 10,000 rows would take as long as reading them.
    indexed = tx.all(
        f"SELECT {codec.COLUMNS} FROM messages WHERE id BETWEEN ? AND ? AND live = 1 ORDER BY id",
        *ids,
    )
    arrivals = tx.all(
        f"SELECT {codec.COLUMNS} FROM arrivals WHERE id BETWEEN ? AND ? ORDER BY id", *ids
    )
    return codec.to_messages(indexed + arrivals)


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
            "AND (live = 1 OR ?) ORDER BY id LIMIT ? OFFSET ?",
            low,
            high,
            int(include_rewound),
            limit,
            offset,
        )
    )


def messages_after(tx: Transaction, no: int, message_id: int) -> list[StoredMessage]:
    """Return the live rows after the given message."""
    return _live_messages(tx, no, message_id + 1)


def _hide(
    tx: Transaction, counters: _Counters, first: int, last: int | None = None
) -> list[StoredMessage]:
    """Hide the live rows from `first` to `last` (default: the end), and return them."""
    search.index_session(tx, counters.no)
    end = codec.bounds(counters.no)[1] if last is None else last
    hidden = [message for message in _live_messages(tx, counters.no, first) if message.id <= end]
    tx.run("UPDATE messages SET live = 0 WHERE id BETWEEN ? AND ? AND live = 1", first, end)
    calls = codec.tool_calls_in(hidden)
    _update_counters(tx, counters.session_id, 0, -len(hidden), -calls, rewrites=1)
    return hidden


def replace_messages(tx: Transaction, session_id: str, messages: Sequence[Message]) -> Head:
    """Hide all messages of the session and append these instead; the old rows stay in the file."""
    counters = _require_open(tx, session_id)
    _hide(tx, counters, codec.bounds(counters.no)[0])
    new = _without_duplicates(tx, counters.no, messages)
    return (_insert_messages(tx, session_id, new) if new else _require_open(tx, session_id)).head


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
    counters = _require_open(tx, session_id)
    _require_live(tx, counters, message_id)
    hidden = _hide(tx, counters, message_id, upto)
    inbox.close(tx, answer)
    return hidden


def edit_message(tx: Transaction, session_id: str, message_id: int, content: str) -> Head:
    """Change the text of a message.

    The message and all after it are appended again; the old rows stay hidden in the file.
    """
    counters = _require_open(tx, session_id)
    _require_live(tx, counters, message_id)
    edited, *rest = (codec.as_message(m) for m in _hide(tx, counters, message_id))
    changed = Message(
        edited.role,
        content,
        edited.timestamp,
        edited.platform_message_id,
        tool_calls=edited.tool_calls,
        tool_call_id=edited.tool_call_id,
        tool_name=edited.tool_name,
        finish_reason=edited.finish_reason,
    )
    return _insert_messages(tx, session_id, [changed, *rest]).head


def _require_live(tx: Transaction, counters: _Counters, message_id: int) -> None:
    row = tx.one("SELECT id >> 32 FROM all_messages WHERE id = ? AND live = 1", message_id)
    if row is None or row[0] != counters.no:
        raise StoreError(f"{counters.session_id} shows no message with the id {message_id}")


def copy_messages(tx: Transaction, source_no: int, target_id: str) -> Head:
    """Append every live row of one session to another, with its timestamp and platform id."""
    rows = _live_messages(tx, source_no)
    return append_messages(tx, target_id, [codec.as_message(row) for row in rows])
