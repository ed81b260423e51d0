"""Full text search: indexed behind the write path, and brought up to date before every search."""

from __future__ import annotations

import functools
import re
from collections.abc import Generator, Sequence

import apsw
import msgspec

from hermes.messages import SUMMARY, SearchHit
from hermes.store.conversations import codec
from hermes.store.transaction import Row, Transaction, Work

STEP = 1000
"""Rows per indexing step: some ten milliseconds of the writer's time."""
MAX_QUERY = 2048
_NEIGHBOUR = 200

_CJK = (
    "[\u1100-\u11ff\u2e80-\u2fdf\u3040-\u30ff\u3100-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_OPEN, _SHUT = "\x02", "\x03"
MAX_TERMS = 60
_TERM = re.compile(r'"([^"]*)"|([^\s"()]+)')
# A foreign hand may have written what is no JSON.
_NO_SUMMARY = (
    "(m.extra IS NULL OR NOT json_valid(m.extra) OR m.extra ->> '$.provider_data.hermes' IS NOT ?)"
)
_OPERATORS = {"AND", "OR", "NOT"}


# Compiled when they are first needed: that takes some milliseconds, which an import need not.
@functools.cache
def _cjk() -> re.Pattern[str]:
    return re.compile(_CJK)


@functools.cache
def _apart() -> re.Pattern[str]:
    return re.compile(f" ?({_OPEN}?{_CJK}{_SHUT}?) ?")


def install(db: apsw.Connection) -> None:
    """Give the connection the functions that the indexed text is made with."""
    flags = apsw.SQLITE_DETERMINISTIC | apsw.SQLITE_INNOCUOUS
    db.create_scalar_function("hermes_words", words, 1, flags=flags)  # type: ignore[arg-type]
    db.create_scalar_function("hermes_tools", tools, 1, flags=flags)  # type: ignore[arg-type]


def words(text: str | None) -> str | None:
    """The text with each character of a script without spaces as a word of its own."""
    if text is None or text.isascii():
        return text
    return _cjk().sub(r" \g<0> ", text)


def tools(extra: str | None) -> str | None:
    """What a search finds of a message's tools: their names, and the texts in their arguments."""
    if extra is None:
        return None
    try:
        message = codec.decode_extra(extra)
    except msgspec.MsgspecError:  # a foreign hand wrote it: the rest of the index must not suffer
        return None
    found = [message.tool_name] if message.tool_name else []
    for call in message.tool_calls:
        found += [call.name, *_texts_in(call.arguments)]
    return words(" ".join(found)) or None


def _texts_in(arguments: str) -> list[str]:
    # Decided by the text alone: what is indexed must come out the same whenever it is made.
    if codec.is_deep(arguments):
        return [arguments]
    try:
        waiting = [msgspec.json.decode(arguments)]
    except msgspec.DecodeError:
        return [arguments]
    found = []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value.values(), *value.keys()]
        elif isinstance(value, list):
            waiting += reversed(value)
        else:
            found.append(str(value))
    return found


def _readable(snippet: str) -> str:
    """A snippet of what `words` was given, with marks that can be seen."""
    text = snippet if snippet.isascii() else _apart().sub(r"\1", snippet)
    return text.replace(_OPEN, ">>>").replace(_SHUT, "<<<").strip()


def index_step(tx: Transaction, limit: int = STEP) -> int:
    """Move up to `limit` arrivals to their places, and into the index; returns how many."""
    sql = "SELECT id FROM arrivals ORDER BY id LIMIT ?"
    found = tx.all(sql, limit)
    if found:
        _settle(tx, found[0][0], found[-1][0])
    return len(found)


def settle(tx: Transaction, no: int) -> None:
    """Move a session's arrivals to their places, before its rows are changed."""
    low, high = codec.bounds(no)
    if tx.one("SELECT 1 FROM arrivals WHERE id BETWEEN ? AND ?", low, high) is not None:
        _settle(tx, low, high)


def _settle(tx: Transaction, first: int, last: int) -> None:
    tx.run(
        "INSERT INTO messages (id, role, content, created_at, platform_message_id, extra) "
        "SELECT id, role, content, created_at, platform_message_id, extra FROM arrivals "
        "WHERE id BETWEEN ? AND ? ORDER BY id",
        first,
        last,
    )
    tx.run(
        "INSERT INTO search (rowid, content, tools) SELECT id, content, tools FROM message_text "
        "WHERE id IN (SELECT id FROM arrivals WHERE id BETWEEN ? AND ?)",
        first,
        last,
    )
    tx.run("DELETE FROM arrivals WHERE id BETWEEN ? AND ?", first, last)


def unindexed(tx: Transaction) -> bool:
    """Whether messages wait to be indexed."""
    return tx.one("SELECT 1 FROM arrivals") is not None


def index_imported(tx: Transaction, first: int, last: int) -> None:
    """Index rows that were written to their places at once."""
    tx.run(
        "INSERT INTO search (rowid, content, tools) "
        "SELECT id, content, tools FROM message_text WHERE id BETWEEN ? AND ?",
        first,
        last,
    )


def forget(tx: Transaction, no: int) -> None:
    """Take a session's messages out of the index, before they are deleted from the file."""
    tx.run(
        "INSERT INTO search (search, rowid, content, tools) "
        "SELECT 'delete', id, content, tools FROM message_text WHERE id BETWEEN ? AND ?",
        *codec.bounds(no),
    )


def rebuild_search(tx: Transaction) -> int:
    """Throw the index away and read it again from the messages; returns how many there are."""
    while index_step(tx):
        pass
    tx.run("INSERT INTO search (search) VALUES ('rebuild')")
    row = tx.one("SELECT count(*) FROM messages")
    assert row is not None
    return int(row[0])


def check_search(tx: Transaction) -> str | None:
    """What is wrong with the index, if anything."""
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
        if len(parts) >= 2 * MAX_TERMS:
            break
    return " ".join(parts) or None


def _term(text: str, *, prefix: bool) -> str | None:
    plain = words(text.replace("\x00", " ").encode(errors="ignore").decode())
    if plain is None or not any(character.isalnum() for character in plain):
        return None
    return f'"{plain}"' + (" *" if prefix else "")


def search_messages(  # noqa: PLR0913 - the filters of a search
    tx: Transaction,
    query: str,
    *,
    source: str | None = None,
    role: str | None = None,
    session_key: str | None = None,
    session_ids: Sequence[str] | None = None,
    after: float | None = None,
    before: float | None = None,
    newest_first: bool = False,
    limit: int = 20,
    offset: int = 0,
) -> list[SearchHit]:
    """Live messages that match, best first, with a snippet and their neighbours.

    The summary of a compression is no user's, though it is kept as such: not with `role="user"`.
    """
    expression = to_fts(query)
    if expression is None:
        return []
    filters = {
        "s.source = ?": source,
        "m.role = ?": role,
        "s.session_key = ?": session_key,
        "m.created_at >= ?": after,
        "m.created_at < ?": before,
    }
    given = {sql: value for sql, value in filters.items() if value is not None}
    if role == "user":
        given[_NO_SUMMARY] = SUMMARY
    if session_ids is not None:
        given["s.id IN (SELECT value FROM json_each(?))"] = codec.encode_whole(list(session_ids))
    found = tx.all(
        "SELECT m.id, s.id, m.role, m.created_at, s.source, s.title FROM search "
        "JOIN messages m ON m.id = search.rowid JOIN sessions s ON s.no = m.id >> 32 "
        "WHERE search MATCH ? AND m.live = 1"
        + "".join(f" AND {sql}" for sql in given)
        + f" ORDER BY {'m.created_at DESC, m.id DESC' if newest_first else 'rank, m.id DESC'}"
        " LIMIT ? OFFSET ?",
        expression,
        *given.values(),
        limit,
        offset,
    )
    return [_hit(tx, expression, row) for row in found]


def _hit(tx: Transaction, expression: str, row: Row) -> SearchHit:
    message_id, session_id, role, at, source, title = row
    # Only for what is shown: a snippet of every match would cost ten times the search.
    sql = "SELECT snippet(search, -1, char(2), char(3), '…', 40) FROM search "
    snippet = tx.one(sql + "WHERE search MATCH ? AND rowid = ?", expression, message_id)
    low, high = codec.bounds(message_id // codec.SPAN)
    return SearchHit(
        message_id=message_id,
        session_id=session_id,
        role=role,
        snippet=_readable("" if snippet is None else snippet[0] or ""),
        timestamp=at,
        source=source,
        title=title,
        before=_neighbour(tx, "DESC", low, message_id - 1),
        after=_neighbour(tx, "ASC", message_id + 1, high),
    )


def _neighbour(tx: Transaction, order: str, low: int, high: int) -> str | None:
    row = tx.one(
        f"SELECT substr(coalesce(content, ''), 1, {_NEIGHBOUR}) FROM messages "
        f"WHERE id BETWEEN ? AND ? AND live = 1 ORDER BY id {order} LIMIT 1",
        low,
        high,
    )
    return None if row is None else row[0]


def index_pending() -> Generator[Work[int], int, None]:
    """Index every message that the full text index lacks, in bounded steps."""
    while (yield index_step) == STEP:
        pass
