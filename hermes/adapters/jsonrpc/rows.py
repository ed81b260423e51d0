"""What the store has, as a client gets it."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.adapters.jsonrpc import types as t
from hermes.adapters.jsonrpc.events import file_parts
from hermes.messages import SessionSummary, Status, StoredMessage


def last_rows(rows: Sequence[StoredMessage], limit: int, before: int | None = None) -> list[t.Row]:
    """Return the last `limit` rows, or the last ones before the message with the id `before`."""
    if before is not None:
        rows = [row for row in rows if row.id < before]
    return [to_row(row) for row in rows[-limit:]]


def to_row(row: StoredMessage) -> t.Row:
    """Return a message of a transcript."""
    return t.Row(
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
        parts=file_parts(row.parts),
    )


def listed(found: SessionSummary, live: str | None) -> t.ListedSession:
    """Return an entry of a list of sessions; `live` is its handle, if it has one."""
    session = found.session
    return t.ListedSession(
        session_id=session.id,
        title=session.title,
        preview=found.preview,
        started_at=found.started_at,
        last_active=session.last_active,
        message_count=session.message_count,
        source=session.source,
        live=live,
        archived=session.archived_at is not None,
        subagent=session.kind == "subagent",
    )


def status_result(status: Status) -> t.StatusResult:
    """Return the state of a conversation."""
    return t.StatusResult(
        stored_session_id=status.session_id,
        title=status.title,
        message_count=status.message_count,
        running=status.busy,
        waiting=status.waiting,
        context_tokens=status.context_tokens,
        window=status.window,
        model=status.model,
        cost=status.cost,
    )
