"""The usage ledger: one row per provider call, with totals on the session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from hermes.messages import CostTotals, Usage
from hermes.session_keys import payer_of
from hermes.store.conversations import inbox, lineage, sessions
from hermes.store.transaction import Transaction, Value

AUXILIARY = frozenset({"summary", "title"})
"""Purposes of calls that are made about a session, and not in it: only their cost is added."""

_INSERT = (
    "INSERT INTO usage (session_no, turn_id, purpose, model, provider, input_tokens, "
    "output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost, created_at, "
    "payer) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce(?, "
    "(SELECT source || '/' || coalesce(user_id, '') FROM sessions WHERE no = ?)))"
)
_COUNT = (
    "UPDATE sessions SET api_call_count = api_call_count + 1, input_tokens = input_tokens + ?, "
    "output_tokens = output_tokens + ?, cache_read_tokens = cache_read_tokens + ?, "
    "cache_write_tokens = cache_write_tokens + ?, reasoning_tokens = reasoning_tokens + ?, "
    "cost = cost + ?, model = coalesce(model, ?) WHERE no = ?"
)
_TODAY = "SELECT coalesce(sum(cost), 0.0) FROM usage WHERE created_at >= ? AND created_at < ?"


def update_token_counts(
    tx: Transaction,
    session_id: str,
    usage: Usage,
    *,
    turn_id: int | None = None,
    at: float | None = None,
    payer: str | None = None,
) -> None:
    """Record one provider call; a session that has no row yet gets one.

    The tokens of summaries and titles are not added to the totals of the session, only their cost.
    `payer` defaults to the user of the session, `at` to the current time.
    """
    sessions.ensure_session(tx, session_id)
    no = sessions.require(tx, session_id)
    tokens = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )
    at = tx.now if at is None else at
    call = (turn_id, usage.purpose, usage.model, usage.provider, *tokens, usage.cost, at, payer)
    tx.run(_INSERT, no, *call, no)
    if usage.purpose in AUXILIARY:
        tx.run("UPDATE sessions SET cost = cost + ? WHERE no = ?", usage.cost or 0.0, no)
    else:
        tx.run(_COUNT, *tokens, usage.cost or 0.0, usage.model, no)


def book(tx: Transaction, session_id: str, calls: Sequence[Usage]) -> None:
    """Record provider calls made outside of turns, unless the session has been deleted."""
    if sessions.number(tx, session_id) is not None:
        for call in calls:
            update_token_counts(tx, session_id, call)


def get_usage(tx: Transaction, session_id: str) -> list[Usage]:
    """Return the provider calls of a session, in order."""
    rows = tx.all(
        "SELECT u.purpose, u.model, u.provider, u.input_tokens, u.output_tokens, "
        "u.cache_read_tokens, u.cache_write_tokens, u.reasoning_tokens, u.cost "
        "FROM usage u JOIN sessions s ON s.no = u.session_no WHERE s.id = ? ORDER BY u.id",
        session_id,
    )
    return [Usage(*row) for row in rows]


def spent(tx: Transaction, session_id: str, platform: str, user_id: str | None) -> CostTotals:
    """Return the cost of a conversation (its whole lineage), and of today (user and total)."""
    ids = lineage.get_compression_lineage(tx, session_id)
    marks = ",".join("?" * len(ids)) or "NULL"
    by_lineage = f"SELECT coalesce(sum(cost), 0.0) FROM sessions WHERE id IN ({marks})"
    by_payer = f"{_TODAY} AND payer = ?"
    return CostTotals(
        _total(tx, by_lineage, *ids),
        _total(tx, by_payer, *today(tx.now), payer_of(platform, user_id)),
        spent_today(tx),
    )


def spent_today(tx: Transaction) -> float:
    """Return the total cost of today, in local time."""
    return _total(tx, _TODAY, *today(tx.now))


def _total(tx: Transaction, sql: str, *values: Value) -> float:
    row = tx.one(sql, *values)
    return 0.0 if row is None else float(row[0])


def today(now: float) -> tuple[float, float]:
    """Return the start and the end of the day in local time."""
    midnight = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight.timestamp(), (midnight + timedelta(days=1)).timestamp()


def record_all(tx: Transaction, session_id: str, calls: Sequence[Usage], turn_id: int) -> None:
    """Record the provider calls of an open turn; the sender of its first message pays."""
    if not calls:
        return
    source = inbox.source_of(tx, turn_id)
    payer = payer_of(source.platform, source.user_id)
    for call in calls:
        update_token_counts(tx, session_id, call, turn_id=turn_id, payer=payer)


def record_unstored(tx: Transaction, calls: Sequence[Usage], turn_id: int) -> None:
    """Record the provider calls of an open turn that belongs to no session."""
    source = inbox.source_of(tx, turn_id)
    payer = payer_of(source.platform, source.user_id)
    for call in calls:
        tx.run(_INSERT, None, turn_id, *_columns(call), tx.now, payer, None)


def _columns(usage: Usage) -> tuple[Value, ...]:
    return (
        usage.purpose, usage.model, usage.provider, usage.input_tokens, usage.output_tokens,
        usage.cache_read_tokens, usage.cache_write_tokens, usage.reasoning_tokens, usage.cost,
    )  # fmt: skip
