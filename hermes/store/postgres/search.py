"""The search index on PostgreSQL: `messages.words`, a `tsvector` with a GIN index.

It finds what FTS5 finds on SQLite. The words come from FTS5's tokenizers; stems are marked with
`=`, which no word has. The index gives candidates, at least all that match, and FTS5 decides in
memory which of them do: phrases are only known to have all their words, and long texts have more
words than a `tsvector` can hold.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Final

from psycopg import errors as pg

from hermes.errors import StoreError
from hermes.store.conversations import codec
from hermes.store.conversations.search import SEARCHED
from hermes.store.sqlite.matching import EXACT, STEMS, matcher, words_of
from hermes.store.sqlite.search import is_exact, to_fts
from hermes.store.transaction import Row, Search, Transaction

STEP = 200
"""Messages per indexing step."""
MAX_BYTES = 500_000
"""Bytes of words in one `tsvector`, which may have 1 MB in all."""
MAX_WORD = 200
"""Characters of a word; longer ones are cut, in messages and queries alike."""
MAX_POSITIONS = 20
"""How often a word counts for the order of the results."""
_LAST_POSITION = 16_383
ANY = "=*"
"""The word of messages that are candidates for every query, because they have too many words."""
NO_SUMMARY: str = (
    "(m.extra IS NULL OR m.extra::json #>> '{provider_data,hermes}' IS DISTINCT FROM ?)"
)
_PART: Final = re.compile(r'"([^"]*)"( \*)?|(AND|OR|NOT)')
_SELECT: Final = "SELECT id, content, extra FROM messages"
_GIVEN: Final = "json_to_recordset(?::json) AS v (id bigint, words text) WHERE m.id = v.id"
_UPDATE: Final = f"UPDATE messages m SET words = v.words::tsvector FROM {_GIVEN}"
_DIFFERENT: Final = (
    f"SELECT m.id FROM messages m, {_GIVEN} AND m.words <> v.words::tsvector ORDER BY m.id LIMIT 1"
)
_TIMEOUT: Final = "SELECT set_config('statement_timeout', ?, true)"


def vector(content: str | None, extra: str | None) -> str:
    """Return the text of the `tsvector` of a message."""
    positions: dict[str, list[int]] = {}
    for index, words in words_of(content, extra).items():
        for position, word in enumerate(words, 1):
            found = positions.setdefault(_lexeme(index, word), [])
            if len(found) < MAX_POSITIONS and position < _LAST_POSITION:
                found.append(position)
    if sum(len(word.encode()) + 2 * len(at) + 4 for word, at in positions.items()) > MAX_BYTES:
        return _quote(ANY)
    return " ".join(
        _quote(word) + (":" + ",".join(map(str, at)) if at else "")
        for word, at in positions.items()
    )


def _lexeme(index: str, word: str) -> str:
    return ("=" if index == STEMS else "") + word[:MAX_WORD]


def _quote(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def candidates(index: str, expression: str) -> str | None:
    """Return the `tsquery` for an expression of FTS5: it finds at least what that finds.

    None if no word is left, which finds nothing.
    """
    parts: list[str] = []
    joiner = ""
    for phrase, prefix, operator in _PART.findall(expression):
        if operator:
            joiner = operator
            continue
        words = matcher().words(index, phrase)
        lexemes = [_quote(_lexeme(index, word)) for word in words]
        is_exact_word = len(words) == 1 and len(words[0]) <= MAX_WORD
        if not lexemes or (joiner == "NOT" and not (parts and is_exact_word)):
            continue
        if prefix:
            lexemes[-1] += ":*"
        if parts:
            parts.append({"OR": "|", "NOT": "& !"}.get(joiner, "&"))
        parts.append(f"({' & '.join(lexemes)})")
    return " ".join(parts) and f"({' '.join(parts)}) | {_quote(ANY)}"


def find(tx: Transaction, search: Search) -> list[Row]:
    """Return the messages that match, best first; see `SearchIndex.find`."""
    expression = to_fts(search.query)
    if expression is None:
        return []
    index = EXACT if is_exact(search.query) else STEMS
    query = candidates(index, expression)
    if query is None:
        return []
    try:
        return _find(tx, index, expression, query, search)
    except (pg.QueryCanceled, TimeoutError) as error:
        text = f"the search took longer than {search.timeout:g} s; use words that are less common"
        raise StoreError(text) from error


def _find(tx: Transaction, index: str, expression: str, query: str, search: Search) -> list[Row]:
    end = time.monotonic() + search.timeout
    order = "m.created_at DESC" if search.newest_first else "ts_rank(m.words, $1::tsquery, 1) DESC"
    sql = (
        "SELECT m.id, s.id, m.role, m.created_at, s.source, s.title, m.compacted, s.subagent, "
        "m.content, m.extra FROM messages m JOIN sessions s ON s.no = m.id >> 32 "
        f"WHERE m.words @@ ?1::tsquery AND {SEARCHED}"
        + "".join(f" AND {sql}" for sql in search.given)
        + f" ORDER BY {order}, m.id DESC LIMIT ? OFFSET ?"
    )
    found: list[Row] = []
    wanted, seen = search.offset + search.limit, 0
    while len(found) < wanted:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        tx.one(_TIMEOUT, f"{max(1, round(left * 1000))}ms")
        rows = tx.all(sql, query, *search.given.values(), wanted, seen)
        snippets = matcher().find(index, expression, [(row[0], row[8], row[9]) for row in rows])
        found += [(*row[:8], snippets[row[0]]) for row in rows if row[0] in snippets]
        seen += len(rows)
        if len(rows) < wanted:
            break
    return found[search.offset : wanted]


def unindexed(tx: Transaction) -> bool:
    """Return whether there are messages that are not indexed yet."""
    return tx.one("SELECT 1 FROM messages WHERE words IS NULL LIMIT 1") is not None


def count_unindexed(tx: Transaction) -> int:
    """Return how many messages are not indexed yet."""
    return int(tx.all("SELECT count(*) FROM messages WHERE words IS NULL")[0][0])


def index_step(tx: Transaction) -> bool:
    """Index some messages. Return whether more may wait."""
    rows = tx.all(f"{_SELECT} WHERE words IS NULL ORDER BY id LIMIT {STEP} FOR NO KEY UPDATE")
    if rows:
        tx.run(_UPDATE, _vectors(rows))
    return len(rows) == STEP


def _vectors(rows: Iterable[Row]) -> str:
    return codec.encode_json(
        [{"id": number, "words": vector(content, extra)} for number, content, extra in rows]
    )


background_step = index_step
background_work_left = unindexed


def index_session(tx: Transaction, no: int) -> None:
    """Do nothing: messages are indexed where they are."""


def index_imported(tx: Transaction, first: int, last: int) -> None:  # noqa: ARG001
    """Do nothing: imported rows are indexed as all others."""
    tx.unindexed = True


def remove_session(tx: Transaction, no: int) -> None:
    """Do nothing: the index has no rows of its own."""


def has_all_forms(tx: Transaction) -> bool:  # noqa: ARG001
    """Return True: words and stems are indexed together."""
    return True


def forms_left(tx: Transaction) -> int:  # noqa: ARG001
    """Return 0."""
    return 0


def forms_step(tx: Transaction) -> int:  # noqa: ARG001
    """Return 0."""
    return 0


def rebuild(tx: Transaction) -> int:
    """Build the index from the messages. Return how many there are."""
    count = 0
    for rows in _pages(tx):
        tx.run(_UPDATE, _vectors(rows))
        count += len(rows)
    return count


def check(tx: Transaction) -> str | None:
    """Return a description of the problem if the index does not match the messages, else None."""
    for rows in _pages(tx):
        different = tx.one(_DIFFERENT, _vectors(rows))
        if different is not None:
            return f"the search index does not match message {different[0]}"
    return None


def _pages(tx: Transaction) -> Iterable[Sequence[Row]]:
    last = -1
    while rows := tx.all(f"{_SELECT} WHERE id > ? ORDER BY id LIMIT {STEP}", last):
        yield rows
        last = rows[-1][0]
