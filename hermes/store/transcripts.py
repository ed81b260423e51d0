"""A session's transcript: a log. Rows are added; a rewind or an edit takes rows out of view."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hermes.errors import SessionEnded, StoreError, UnknownSession
from hermes.messages import (
    Appended,
    Head,
    JsonObject,
    Message,
    StoredMessage,
    ToolCall,
    Transcript,
)
from hermes.store import rows, search, sessions
from hermes.store.tx import Tx, Value

_INSERT = (
    "INSERT INTO arrivals (id, role, content, created_at, platform_message_id, extra) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)


@attrs.define
class _State:
    """A session's counters while a change is made; one UPDATE writes them all."""

    no: int
    session_id: str
    seq: int
    message_count: int
    tool_call_count: int
    revision: int
    rewrites: int

    @property
    def head(self) -> Head:
        return Head(self.session_id, self.message_count, self.revision, self.rewrites)

    def save(self, tx: Tx) -> Head:
        tx.cursor.execute(
            "UPDATE sessions SET seq = ?, message_count = ?, tool_call_count = ?, revision = ?, "
            "rewrites = ?, last_active = max(last_active, ?) WHERE no = ?",
            (
                self.seq,
                self.message_count,
                self.tool_call_count,
                self.revision,
                self.rewrites,
                tx.now,
                self.no,
            ),
        )
        return self.head


def _open(tx: Tx, session_id: str) -> _State:
    """The counters of a session that may still be written to."""
    row = tx.one(
        "SELECT no, id, seq, message_count, tool_call_count, revision, rewrites, end_reason "
        "FROM sessions WHERE id = ?",
        session_id,
    )
    if row is None:
        raise UnknownSession(f"there is no session {session_id!r}")
    if row[7] is not None:
        raise SessionEnded(f"{session_id} has ended ({row[7]}) and takes no more messages")
    return _State(*row[:7])


def append_message(  # noqa: PLR0913 - the fields of a message
    tx: Tx,
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
    state = _open(tx, session_id)
    if platform_message_id is not None:
        twin = _find_platform_message(tx, state.no, platform_message_id)
        if twin is not None:
            return Appended(twin, state.head, duplicate=True)
    head = _add(tx, state, [message])
    return Appended(state.no * rows.SPAN + state.seq, head)


def append_messages(tx: Tx, session_id: str, messages: Sequence[Message]) -> Head:
    """Add the messages as one block; those whose platform message id is there are left out."""
    state = _open(tx, session_id)
    return _add(tx, state, fresh) if (fresh := _new(tx, state, messages)) else state.head


def _new(tx: Tx, state: _State, messages: Sequence[Message]) -> list[Message]:
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


def _find_platform_message(tx: Tx, no: int, platform_message_id: str) -> int | None:
    for table in ("messages", "arrivals"):
        live = " AND live = 1" if table == "messages" else ""
        sql = f"SELECT id FROM {table} WHERE id >> 32 = ? AND platform_message_id = ?{live}"
        if (row := tx.one(sql, no, platform_message_id)) is not None:
            return int(row[0])
    return None


def _add(tx: Tx, state: _State, messages: Sequence[Message]) -> Head:
    if state.seq + len(messages) >= rows.SPAN:
        raise StoreError(f"{state.session_id} is full")
    first = state.no * rows.SPAN + state.seq + 1
    values: list[tuple[Value, ...]] = [
        (
            first + place,
            message.role,
            rows.text_of(message),
            tx.now if message.timestamp is None else message.timestamp,
            message.platform_message_id,
            rows.extra_of(message),
        )
        for place, message in enumerate(messages)
    ]
    for row in values:
        tx.cursor.execute(_INSERT, row)
    tx.unindexed = True
    state.seq += len(values)
    state.message_count += len(values)
    state.tool_call_count += rows.tool_calls_in(messages)
    state.revision += 1
    return state.save(tx)


def _live(tx: Tx, no: int, first: int = 0) -> list[StoredMessage]:
    low, high = rows.bounds(no)
    stretch = (max(low, first), high)
    # Two queries and not the view: a merge of ten thousand rows would take as long as reading them.
    settled = tx.all(
        f"SELECT {rows.COLUMNS} FROM messages WHERE id BETWEEN ? AND ? AND live = 1 ORDER BY id",
        *stretch,
    )
    arrived = tx.all(
        f"SELECT {rows.COLUMNS} FROM arrivals WHERE id BETWEEN ? AND ? ORDER BY id", *stretch
    )
    return rows.to_messages(settled + arrived)


def load(tx: Tx, session_id: str) -> Transcript:
    """The live rows and their head; empty where the session has no row yet."""
    no = sessions.number(tx, session_id)
    messages = [] if no is None else _live(tx, no)
    return Transcript(sessions.head(tx, session_id), messages)


def get_messages(
    tx: Tx,
    session_id: str,
    *,
    include_rewound: bool = False,
    limit: int = -1,
    offset: int = 0,
) -> list[StoredMessage]:
    """Rows in order; a negative limit means all."""
    low, high = rows.bounds(sessions.require(tx, session_id))
    return rows.to_messages(
        tx.all(
            f"SELECT {rows.COLUMNS} FROM all_messages WHERE id BETWEEN ? AND ? "
            "AND (live = 1 OR ?) ORDER BY id LIMIT ? OFFSET ?",
            low,
            high,
            int(include_rewound),
            limit,
            offset,
        )
    )


def messages_after(tx: Tx, no: int, message_id: int) -> list[StoredMessage]:
    """The live rows that came after the given one."""
    return _live(tx, no, message_id + 1)


def _hide_from(tx: Tx, state: _State, first: int) -> list[StoredMessage]:
    """Take the live rows from `first` on out of view; the counters follow."""
    search.settle(tx, state.no)
    hidden = _live(tx, state.no, first)
    _, high = rows.bounds(state.no)
    tx.run("UPDATE messages SET live = 0 WHERE id BETWEEN ? AND ? AND live = 1", first, high)
    state.message_count -= len(hidden)
    state.tool_call_count -= rows.tool_calls_in(hidden)
    state.revision += 1
    state.rewrites += 1
    return hidden


def replace_messages(tx: Tx, session_id: str, messages: Sequence[Message]) -> Head:
    """Show these messages instead of the ones that are there; those stay in the file."""
    state = _open(tx, session_id)
    _hide_from(tx, state, rows.bounds(state.no)[0])
    return _add(tx, state, fresh) if (fresh := _new(tx, state, messages)) else state.save(tx)


def rewind(tx: Tx, session_id: str, message_id: int) -> list[StoredMessage]:
    """Take back the message and all after it; returns what was taken back."""
    state = _open(tx, session_id)
    _require_live(tx, state, message_id)
    hidden = _hide_from(tx, state, message_id)
    state.save(tx)
    return hidden


def edit_message(tx: Tx, session_id: str, message_id: int, content: str) -> Head:
    """Change a message's text: it and all after it are written anew, the old rows stay hidden."""
    state = _open(tx, session_id)
    _require_live(tx, state, message_id)
    edited, *rest = (rows.as_message(m) for m in _hide_from(tx, state, message_id))
    changed = Message(
        edited.role,
        content,
        edited.timestamp,
        edited.platform_message_id,
        **{name: getattr(edited, name) for name in _KEPT_BY_AN_EDIT},
    )
    return _add(tx, state, [changed, *rest])


_KEPT_BY_AN_EDIT = ("tool_calls", "tool_call_id", "tool_name", "finish_reason")


def _require_live(tx: Tx, state: _State, message_id: int) -> None:
    row = tx.one("SELECT id >> 32 FROM all_messages WHERE id = ? AND live = 1", message_id)
    if row is None or row[0] != state.no:
        raise StoreError(f"{state.session_id} has no message {message_id} that could be changed")


def copy_live(tx: Tx, source_no: int, target_id: str) -> Head:
    """Append every live row of one session to another, times and ids of the platform included."""
    return append_messages(tx, target_id, [rows.as_message(m) for m in _live(tx, source_no)])
