"""Full-text search: messages are indexed after they are committed, and before every search.

The index itself is the engine's (`transaction.SearchIndex`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from hermes.messages import SUMMARY, SearchHit
from hermes.store.conversations import codec, lineage
from hermes.store.transaction import Row, Search, Transaction, Work

SEARCH_SECONDS = 5.0
_NEIGHBOUR_LENGTH = 200
SEARCHED = "(m.live = 1 OR m.compacted = 1)"
"""Condition on `messages m`: the messages that a search finds."""


def search_messages(  # noqa: PLR0913 - the filters of a search
    tx: Transaction,
    query: str,
    *,
    source: str | None = None,
    role: str | None = None,
    session_key: str | None = None,
    key_prefixes: Sequence[str] | None = None,
    session_ids: Sequence[str] | None = None,
    after: float | None = None,
    before: float | None = None,
    newest_first: bool = False,
    limit: int = 20,
    offset: int = 0,
    timeout: float = SEARCH_SECONDS,
) -> list[SearchHit]:
    """Return messages that match, best first, each with a snippet and its neighbours.

    Words match in every form ("heron" finds "herons"), unless the query has a phrase or a prefix.
    Live messages are searched, and those that hermes-agent had compacted before they were imported.
    With `session_key`, the messages of all sessions that belong to the key are searched; with
    `key_prefixes`, those that belong to keys which begin with one of these texts.
    Summaries of a compression are stored with the role "user", but `role="user"` excludes them.
    Raises `StoreError` after `timeout` seconds.
    """
    filters = {
        "s.source = ?": source,
        "m.role = ?": role,
        lineage.BELONGS: session_key,
        "m.created_at >= ?": after,
        "m.created_at < ?": before,
    }
    given = {sql: value for sql, value in filters.items() if value is not None}
    if role == "user":
        given[tx.search.NO_SUMMARY] = SUMMARY
    if key_prefixes is not None:
        given[lineage.BEGINS] = codec.encode_json(list(key_prefixes))
    if session_ids is not None:
        given["s.id IN (SELECT value FROM json_each(?))"] = codec.encode_json(list(session_ids))
    found = tx.search.find(tx, Search(query, given, newest_first, limit, offset, timeout))
    return [_hit(tx, row) for row in found]


def _hit(tx: Transaction, row: Row) -> SearchHit:
    message_id, session_id, role, at, source, title, compacted, subagent, snippet = row
    low, high = codec.bounds(message_id // codec.SPAN)
    return SearchHit(
        message_id=message_id,
        session_id=session_id,
        role=role,
        snippet=snippet,
        timestamp=at,
        source=source,
        title=title,
        before=_neighbour(tx, "DESC", low, message_id - 1),
        after=_neighbour(tx, "ASC", message_id + 1, high),
        compacted=bool(compacted),
        subagent=bool(subagent),
    )


def _neighbour(tx: Transaction, order: str, low: int, high: int) -> str | None:
    row = tx.one(
        f"SELECT substr(coalesce(content, ''), 1, {_NEIGHBOUR_LENGTH}) FROM messages m "
        f"WHERE id BETWEEN ? AND ? AND {SEARCHED} ORDER BY id {order} LIMIT 1",
        low,
        high,
    )
    return None if row is None else row[0]


def unindexed(tx: Transaction) -> bool:
    """Return whether there are messages that are not indexed yet."""
    return tx.search.unindexed(tx)


def has_all_forms(tx: Transaction) -> bool:
    """Return whether every indexed message is found by other forms of its words."""
    return tx.search.has_all_forms(tx)


def forms_left(tx: Transaction) -> int:
    """Return how many messages are found by their words as they are only."""
    return tx.search.forms_left(tx)


def forms_step(tx: Transaction) -> int:
    """Add the forms of words of some older messages. Return how many; 0 at the end."""
    return tx.search.forms_step(tx)


def index_step(tx: Transaction) -> bool:
    """Index some messages. Return whether more may wait."""
    return tx.search.index_step(tx)


def background_step(tx: Transaction) -> bool:
    """Do some of the work that can wait. Return whether there may be more."""
    return tx.search.background_step(tx)


def background_work_left(tx: Transaction) -> bool:
    """Return whether there is something to do for `background_step`."""
    return tx.search.background_work_left(tx)


def index_pending() -> Generator[Work[bool], bool, None]:
    """Index all messages that are not indexed yet, in bounded transactions."""
    while (yield index_step):
        pass


def index_word_forms() -> Generator[Work[int], int, None]:
    """Add the forms of words of all older messages, in bounded transactions."""
    while (yield forms_step):
        pass


def check_search(tx: Transaction) -> str | None:
    """Return a description of the problem if the index is damaged, else None."""
    return tx.search.check(tx)


def rebuild_search(tx: Transaction) -> int:
    """Rebuild the index from the messages. Return how many there are."""
    return tx.search.rebuild(tx)
