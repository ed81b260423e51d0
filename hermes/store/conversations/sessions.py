"""Session rows: create, read, end and reopen sessions."""

from __future__ import annotations

import time

import msgspec

from hermes.errors import HasContinuation, StoreError, UnknownSession
from hermes.messages import Head, JsonObject, Session, SessionKind
from hermes.sanitize import encodable, scrub
from hermes.store.conversations import codec, lineage, titles
from hermes.store.transaction import Row, Transaction
from hermes.transcript.validate import check_depth

MAX_ID = 200
ACCIDENTAL_ENDS = ("agent_close", "ws_orphan_reap")
"""End reasons that no user asked for: such a session may be reopened, or reset."""

# A compression child of a subagent's session keeps its kind: it continues a lineage.
_KIND = "CASE WHEN s.subagent = 1 AND s.kind <> 'compression' THEN 'subagent' ELSE s.kind END"
_COLUMNS = (
    f"s.id, s.source, {_KIND}, p.id, s.title, s.model, s.user_id, s.session_key, s.chat_id, "
    "s.chat_type, s.thread_id, s.cwd, s.profile, s.started_at, s.ended_at, s.end_reason, "
    "s.last_active, s.message_count, s.tool_call_count, s.revision, s.rewrites, "
    "s.api_call_count, s.input_tokens, s.output_tokens, s.cache_read_tokens, "
    "s.cache_write_tokens, s.reasoning_tokens, s.cost, s.archived_at, x.system_prompt, "
    "x.model_config"
)
INHERIT_MARKS = (
    "UPDATE sessions AS s SET subagent = p.subagent, archived_at = p.archived_at "
    "FROM sessions p WHERE s.no = ? AND p.no = s.parent_no"
)
"""SQL: a compression child belongs to a subagent, or is archived, if its parent is."""
SELECT = (
    f"SELECT {_COLUMNS} FROM sessions s LEFT JOIN sessions p ON p.no = s.parent_no "
    "LEFT JOIN session_texts x ON x.session_no = s.no "
)


def from_row(row: Row) -> Session:
    """Return the `Session` for a row of `SELECT`."""
    *columns, model_config = row
    names = _FIELDS[: len(columns)]
    config = None if model_config is None else msgspec.json.decode(model_config)
    return Session(**dict(zip(names, columns, strict=True)), model_config=config)


_FIELDS = Session.__struct_fields__


def number(tx: Transaction, session_id: str) -> int | None:
    """Return the number of a session, which its message ids contain; None if there is no row."""
    row = tx.one("SELECT no FROM sessions WHERE id = ?", session_id)
    return None if row is None else int(row[0])


def require(tx: Transaction, session_id: str) -> int:
    """Return the number of a session, or raise `UnknownSession`."""
    no = number(tx, session_id)
    if no is None:
        raise UnknownSession(f"there is no session {session_id!r}")
    return no


def get_session(tx: Transaction, session_id: str) -> Session | None:
    """Return the session with exactly this id, or None."""
    row = tx.one(SELECT + "WHERE s.id = ?", session_id)
    return None if row is None else from_row(row)


def head(tx: Transaction, session_id: str) -> Head:
    """Return the head of a session; all counters are 0 if it has no row yet."""
    row = tx.one("SELECT message_count, revision, rewrites FROM sessions WHERE id = ?", session_id)
    return Head(session_id) if row is None else Head(session_id, *row)


def create_session(  # noqa: PLR0913 - the columns of a session
    tx: Transaction,
    session_id: str | None = None,
    source: str = "unknown",
    *,
    parent_session_id: str | None = None,
    kind: SessionKind | None = None,
    model: str | None = None,
    model_config: JsonObject | None = None,
    system_prompt: str | None = None,
    user_id: str | None = None,
    session_key: str | None = None,
    chat_id: str | None = None,
    chat_type: str | None = None,
    thread_id: str | None = None,
    cwd: str | None = None,
    profile: str | None = None,
    started_at: float | None = None,
) -> str:
    """Create a session, or fill in the missing fields of an existing one. Return its id.

    Without `kind`, the first child of a session that ended by compression becomes its compression
    child; any other child is a branch. A session of the kind "subagent" is hidden from lists by
    default and deleted together with its parent.

    Raises `UnknownSession` if there is no such parent, and `HasContinuation` for a second
    compression child.
    """
    session_id = tx.new_session_id() if session_id is None else require_id(session_id)
    fields: dict[str, str | None] = {
        "model": model,
        "user_id": user_id,
        "session_key": session_key,
        "chat_id": chat_id,
        "chat_type": chat_type,
        "thread_id": thread_id,
        "cwd": cwd,
        "profile": profile,
    }
    parent_no = None if parent_session_id is None else require(tx, parent_session_id)
    no = number(tx, session_id)
    if no is None:
        kind = kind or _kind_of_child(tx, parent_no)
        _check_continuation(tx, parent_session_id, parent_no, kind)
        no = _insert(tx, session_id, source, kind, parent_no, started_at, fields)
    else:
        _fill_missing(tx, no, session_id, parent_session_id, parent_no, fields)
    _set_missing_texts(tx, no, system_prompt, model_config)
    return session_id


def ensure_session(tx: Transaction, session_id: str, source: str = "unknown") -> str:
    """Create the session if it does not exist. Return its id."""
    return create_session(tx, session_id, source)


def require_id(session_id: str) -> str:
    """Return the id, or raise `ValueError` if it is not a valid one."""
    if not 0 < len(session_id) <= MAX_ID or not session_id.isprintable():
        raise ValueError(f"a session id is 1 to {MAX_ID} printable characters: {session_id[:50]!r}")
    return session_id


def _kind_of_child(tx: Transaction, parent_no: int | None) -> SessionKind:
    if parent_no is None:
        return "new"
    row = tx.one("SELECT end_reason FROM sessions WHERE no = ?", parent_no)
    compressed = row is not None and row[0] == "compression"
    first = lineage.compression_child(tx, parent_no) is None
    return "compression" if compressed and first else "branch"


def _check_continuation(
    tx: Transaction, parent_session_id: str | None, parent_no: int | None, kind: SessionKind
) -> None:
    """Raise unless a compression child of this parent may be created."""
    if kind != "compression":
        return
    if parent_no is None:
        raise StoreError("a compression child needs its parent_session_id")
    row = tx.one("SELECT end_reason FROM sessions WHERE no = ?", parent_no)
    if row is None or row[0] != "compression":
        raise StoreError(f"{parent_session_id} has not ended by compression")
    if (other := lineage.compression_child(tx, parent_no)) is not None:
        raise HasContinuation(f"{parent_session_id} already continues in {other[1]}")


def _insert(  # noqa: PLR0913, PLR0917
    tx: Transaction,
    session_id: str,
    source: str,
    kind: SessionKind,
    parent_no: int | None,
    started_at: float | None,
    fields: dict[str, str | None],
) -> int:
    start = tx.now if started_at is None else started_at
    no = tx.insert(
        "INSERT INTO sessions (id, source, kind, parent_no, started_at, last_active, subagent, "
        f"{', '.join(fields)}) VALUES (?, ?, ?, ?, ?, ?, ?{', ?' * len(fields)})",
        session_id,
        source,
        stored_kind(kind),
        parent_no,
        start,
        start,
        int(kind == "subagent"),
        *fields.values(),
    )
    if kind == "compression":
        tx.run(INHERIT_MARKS, no)
        lineage.inherit_keys(tx, no)
    return no


def stored_kind(kind: SessionKind) -> str:
    """Return the value of the column `kind`; sessions of subagents have a column of their own."""
    return "import" if kind == "subagent" else kind


def _fill_missing(
    tx: Transaction,
    no: int,
    session_id: str,
    parent_session_id: str | None,
    parent_no: int | None,
    fields: dict[str, str | None],
) -> None:
    given = {name: value for name, value in fields.items() if value is not None}
    if fields["session_key"] is not None:
        titles.move_title(tx, no, fields["session_key"])
    if given:
        sets = ", ".join(f"{name} = coalesce({name}, ?)" for name in given)
        tx.run(f"UPDATE sessions SET {sets} WHERE no = ?", *given.values(), no)
    if parent_no is None:
        return
    if parent_no >= no:
        raise StoreError(
            f"{parent_session_id} is not older than {session_id}, so it cannot be its parent"
        )
    changed = tx.one(
        "UPDATE sessions SET parent_no = ?, kind = CASE WHEN kind = 'new' THEN ? ELSE kind END "
        "WHERE no = ? AND parent_no IS NULL RETURNING kind",
        parent_no,
        _kind_of_child(tx, parent_no),
        no,
    )
    if changed == ("compression",):
        tx.run(INHERIT_MARKS, no)
        titles.share_with_keys_of(tx, parent_no, session_id)


def _set_missing_texts(
    tx: Transaction, no: int, system_prompt: str | None, model_config: JsonObject | None
) -> None:
    check_depth(model_config)
    config = codec.encode_json(encodable(model_config)) if model_config else None
    if system_prompt is None and config is None:
        return
    tx.run(
        "INSERT INTO session_texts (session_no, system_prompt, model_config) VALUES (?, ?, ?) "
        "ON CONFLICT (session_no) DO UPDATE SET "
        "system_prompt = coalesce(session_texts.system_prompt, excluded.system_prompt), "
        "model_config = coalesce(session_texts.model_config, excluded.model_config)",
        no,
        None if system_prompt is None else scrub(system_prompt),
        config,
    )


def set_system_prompt(tx: Transaction, session_id: str, system_prompt: str) -> None:
    """Replace the system prompt of a session. Raises `UnknownSession`."""
    tx.run(
        "INSERT INTO session_texts (session_no, system_prompt) VALUES (?, ?) "
        "ON CONFLICT (session_no) DO UPDATE SET system_prompt = excluded.system_prompt",
        require(tx, session_id),
        scrub(system_prompt),
    )


def end_session(tx: Transaction, session_id: str, reason: str) -> bool:
    """End a session. Return False if it has ended already or does not exist.

    The first reason is kept.
    """
    sql = "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ? AND ended_at IS NULL"
    return tx.run(sql, tx.now, reason, session_id) == 1


def promote_to_session_reset(
    tx: Transaction, session_id: str, reason: str = "session_reset"
) -> bool:
    """End a session, even if it has ended by accident. Return whether that changed anything."""
    sql = (
        "UPDATE sessions SET ended_at = ?, end_reason = ? "
        "WHERE id = ? AND (ended_at IS NULL OR end_reason IN (?, ?))"
    )
    return tx.run(sql, tx.now, reason, session_id, *ACCIDENTAL_ENDS) == 1


def reopen_session(tx: Transaction, session_id: str) -> None:
    """Reopen an ended session.

    Raises `UnknownSession`, and `HasContinuation` if it has a compression child.
    """
    tx.lock_session(session_id)
    no = require(tx, session_id)
    if lineage.compression_child(tx, no) is not None:
        tip = lineage.get_compression_tip(tx, session_id)
        raise HasContinuation(f"{session_id} continues in {tip}; reopen or resume that session")
    tx.run("UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE no = ?", no)


def archive_session(tx: Transaction, session_id: str, *, session_key: str | None = None) -> None:
    """Hide a conversation from lists: the session and all others of its lineage.

    Nothing is ended or deleted, and messages are answered as before. Raises `UnknownSession`, also
    if the session does not belong to `session_key`.
    """
    _set_archived(tx, session_id, session_key, tx.now)


def unarchive_session(tx: Transaction, session_id: str, *, session_key: str | None = None) -> None:
    """List a conversation again. Raises `UnknownSession`, as `archive_session` does."""
    _set_archived(tx, session_id, session_key, None)


def _set_archived(
    tx: Transaction, session_id: str, session_key: str | None, at: float | None
) -> None:
    if lineage.with_id(tx, session_id, session_key) is None:
        raise UnknownSession(f"there is no session {session_id!r}")
    for each in lineage.get_compression_lineage(tx, session_id):
        tx.run("UPDATE sessions SET archived_at = ? WHERE id = ?", at, each)


# Sessions that their key left before they got a row. A client may know the id of such a session, so
# it is kept in `meta` for as long as a receipt, and still leads to the conversation.


def record_left(tx: Transaction, session_key: str) -> None:
    """Record that a key is about to leave its session, if that has no row."""
    tx.run(
        "INSERT INTO meta (key, value) SELECT 'left:' || session_id, session_key "
        "FROM routes r WHERE session_key = ? "
        "AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = r.session_id) "
        "ON CONFLICT (key) DO NOTHING",
        session_key,
    )


def left_by(tx: Transaction, session_id: str) -> str | None:
    """Return the key that has left this session, which has no row."""
    row = tx.one("SELECT value FROM meta WHERE key = ?", f"left:{session_id}")
    return None if row is None else str(row[0])


def forget_left(tx: Transaction, before: float) -> None:
    """Forget the sessions without a row whose id was made before this time."""
    # `Transaction.new_session_id` made all of these ids. They begin with their time.
    made = time.strftime("%Y%m%d_%H%M%S_", time.gmtime(before))
    tx.run("DELETE FROM meta WHERE key > 'left:' AND key < ?", f"left:{made}")
