"""The outcome of a response: its output, from the store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def lost_items(response: StoredResponse, run: float | None = None) -> dict[int, JsonObject]:
    """Return the items that clients saw and that the store does not have.

    Those of a turn that has ended are recorded as incomplete. If the turn has not ended, they are
    all of a run that was lost, except for those of `run`, which goes on: clients see them on
    another node.
    """
    known = [each for each in response.items if "item" in each]
    items = {each["index"]: each["item"] for each in known if run is None or run != each.get("run")}
    if response.reply is None:
        return {index: as_lost(item) for index, item in items.items()}
    return {index: item for index, item in items.items() if item.get("status") == "incomplete"}


def next_block(response: StoredResponse) -> int:
    """Return the first block of numbers that no client has seen; each process has its own."""
    return max((each["block"] + 1 for each in response.items if "block" in each), default=0)


def recorded(
    items: Lost, block: int, run: float | None = None, earlier: Collection[int] = ()
) -> list[JsonObject]:
    """Return items as they are recorded with a response, and the block of their numbers.

    On a cluster, they name the run of the turn that they belong to, except for those of `earlier`
    runs.
    """
    of_run: JsonObject = {} if run is None else {"run": run}
    tags = {index: {} if index in earlier else of_run for index in items}
    found = [{"index": index, "item": items[index], **tags[index]} for index in sorted(items)]
    return [{"block": block, **of_run}, *found]


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
