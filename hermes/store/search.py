"""Full text search: indexed behind the write path, and brought up to date before every search."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

import apsw

from hermes.messages import Hit
from hermes.store import rows
from hermes.store.transact import Work
from hermes.store.tx import Row, Tx

STEP = 256
"""Rows per indexing step: a few milliseconds of the writer's time."""
MAX_QUERY = 2048
_NEIGHBOUR = 200

_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u2fdf\u3040-\u30ff\u3100-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_OPEN, _SHUT = "\x02", "\x03"
_APART = re.compile(f" ({_OPEN}?{_CJK.pattern}{_SHUT}?) ")
_TERM = re.compile(r'"([^"]*)"|([^\s"()]+)')
_OPERATORS = {"AND", "OR", "NOT"}


def install(db: apsw.Connection) -> None:
    """Give the connection the function that the indexed text is made with."""
    flags = apsw.SQLITE_DETERMINISTIC | apsw.SQLITE_INNOCUOUS
    db.create_scalar_function("hermes_words", words, 1, flags=flags)  # type: ignore[arg-type]


def words(text: str | None) -> str | None:
    """The text with each character of a script without spaces as a word of its own."""
    if text is None or text.isascii():
        return text
    return _CJK.sub(r" \g<0> ", text)


def _readable(snippet: str) -> str:
    """A snippet of what `words` was given, with marks that can be seen."""
    text = snippet if snippet.isascii() else _APART.sub(r"\1", snippet)
    return text.replace(_OPEN, ">>>").replace(_SHUT, "<<<").strip()


def await_index(tx: Tx, no: int, indexed: int) -> None:
    """Note that the session has rows after `indexed` that the index lacks, unless that is noted."""
    tx.cursor.execute(_PENDING, (no, indexed))
    tx.unindexed = True


_PENDING = (
    "INSERT INTO search_pending (session_no, indexed) VALUES (?, ?) "
    "ON CONFLICT (session_no) DO NOTHING"
)


def index_step(tx: Tx, limit: int = STEP) -> int:
    """Index up to `limit` rows that wait; returns how many that were."""
    left = limit
    sql = "SELECT session_no, indexed FROM search_pending ORDER BY session_no LIMIT ?"
    for no, indexed in tx.all(sql, limit):
        left -= _index_session(tx, no, indexed, left)
        if left == 0:
            break
    return limit - left


def _index_session(tx: Tx, no: int, indexed: int, limit: int) -> int:
    low, high = rows.bounds(no)
    sql = "SELECT id FROM messages WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
    found = tx.all(sql, max(low, indexed + 1), high, limit)
    if found:
        tx.run(
            "INSERT INTO search (rowid, content, tools) "
            "SELECT id, content, tools FROM message_text WHERE id BETWEEN ? AND ?",
            found[0][0],
            found[-1][0],
        )
    if len(found) < limit:
        tx.run("DELETE FROM search_pending WHERE session_no = ?", no)
    else:
        sql = "UPDATE search_pending SET indexed = ? WHERE session_no = ?"
        tx.run(sql, found[-1][0], no)
    return len(found)


def unindexed(tx: Tx) -> int:
    """How many sessions have rows that wait to be indexed."""
    row = tx.one("SELECT count(*) FROM search_pending")
    assert row is not None
    return int(row[0])


def forget(tx: Tx, no: int) -> None:
    """Take a session's messages out of the index, before they are deleted from the file."""
    low, high = rows.bounds(no)
    row = tx.one("SELECT indexed FROM search_pending WHERE session_no = ?", no)
    tx.run(
        "INSERT INTO search (search, rowid, content, tools) "
        "SELECT 'delete', id, content, tools FROM message_text WHERE id BETWEEN ? AND ?",
        low,
        high if row is None else row[0],
    )
    tx.run("DELETE FROM search_pending WHERE session_no = ?", no)


def rebuild_search(tx: Tx) -> int:
    """Throw the index away and read it again from the messages; returns how many there are."""
    tx.run("INSERT INTO search (search) VALUES ('rebuild')")
    tx.run("DELETE FROM search_pending")
    row = tx.one("SELECT count(*) FROM messages")
    assert row is not None
    return int(row[0])


def check_search(tx: Tx) -> str | None:
    """What is wrong with the index, if anything; rows that wait are indexed first."""
    while index_step(tx):
        pass
    try:
        tx.run("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    except apsw.CorruptError as error:
        return f"the search index does not match the messages: {error}"
    return None


def to_fts(query: str) -> str | None:
    """The query in FTS5's own syntax, whatever was typed; None where no word is left.

    Quoted phrases, AND, OR, NOT and a trailing * are understood; everything else is a word.
    """
    parts: list[str] = []
    joiner = ""
    for phrase, word in _TERM.findall(query[:MAX_QUERY]):
        if word in _OPERATORS:
            joiner = word
            continue
        term = _term(phrase or word.rstrip("*"), prefix=not phrase and word.endswith("*"))
        if term is None:
            continue
        if parts:
            parts.append(joiner or "AND")
        parts.append(term)
        joiner = ""
    return " ".join(parts) or None


def _term(text: str, *, prefix: bool) -> str | None:
    plain = words(text.replace("\x00", " ").encode(errors="ignore").decode())
    if plain is None or not any(character.isalnum() for character in plain):
        return None
    return f'"{plain}"' + (" *" if prefix else "")


def search_messages(  # noqa: PLR0913 - the filters of a search
    tx: Tx,
    query: str,
    *,
    source: str | None = None,
    role: str | None = None,
    session_ids: Sequence[str] | None = None,
    after: float | None = None,
    before: float | None = None,
    newest_first: bool = False,
    limit: int = 20,
    offset: int = 0,
) -> list[Hit]:
    """Live messages that match, best first, with a snippet and their neighbours."""
    expression = to_fts(query)
    if expression is None:
        return []
    filters = {
        "s.source = ?": source,
        "m.role = ?": role,
        "m.created_at >= ?": after,
        "m.created_at < ?": before,
    }
    given = {sql: value for sql, value in filters.items() if value is not None}
    if session_ids is not None:
        given["s.id IN (SELECT value FROM json_each(?))"] = rows.encode_json(list(session_ids))
    found = tx.all(
        "SELECT m.id, s.id, m.role, snippet(search, -1, char(2), char(3), '…', 40), m.created_at, "
        "s.source, s.title FROM search JOIN messages m ON m.id = search.rowid "
        "JOIN sessions s ON s.no = m.id >> 32 WHERE search MATCH ? AND m.live = 1"
        + "".join(f" AND {sql}" for sql in given)
        + f" ORDER BY {'m.created_at DESC, m.id DESC' if newest_first else 'rank, m.id DESC'}"
        " LIMIT ? OFFSET ?",
        expression,
        *given.values(),
        limit,
        offset,
    )
    return [_hit(tx, row) for row in found]


def _hit(tx: Tx, row: Row) -> Hit:
    message_id, session_id, role, snippet, at, source, title = row
    low, high = rows.bounds(message_id // rows.SPAN)
    return Hit(
        message_id=message_id,
        session_id=session_id,
        role=role,
        snippet=_readable(snippet or ""),
        timestamp=at,
        source=source,
        title=title,
        before=_neighbour(tx, "DESC", low, message_id - 1),
        after=_neighbour(tx, "ASC", message_id + 1, high),
    )


def _neighbour(tx: Tx, order: str, low: int, high: int) -> str | None:
    row = tx.one(
        f"SELECT substr(coalesce(content, ''), 1, {_NEIGHBOUR}) FROM messages "
        f"WHERE id BETWEEN ? AND ? AND live = 1 ORDER BY id {order} LIMIT 1",
        low,
        high,
    )
    return None if row is None else row[0]


def index_pending() -> Generator[Work[int], int, None]:
    """Index every message that the full text index lacks, in bounded steps."""
    while (yield index_step):
        pass
