"""FTS5 in memory, for engines whose own search takes texts apart in another way.

`words_of` is what FTS5 would index of a message. `Matcher` says which of some messages match a
query, exactly as the index of an SQLite store does, and shows where.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final, cast

import apsw

from hermes.store.sqlite.search import (
    format_snippet,
    indexed_text,
    indexed_tools,
    install,
)

EXACT, STEMS = "search", "stems"
"""The two indexes: of words as they are, and of their stems."""
_TOKENIZERS: Final = {EXACT: ("unicode61", []), STEMS: ("porter", ["unicode61"])}
_FIND: Final = (
    "SELECT rowid, snippet({0}, -1, char(2), char(3), '…', 40) FROM {0} WHERE {0} MATCH ?"
)


class Matcher:
    """An empty index in memory. Use it in one thread at a time."""

    def __init__(self) -> None:
        self._db = apsw.Connection(":memory:")
        install(self._db)
        self._tokenizers = {
            index: self._db.fts5_tokenizer(name, arguments)
            for index, (name, arguments) in _TOKENIZERS.items()
        }
        for index, (name, arguments) in _TOKENIZERS.items():
            self._db.execute(
                f"CREATE VIRTUAL TABLE {index} USING fts5 "
                f"(content, tools, tokenize = '{' '.join([name, *arguments])}')"
            )

    def words(self, index: str, text: str) -> list[str]:
        """Return the words of a text, in order, as this index knows them."""
        found = self._tokenizers[index](
            text.encode(errors="replace"),
            apsw.FTS5_TOKENIZE_DOCUMENT,
            None,
            include_offsets=False,
            include_colocated=False,
        )
        return cast(list[str], found)

    def find(
        self, index: str, expression: str, messages: Sequence[tuple[int, str | None, str | None]]
    ) -> dict[int, str]:
        """Return the snippets of the messages (id, content, extra) that match, by id."""
        with self._db:
            self._db.execute(f"DELETE FROM {index}")
            self._db.executemany(
                f"INSERT INTO {index} (rowid, content, tools) "
                "VALUES (?, hermes_words(?), hermes_tools(?))",
                messages,
            )
            found: list[Any] = self._db.execute(_FIND.format(index), [expression]).fetchall()
        return {number: format_snippet(snippet or "") for number, snippet in found}


_LOCAL = threading.local()


def matcher() -> Matcher:
    """Return the matcher of this thread."""
    found: Matcher | None = vars(_LOCAL).get("matcher")
    if found is None:
        found = _LOCAL.matcher = Matcher()
    return found


def words_of(content: str | None, extra: str | None) -> dict[str, list[str]]:
    """Return the words of a message for each index."""
    texts = [text for text in (indexed_text(content), indexed_tools(extra)) if text]
    own = matcher()
    return {
        index: [word for text in texts for word in own.words(index, text)]
        for index in (EXACT, STEMS)
    }
