"""The search index on SQLite: two FTS5 tables. `transaction.SearchIndex` says what it can do."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Final

import apsw
import msgspec

from hermes.errors import StoreError
from hermes.store.conversations import codec
from hermes.store.conversations.search import SEARCHED
from hermes.store.sqlite import word_forms
from hermes.store.transaction import Row, Search, Transaction

log: Final = logging.getLogger(__name__)

STEP = 1000
"""Rows per indexing step, which takes the writer about ten milliseconds."""
MAX_QUERY = 2048

_CJK = (
    "[\u1100-\u11ff\u2e80-\u2fdf\u3040-\u30ff\u3100-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_MARK_START, _MARK_END = "\x02", "\x03"
MAX_TERMS = 60
MAX_PREFIXES, MIN_PREFIX = 4, 2
"""How many terms of a query may end with *, after how many characters: each reads many words."""
_PROGRESS_STEPS = 10_000
"""SQLite instructions between two looks at the clock."""
_LAST_WORD = re.compile(r"[^\W_]*$")
_TERM = re.compile(r'"([^"]*)"|([^\s"()]+)')
# Another program may have written invalid JSON.
NO_SUMMARY: str = (
    "(m.extra IS NULL OR NOT json_valid(m.extra) OR m.extra ->> '$.provider_data.hermes' IS NOT ?)"
)
_OPERATORS = {"AND", "OR", "NOT"}


# Compiled on first use: it takes some milliseconds, which would slow down every import.
@functools.cache
def _cjk() -> re.Pattern[str]:
    return re.compile(_CJK)


@functools.cache
def _spaced_cjk() -> re.Pattern[str]:
    return re.compile(f" ?({_MARK_START}?{_CJK}{_MARK_END}?) ?")


def install(db: apsw.Connection) -> None:
    """Register the SQL functions that compute the indexed text."""
    flags = apsw.SQLITE_DETERMINISTIC | apsw.SQLITE_INNOCUOUS
    db.create_scalar_function("hermes_words", indexed_text, 1, flags=flags)  # type: ignore[arg-type]
    db.create_scalar_function("hermes_tools", indexed_tools, 1, flags=flags)  # type: ignore[arg-type]


has_all_forms: Callable[[Transaction], bool] = word_forms.is_complete
forms_left: Callable[[Transaction], int] = word_forms.remaining
forms_step: Callable[[Transaction], int] = word_forms.add_step


def indexed_text(text: str | None) -> str | None:
    """Return the text with every CJK character as a word of its own.

    These scripts do not separate words, and the tokenizer would index a whole run as one word.
    """
    if text is None or text.isascii():
        return text
    return _cjk().sub(r" \g<0> ", text)


def indexed_tools(extra: str | None) -> str | None:
    """Return the searchable text of a message's tool calls: names and values of arguments."""
    if extra is None:
        return None
    try:
        message = codec.decode_extra(extra)
    except msgspec.MsgspecError:  # written by another program; index the rest of the message
        return None
    texts = [message.tool_name] if message.tool_name else []
    for call in message.tool_calls:
        texts += [call.name, *_argument_texts(call.arguments)]
    return indexed_text(" ".join(texts)) or None


def _argument_texts(arguments: str) -> list[str]:
    # A function of the text alone: deleting from the index needs the same words again.
    if codec.is_too_deep(arguments):
        return [arguments]
    try:
        stack = [msgspec.json.decode(arguments)]
    except msgspec.DecodeError:
        return [arguments]
    texts = []
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += [*value.values(), *value.keys()]
        elif isinstance(value, list):
            stack += reversed(value)
        else:
            texts.append(str(value))
    return texts


def format_snippet(snippet: str) -> str:
    """Undo the spacing of `indexed_text`, and mark matches visibly."""
    text = snippet if snippet.isascii() else _spaced_cjk().sub(r"\1", snippet)
    return text.replace(_MARK_START, ">>>").replace(_MARK_END, "<<<").strip()


def index_step(tx: Transaction) -> bool:
    """Index some messages. Return whether more may wait."""
    return index_some(tx) == STEP


def index_some(tx: Transaction, limit: int = STEP) -> int:
    """Move up to `limit` arrivals into `messages` and the index. Return how many."""
    rows = tx.all("SELECT id FROM arrivals ORDER BY id LIMIT ?", limit)
    if rows:
        _index_arrivals(tx, rows[0][0], rows[-1][0])
    return len(rows)


def index_session(tx: Transaction, no: int) -> None:
    """Move the arrivals of a session into `messages` and the index, before rows are changed."""
    low, high = codec.bounds(no)
    if tx.one("SELECT 1 FROM arrivals WHERE id BETWEEN ? AND ?", low, high) is not None:
        _index_arrivals(tx, low, high)


def _index_arrivals(tx: Transaction, first: int, last: int) -> None:
    """Move arrivals into `messages` and the index; invalid UTF-8 in them is replaced."""
    try:  # before anything is written: FTS5 does not count rows right after a failed statement
        tx.all("SELECT content, extra FROM arrivals WHERE id BETWEEN ? AND ?", first, last)
    except UnicodeDecodeError:
        _replace_invalid_texts(tx, first, last)
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
    word_forms.add(tx, "id IN (SELECT id FROM arrivals WHERE id BETWEEN ? AND ?)", first, last)
    tx.run("DELETE FROM arrivals WHERE id BETWEEN ? AND ?", first, last)


def _replace_invalid_texts(tx: Transaction, first: int, last: int) -> None:
    """Replace invalid UTF-8 in messages that are not indexed yet.

    Another program wrote it, or the file is damaged.
    """
    for number, *stored in tx.all(
        "SELECT id, CAST(content AS BLOB), CAST(extra AS BLOB) FROM arrivals "
        "WHERE id BETWEEN ? AND ?",
        first,
        last,
    ):
        texts = [None if each is None else each.decode(errors="replace") for each in stored]
        if [None if each is None else each.encode() for each in texts] != stored:
            log.warning("message %d was not valid UTF-8; the invalid bytes are replaced", number)
            sql = "UPDATE arrivals SET content = ?, extra = ? WHERE id = ?"
            tx.run(sql, *texts, number)


def background_step(tx: Transaction) -> bool:
    """Index new messages or, if there are none, word forms of old ones. Return if more wait."""
    count = index_some(tx)
    if count:
        return count == STEP or not has_all_forms(tx)
    return forms_step(tx) > 0


def background_work_left(tx: Transaction) -> bool:
    """Return whether there is something to do for `background_step`."""
    return unindexed(tx) or not has_all_forms(tx)


def unindexed(tx: Transaction) -> bool:
    """Return whether there are messages that are not indexed yet."""
    return tx.one("SELECT 1 FROM arrivals") is not None


def count_unindexed(tx: Transaction) -> int:
    """Return how many messages are not indexed yet."""
    count: int = tx.all("SELECT count(*) FROM arrivals")[0][0]
    return count


def index_imported(tx: Transaction, first: int, last: int) -> None:
    """Index rows that were inserted directly into `messages`."""
    tx.run(
        "INSERT INTO search (rowid, content, tools) "
        "SELECT id, content, tools FROM message_text WHERE id BETWEEN ? AND ?",
        first,
        last,
    )
    word_forms.add(tx, "id BETWEEN ? AND ?", first, last)


def remove_session(tx: Transaction, no: int) -> None:
    """Remove a session from the index, before its messages are deleted."""
    tx.run(
        "INSERT INTO search (search, rowid, content, tools) "
        "SELECT 'delete', id, content, tools FROM message_text WHERE id BETWEEN ? AND ?",
        *codec.bounds(no),
    )
    word_forms.remove(tx, *codec.bounds(no))


def rebuild(tx: Transaction) -> int:
    """Rebuild the index from the messages. Return how many there are."""
    while index_some(tx):
        pass
    tx.run("INSERT INTO search (search) VALUES ('rebuild')")
    word_forms.rebuild(tx)
    row = tx.one("SELECT count(*) FROM messages")
    assert row is not None
    return int(row[0])


def check(tx: Transaction) -> str | None:
    """Return a description of the problem if the index is damaged, else None."""
    try:
        tx.run("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
        word_forms.check(tx)
    except apsw.CorruptError as error:
        return f"the search index does not match the messages: {error}"
    return None


def refresh(tx: Transaction) -> None:
    """Let FTS5 forget what it knows of the index from earlier transactions.

    It notices that another connection has written when a cursor is opened, but not in `PRAGMA
    integrity_check`, which would report segments that were merged meanwhile as damage.
    """
    for index in ("search", "stems"):
        with contextlib.suppress(apsw.CorruptError):  # the check itself reports it
            tx.one(f"SELECT rowid FROM {index} LIMIT 1")


def is_damaged_index(error: BaseException | None) -> bool:
    """Return whether only the search index is damaged, not the database."""
    code = vars(error).get("extendedresult") if isinstance(error, apsw.CorruptError) else None
    return code == apsw.SQLITE_CORRUPT_VTAB


def to_fts(query: str) -> str | None:
    """Return the query in the syntax of FTS5, or None if it contains no word.

    Quoted phrases, AND, OR, NOT and a trailing * are operators; anything else is a word, so no
    query is invalid. A * after a single letter is ignored, and so are those after `MAX_PREFIXES`.
    """
    parts: list[str] = []
    joiner, prefixes = "", 0
    for phrase, word in _TERM.findall(query[:MAX_QUERY]):
        if word in _OPERATORS:
            joiner = word
            continue
        prefix = not phrase and word.endswith("*") and prefixes < MAX_PREFIXES
        term = _term(phrase or word.rstrip("*"), prefix=prefix)
        if term is None:
            continue
        prefixes += term.endswith("*")
        if parts:
            parts.append(joiner or "AND")
        parts.append(term)
        joiner = ""
        if len(parts) >= 2 * MAX_TERMS:
            break
    return " ".join(parts) or None


def is_exact(query: str) -> bool:
    """Return whether a query has a phrase or a prefix, whose words must match as they are."""
    return any(phrase or word.endswith("*") for phrase, word in _TERM.findall(query[:MAX_QUERY]))


def _term(text: str, *, prefix: bool) -> str | None:
    plain = indexed_text(text.replace("\x00", " ").encode(errors="ignore").decode())
    if plain is None or not any(character.isalnum() for character in plain):
        return None
    long_enough = len(_LAST_WORD.findall(plain)[0]) >= MIN_PREFIX
    return f'"{plain}"' + (" *" if prefix and long_enough else "")


@contextlib.contextmanager
def _limited(tx: Transaction, seconds: float) -> Iterator[None]:
    """Interrupt SQL that runs for longer than this; no other search would get its turn."""
    assert isinstance(tx.db, apsw.Connection)
    end = time.monotonic() + seconds
    tx.db.set_progress_handler(lambda: time.monotonic() > end, _PROGRESS_STEPS, id=_limited)
    try:
        yield
    except apsw.InterruptError as error:
        text = f"the search took longer than {seconds:g} s; use words that are less common"
        raise StoreError(text) from error
    finally:
        tx.db.set_progress_handler(None, id=_limited)


def find(tx: Transaction, search: Search) -> list[Row]:
    """Return the messages that match, best first; see `SearchIndex.find`.

    Words match in every form ("heron" finds "herons"), unless the query has a phrase or a prefix.
    """
    expression = to_fts(search.query)
    if expression is None:
        return []
    index = "search" if is_exact(search.query) or not has_all_forms(tx) else "stems"
    with _limited(tx, search.timeout):
        return _find(tx, index, expression, search)


def _find(tx: Transaction, index: str, expression: str, search: Search) -> list[Row]:
    newest = "m.created_at DESC, m.id DESC"
    rows = tx.all(
        "SELECT m.id, s.id, m.role, m.created_at, s.source, s.title, m.compacted, s.subagent "
        f"FROM {index} JOIN messages m ON m.id = {index}.rowid "
        f"JOIN sessions s ON s.no = m.id >> 32 WHERE {index} MATCH ? AND {SEARCHED}"
        + "".join(f" AND {sql}" for sql in search.given)
        + f" ORDER BY {newest if search.newest_first else 'rank, m.id DESC'} LIMIT ? OFFSET ?",
        expression,
        *search.given.values(),
        search.limit,
        search.offset,
    )
    # Only for the rows returned: snippets of all matches would cost ten times the search. All at
    # once (+ prevents a lookup per row): each lookup would collect the words of a prefix again.
    snippets: dict[int, str | None] = dict(
        tx.all(
            f"SELECT rowid, snippet({index}, -1, char(2), char(3), '…', 40) FROM {index} "
            f"WHERE {index} MATCH ? AND +rowid IN (SELECT value FROM json_each(?))",
            expression,
            codec.encode_json([row[0] for row in rows]),
        )
        if rows
        else ()
    )
    return [(*row, format_snippet(snippets.get(row[0]) or "")) for row in rows]
