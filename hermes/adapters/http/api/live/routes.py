"""Endpoints of the live view, for operators."""

from __future__ import annotations

from contextlib import AbstractContextManager

import trio
from starlette.responses import Response

from hermes.adapters.http.api.live import types as t
from hermes.adapters.http.api.live.feed import LiveFeed
from hermes.adapters.http.api.live.prompts import compare_prompts
from hermes.adapters.http.api.names import number, resolve
from hermes.adapters.http.api.streams.channels import Listener
from hermes.adapters.http.api.streams.events import EventsQuery, EventStream
from hermes.adapters.http.api.streams.hub import Hub
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import not_found
from hermes.adapters.jsonrpc.rows import to_row
from hermes.errors import UnknownSession

ROOT = "/api/live"


class LiveStream(EventStream):
    """The events of the live view."""

    def __init__(self, hub: Hub, feed: LiveFeed, position: int | None) -> None:
        super().__init__(hub, feed, position)
        self._feed = feed

    def _listening(self) -> AbstractContextManager[Listener]:
        return self._feed.listening()

    async def _reset(self) -> t.LiveSnapshot | None:
        return await self._feed.snapshot()


async def events(call: Call) -> Response:
    """Send the state of the runtime, then what changes, at most once a second."""
    await trio.lowlevel.checkpoint()
    feed, request = call.services.live, call.request
    query = request.query_params.get("last_event_id")
    position = feed.position(request.headers.get("last-event-id", query))
    return LiveStream(call.services.hub, feed, position)


async def lineage(call: Call) -> Response:
    """Return the sessions of a conversation, and how they came about."""
    key = resolve(call, call.path["key"])
    sessions = await call.runtime.api.session_family(key)
    current = next((each.session_id for each in sessions if each.current), None)
    return json_response(t.Lineage(session_key=key, current=current, sessions=sessions))


async def summary(call: Call) -> Response:
    """Return the summary at the beginning of a session, and the rows that it replaced."""
    try:
        found = await call.runtime.api.summary_rows(call.path["session_id"])
    except UnknownSession:
        found = None
    if found is None:
        raise not_found("summary")
    replaced, row, rows = found
    return json_response(
        t.SummaryDetails(replaced=replaced, summary=to_row(row), rows=[*map(to_row, rows)])
    )


async def caches(call: Call) -> Response:
    """List the conversations that called a model, with what came from caches."""
    return json_response(t.CacheList(await call.runtime.api.cached_conversations()))


async def cache(call: Call) -> Response:
    """Return the model calls of a conversation, and why its agents were replaced."""
    key, query, api = resolve(call, call.path["key"]), call.query(t.CallsQuery), call.runtime.api
    calls = await api.model_calls(key, before=query.before, limit=query.limit)
    return json_response(t.CacheDetails(session_key=key, calls=calls, rebuilds=api.rebuilds(key)))


async def prompts(call: Call) -> Response:
    """Compare the first prompt of a turn with the last one before it."""
    key, turn_id = resolve(call, call.path["key"]), number(call.path["turn_id"])
    return json_response(await compare_prompts(call.runtime, key, turn_id))


async def outbox(call: Call) -> Response:
    """List the replies of a lane that are not delivered, or were given up."""
    query = call.query(t.LaneQuery)
    rows = await call.runtime.api.lane_rows(query.lane, after=query.after, limit=query.limit)
    return json_response(t.LaneRows(rows))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path=f"{ROOT}/events", handle=events, query=EventsQuery, role="operator",
        summary="Stream the state of the runtime.", streams=True,
        events=(t.LiveSnapshot, t.LiveChanges),
    ),
    Endpoint(
        method="GET", path=f"{ROOT}/lineage/{{key}}", handle=lineage, role="operator",
        summary="Return how the sessions of a conversation came about.", result=t.Lineage,
    ),
    Endpoint(
        method="GET", path=f"{ROOT}/summaries/{{session_id}}", handle=summary, role="operator",
        summary="Return what the summary of a session replaced.", result=t.SummaryDetails,
    ),
    Endpoint(
        method="GET", path=f"{ROOT}/cache", handle=caches, role="operator",
        summary="List conversations with their cached tokens.", result=t.CacheList,
    ),
    Endpoint(
        method="GET", path=f"{ROOT}/cache/{{key}}", handle=cache, query=t.CallsQuery,
        role="operator", summary="Return the cached share of each call of a conversation.",
        result=t.CacheDetails,
    ),
    Endpoint(
        method="GET", path=f"{ROOT}/cache/{{key}}/turns/{{turn_id}}", handle=prompts,
        role="operator", summary="Compare the prompts before and after an agent was built anew.",
        result=t.PromptComparison,
    ),
    Endpoint(
        method="GET", path=f"{ROOT}/outbox", handle=outbox, query=t.LaneQuery, role="operator",
        summary="List the undelivered replies of a chat.", result=t.LaneRows,
    ),
)  # fmt: skip
