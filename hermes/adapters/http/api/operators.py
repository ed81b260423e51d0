"""Endpoints for usage and status, and for operators: the runtime, and pairing."""

from __future__ import annotations

from msgspec.structs import asdict
from starlette.responses import Response

from hermes.actors.admission.pairing import read_code
from hermes.adapters.http.api import types as t
from hermes.adapters.http.api.conversations import ONE
from hermes.adapters.http.api.messages import source_of
from hermes.adapters.http.api.names import resolve
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError
from hermes.messages import Pairing, PairingRejected, Status


async def usage(call: Call) -> Response:
    """Return what the turns of a conversation have used."""
    key, query = resolve(call, call.path["key"]), call.query(t.UsageQuery)
    turns = await call.runtime.api.usage(key, limit=query.limit)
    session_id = (await call.runtime.api.view(key)).session_id or ""
    totals = await call.runtime.api.spent(source_of(call, key), session_id)
    return json_response(t.ConversationUsage(turns, totals.session))


async def today(call: Call) -> Response:
    """Return the costs since midnight."""
    totals = await call.runtime.api.spent(call.caller.source("usage"))
    everybody = totals.day if call.caller.has_role("operator") else None
    return json_response(t.Today(totals.principal, everybody))


async def status(call: Call) -> Response:
    """Return the state of a conversation."""
    key = resolve(call, call.path["key"])
    return json_response(await call.runtime.conversation(key).status())


async def runtime(call: Call) -> Response:
    """Return the state of the runtime."""
    query, services = call.query(t.StatusQuery), call.services
    health = await call.runtime.api.health()
    actors = call.runtime.api.actors()
    http = t.ServerStatus(
        requests=services.requests.count(), failed_logins=services.logins.failures
    )
    return json_response(
        t.RuntimeStatus(
            **asdict(health),
            actors=actors[: query.limit],
            actor_count=len(actors),
            host=services.collected.host_status(),
            http=http,
        )
    )


async def pairings(call: Call) -> Response:
    """List the users who ask to be let in, and those who were."""
    api = call.runtime.api
    return json_response(t.PairingList(await api.pairings(), await api.principals()))


async def pair(call: Call) -> Response:
    """Let in the user who was shown a code."""
    body = await call.read(t.PairBody)
    code = read_code(body.code)
    result: Pairing | PairingRejected | None = None
    if code is not None:
        by, texts = call.caller.source("pairing"), call.runtime.texts
        result = await call.runtime.api.approve_pairing(code, body.role, by, texts)
    if isinstance(result, PairingRejected) and result.seconds:
        wait = {"Retry-After": f"{max(1, round(result.seconds))}"}
        raise ApiError(429, "There were too many wrong codes.", code="locked", headers=wait)
    if not isinstance(result, Pairing):
        raise ApiError(404, "No pairing request has this code.", code="not_found", param="code")
    return json_response(result)


async def unpair(call: Call) -> Response:
    """Remove a user who was let in."""
    removed = await call.runtime.api.unpair(call.path["platform"], call.path["user_id"])
    return json_response(t.Unpaired(removed))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path=f"{ONE}/usage", handle=usage, query=t.UsageQuery,
        summary="Return what the turns of a conversation have used.", result=t.ConversationUsage,
    ),
    Endpoint(
        method="GET", path=f"{ONE}/status", handle=status, result=Status,
        summary="Return the state of a conversation.",
    ),
    Endpoint(
        method="GET", path="/api/usage", handle=today, result=t.Today,
        summary="Return the costs since midnight.",
    ),
    Endpoint(
        method="GET", path="/api/status", handle=runtime, query=t.StatusQuery, role="operator",
        summary="Return the state of the runtime.", result=t.RuntimeStatus,
    ),
    Endpoint(
        method="GET", path="/api/pairings", handle=pairings, role="operator",
        summary="List pairing requests and paired users.", result=t.PairingList,
    ),
    Endpoint(
        method="POST", path="/api/pairings", handle=pair, body=t.PairBody, role="operator",
        summary="Let in the user who was shown a code.", result=Pairing,
    ),
    Endpoint(
        method="DELETE", path="/api/principals/{platform}/{user_id}", handle=unpair,
        role="operator", summary="Remove a paired user.", result=t.Unpaired,
    ),
)  # fmt: skip
