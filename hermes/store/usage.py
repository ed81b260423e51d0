"""The usage ledger: one row per provider call, with totals on the session."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import Usage
from hermes.store import sessions
from hermes.store.tx import Tx


def update_token_counts(
    tx: Tx, session_id: str, usage: Usage, *, turn_id: int | None = None
) -> None:
    """Record one provider call; a session that has no row yet gets one."""
    sessions.ensure_session(tx, session_id)
    no = sessions.require(tx, session_id)
    tokens = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )
    tx.run(
        "INSERT INTO usage (session_no, turn_id, purpose, model, provider, input_tokens, "
        "output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        no,
        turn_id,
        usage.purpose,
        usage.model,
        usage.provider,
        *tokens,
        usage.cost,
        tx.now,
    )
    tx.run(
        "UPDATE sessions SET api_call_count = api_call_count + 1, input_tokens = input_tokens + ?, "
        "output_tokens = output_tokens + ?, cache_read_tokens = cache_read_tokens + ?, "
        "cache_write_tokens = cache_write_tokens + ?, reasoning_tokens = reasoning_tokens + ?, "
        "cost = cost + ?, model = coalesce(model, ?) WHERE no = ?",
        *tokens,
        usage.cost or 0.0,
        usage.model,
        no,
    )


def get_usage(tx: Tx, session_id: str) -> list[Usage]:
    """The provider calls of a session, in order."""
    rows = tx.all(
        "SELECT u.purpose, u.model, u.provider, u.input_tokens, u.output_tokens, "
        "u.cache_read_tokens, u.cache_write_tokens, u.reasoning_tokens, u.cost "
        "FROM usage u JOIN sessions s ON s.no = u.session_no WHERE s.id = ? ORDER BY u.id",
        session_id,
    )
    return [Usage(*row) for row in rows]


def record_all(tx: Tx, session_id: str, calls: Sequence[Usage], turn_id: int | None) -> None:
    """Record the provider calls of a turn."""
    for call in calls:
        update_token_counts(tx, session_id, call, turn_id=turn_id)
