"""The outcome of a response: its output, from the store."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hermes.actors.runtime import Runtime
from hermes.adapters.http.openai.responses.item_stream import bodies_of_events
from hermes.adapters.http.openai.responses.items import (
    Lost,
    as_lost,
    bodies_of,
    has_tools,
    output_of,
)
from hermes.adapters.http.openai.responses.objects import response_object
from hermes.errors import UnknownSession
from hermes.events import RuntimeEvent
from hermes.messages import JsonObject, Reply, StoredMessage, StoredResponse


@attrs.frozen
class Outcome:
    """How a response ended."""

    reply: Reply
    output: Sequence[JsonObject]
    ended: float | None = None

    def as_object(self, response: StoredResponse) -> JsonObject:
        """Return the response as a client sees it."""
        return response_object(response, self.output, self.reply, ended=self.ended)


async def rows_of(runtime: Runtime, session_key: str, reply: Reply) -> list[StoredMessage]:
    """Return the rows of a turn, also if they were taken back; none if they were deleted."""
    if reply.messages is None:
        return []
    recent = runtime.api.recent_rows(session_key, reply)
    if recent is not None:
        return recent
    first, last = reply.messages
    try:
        return await runtime.admin.messages(
            reply.session_id, after=first - 1, limit=last - first + 1, include_rewound=True
        )
    except UnknownSession:
        return []


def when_ended(rows: Sequence[StoredMessage]) -> float | None:
    """Return when a turn was stored."""
    return rows[-1].timestamp if rows else None


def lost_items(response: StoredResponse) -> dict[int, JsonObject]:
    """Return the items that clients saw and that the store does not have.

    Those of a turn that has ended are recorded as incomplete. If the turn has not ended, they are
    all of an attempt that was lost.
    """
    items = {each["index"]: each["item"] for each in response.items if "item" in each}
    if response.reply is None:
        return {index: as_lost(item) for index, item in items.items()}
    return {index: item for index, item in items.items() if item.get("status") == "incomplete"}


def next_block(response: StoredResponse) -> int:
    """Return the first block of numbers that no client has seen; each process has its own."""
    return max((each["block"] + 1 for each in response.items if "block" in each), default=0)


def recorded(items: Lost, block: int) -> list[JsonObject]:
    """Return items as they are recorded with a response, and the block of their numbers."""
    return [{"block": block}, *({"index": index, "item": items[index]} for index in sorted(items))]


async def outcome_of(
    runtime: Runtime, response: StoredResponse, reply: Reply, events: Sequence[RuntimeEvent] = ()
) -> Outcome:
    """Return the outcome of a response whose turn has ended, for a client that is shown it now.

    `events` are those of the turn, if they are known: of a request that is not stored, there are no
    rows.
    """
    rows = await rows_of(runtime, response.session_key, reply)
    for approval in reply.approvals:
        runtime.mark_shown(approval)
    if response.stored or not events:
        bodies = bodies_of(response.id, rows, reply, mcp=has_tools(response))
    else:
        bodies = bodies_of_events(response.id, events, reply, mcp=has_tools(response))
    return Outcome(reply, output_of(response.id, lost_items(response), bodies), when_ended(rows))
