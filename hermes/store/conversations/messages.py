"""A session's transcript: a log. Rows are added; a rewind or an edit takes rows out of view."""

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
from hermes.store.conversations import codec, inbox_end, search, sessions
from hermes.store.transaction import Row, Transaction, Value

_INSERT = (
    "INSERT INTO arrivals (id, role, content, created_at, platform_message_id, extra) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_STATE = "no, id, seq, message_count, revision, rewrites"
# One statement and not two: an append is two of them, and they are most of what it costs.
_COUNT = (
    "UPDATE sessions SET seq = seq + ?, message_count = message_count + ?, "
    "tool_call_count = tool_call_count + ?, rewrites = rewrites + ?, revision = revision + 1, "
    f"last_active = max(last_active, ?) WHERE id = ? AND end_reason IS NULL RETURNING {_STATE}"
)


@attrs.define
class _State:
    """A session's counters, after a change or before one."""

    no: int
    session_id: str
    seq: int
    message_count: int
    revision: int
    rewrites: int

    @property
    def head(self) -> Head:
        return Head(self.session_id, self.message_count, self.revision, self.rewrites)


def _open(tx: Transaction, session_id: str) -> _State:
    """The counters of a session that may still be written to."""
    row = tx.one(f"SELECT {_STATE}, end_reason FROM sessions WHERE id = ?", session_id)
    if row is None:
        raise UnknownSession(f"there is no session {session_id!r}")
    if row[-1] is not None:
        raise SessionEnded(f"{session_id} has ended ({row[-1]}) and takes no more messages")
    return _State(*row[:-1])


def _count(
    tx: Transaction, session_id: str, added: int, shown: int, calls: int, rewrites: int = 0
) -> _State:
    """Change the counters of a session that may still be written to; returns what they are now."""
    values = (added, shown, calls, rewrites, tx.now, session_id)
    row: Row | None = tx.cursor.execute(_COUNT, values).fetchone()
    if row is None:
        return _open(tx, session_id)  # which says why not
    if row[2] >= codec.SPAN:
        raise StoreError(f"{session_id} is full")
    return _State(*row)


def _values(tx: Transaction, message: Message) -> tuple[Value, ...]:
    return (
        message.role,
        codec.text_of(message),
        tx.now if message.timestamp is None else message.timestamp,
        message.platform_message_id,
        codec.extra_of(message),
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
    """Add one message and count it; the same platform message id again changes nothing."""
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
        state = _open(tx, session_id)
        twin = _find_platform_message(tx, state.no, platform_message_id)
        if twin is not None:
            return Appended(twin, state.head, duplicate=True)
    # First what can be refused, then what is written: then nothing has to be undone.
    values = _values(tx, message)
    state = _count(tx, session_id, 1, 1, len(message.tool_calls))
    place = state.no * codec.SPAN + state.seq
    tx.cursor.execute(_INSERT, (place, *values))
    tx.unindexed = True
    return Appended(place, state.head)


def append_messages(tx: Transaction, session_id: str, messages: Sequence[Message]) -> Head:
    """Add the messages as one block; those whose platform message id is there are left out."""
    state = _open(tx, session_id)
    fresh = _new(tx, state, messages)
    return _add(tx, session_id, fresh).head if fresh else state.head


def _new(tx: Transaction, state: _State, messages: Sequence[Message]) -> list[Message]:
    """The messages whose platform message id the session does not show yet."""
    fresh: list[Message] = []
    seen: set[str] = set()
    for message in messages:
        platform_id = message.platform_message_id
        if platform_id is not None:
            if platform_id in seen or _find_platform_message(tx, state.no, platform_id):
                continue
            seen.add(platform_id)
        fresh.append(message)
    return fresh


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
    """`append_messages`, and the rows as they are stored."""
    fresh = _new(tx, _open(tx, session_id), messages)
    if not fresh:
        return []
    state = _add(tx, session_id, fresh)
    first = state.no * codec.SPAN + state.seq - len(fresh) + 1
    return codec.to_messages(
        (place, *_values(tx, message)) for place, message in enumerate(fresh, first)
    )


def _add(tx: Transaction, session_id: str, messages: Sequence[Message]) -> _State:
    """Add many: `append_message` once more, with one count for all."""
    values = [_values(tx, message) for message in messages]
    number = len(values)
    state = _count(tx, session_id, number, number, codec.tool_calls_in(messages))
    first = state.no * codec.SPAN + state.seq - number + 1
    for place, row in enumerate(values, first):
        tx.cursor.execute(_INSERT, (place, *row))
    tx.unindexed = True
    return state


def _live(tx: Transaction, no: int, first: int = 0) -> list[StoredMessage]:
    low, high = codec.bounds(no)
    stretch = (max(low, first), high)
    # Two queries and not the view: a merge of ten thousand rows would take as long as reading them.
    settled = tx.all(
        f"SELECT {codec.COLUMNS} FROM messages WHERE id BETWEEN ? AND ? AND live = 1 ORDER BY id",
        *stretch,
    )
    arrived = tx.all(
        f"SELECT {codec.COLUMNS} FROM arrivals WHERE id BETWEEN ? AND ? ORDER BY id", *stretch
    )
    return codec.to_messages(settled + arrived)


def load(tx: Transaction, session_id: str) -> Transcript:
    """The live rows and their head; empty where the session has no row yet."""
    no = sessions.number(tx, session_id)
    messages = [] if no is None else _live(tx, no)
    return Transcript(sessions.head(tx, session_id), messages)


def get_messages(
    tx: Transaction,
    session_id: str,
    *,
    include_rewound: bool = False,
    limit: int = -1,
    offset: int = 0,
) -> list[StoredMessage]:
    """Rows in order; a negative limit means all."""
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
    """The live rows that came after the given one."""
    return _live(tx, no, message_id + 1)


def _hide_from(
    tx: Transaction, state: _State, first: int, last: int | None = None
) -> list[StoredMessage]:
    """Take the live rows from `first` on out of view; the counters follow."""
    search.settle(tx, state.no)
    end = codec.bounds(state.no)[1] if last is None else last
    hidden = [message for message in _live(tx, state.no, first) if message.id <= end]
    tx.run("UPDATE messages SET live = 0 WHERE id BETWEEN ? AND ? AND live = 1", first, end)
    calls = codec.tool_calls_in(hidden)
    _count(tx, state.session_id, 0, -len(hidden), -calls, rewrites=1)
    return hidden


def replace_messages(tx: Transaction, session_id: str, messages: Sequence[Message]) -> Head:
    """Show these messages instead of the ones that are there; those stay in the file."""
    state = _open(tx, session_id)
    _hide_from(tx, state, codec.bounds(state.no)[0])
    fresh = _new(tx, state, messages)
    return (_add(tx, session_id, fresh) if fresh else _open(tx, session_id)).head


def rewind(
    tx: Transaction,
    session_id: str,
    message_id: int,
    *,
    upto: int | None = None,
    answer: InboxReply | None = None,
) -> list[StoredMessage]:
    """Take back the message and all after it, or up to another; returns what was taken back."""
    state = _open(tx, session_id)
    _require_live(tx, state, message_id)
    hidden = _hide_from(tx, state, message_id, upto)
    inbox_end.close(tx, answer)
    return hidden


def edit_message(tx: Transaction, session_id: str, message_id: int, content: str) -> Head:
    """Change a message's text: it and all after it are written anew, the old rows stay hidden."""
    state = _open(tx, session_id)
    _require_live(tx, state, message_id)
    edited, *rest = (codec.as_message(m) for m in _hide_from(tx, state, message_id))
    changed = Message(
        edited.role,
        content,
        edited.timestamp,
        edited.platform_message_id,
        **{name: getattr(edited, name) for name in _KEPT_BY_AN_EDIT},
    )
    return _add(tx, session_id, [changed, *rest]).head


_KEPT_BY_AN_EDIT = ("tool_calls", "tool_call_id", "tool_name", "finish_reason")


def _require_live(tx: Transaction, state: _State, message_id: int) -> None:
    row = tx.one("SELECT id >> 32 FROM all_messages WHERE id = ? AND live = 1", message_id)
    if row is None or row[0] != state.no:
        raise StoreError(f"{state.session_id} has no message {message_id} that could be changed")


def copy_live(tx: Transaction, source_no: int, target_id: str) -> Head:
    """Append every live row of one session to another, times and ids of the platform included."""
    return append_messages(tx, target_id, [codec.as_message(m) for m in _live(tx, source_no)])
