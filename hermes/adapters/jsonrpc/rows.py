"""Stored messages as a client gets them."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.adapters.jsonrpc import types as t
from hermes.messages import StoredMessage


def last_rows(rows: Sequence[StoredMessage], limit: int, before: int | None = None) -> list[t.Row]:
    """Return the last `limit` rows, or the last ones before the message with the id `before`."""
    if before is not None:
        rows = [row for row in rows if row.id < before]
    return [
        t.Row(
            id=row.id,
            role=row.role,
            text=row.content,
            timestamp=row.timestamp,
            tool_calls=[
                {"id": call.id, "name": call.name, "arguments": call.arguments}
                for call in row.tool_calls
            ],
            tool_call_id=row.tool_call_id,
            tool_name=row.tool_name,
            reasoning=row.reasoning,
        )
        for row in rows[-limit:]
    ]
