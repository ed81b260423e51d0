"""Endpoints for recorded turns: list them, show one, return the bytes of a request, run it again.

Only the owner of a conversation and operators get them; others get 404, as for the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from hermes.adapters.http.api.conversations import ONE
from hermes.adapters.http.api.names import id_of, is_visible, number, resolve
from hermes.adapters.http.api.turns import types as t
from hermes.adapters.http.credentials import new_id
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError, not_found
from hermes.adapters.jsonrpc.rows import to_row
from hermes.messages import PastTurn, RebuiltCall, RecordedCall, Usage

MAX_MESSAGES = 200
"""Messages of a request that are listed; the body has all of them."""
_TURN = f"{ONE}/turns/{{turn_id}}"
_CALL = f"{_TURN}/calls/{{number}}"


async def list_turns(call: Call) -> Response:
    """List the recorded turns of a conversation."""
    key, query = resolve(call, call.path["key"]), call.query(t.TurnsQuery)
    found = await call.runtime.api.past_turns(key, before=query.before, limit=query.limit + 1)
    page = found[: query.limit]
    following = page[-1].turn_id if len(found) > len(page) else None
    turns = [t.TurnSummary(**_summary(call, turn)) for turn in page]
    return json_response(t.TurnList(turns, following))


async def get(call: Call) -> Response:
    """Return a recorded turn, with the verdict about each of its requests."""
    key, turn_id = resolve(call, call.path["key"]), number(call.path["turn_id"])
    turn = await call.runtime.api.past_turn(key, turn_id)
    calls = [
        _call(index, each, await call.runtime.api.rebuild_call(key, turn_id, index))
        for index, each in enumerate(turn.calls)
    ]
    return json_response(
        t.PastTurnDetails(
            **_summary(call, turn),
            messages=[to_row(row) for row in turn.messages],
            missing=turn.row_count - len(turn.messages),
            model_calls=calls,
            events=turn.events,
        )
    )


def _summary(call: Call, turn: PastTurn) -> dict[str, Any]:
    """Return the fields of a `TurnSummary`."""
    usages = [each.usage for each in turn.calls if each.usage is not None]
    costs = [usage.cost for usage in usages if usage.cost is not None]
    models = [_settings(each).get("model") for each in turn.calls]
    return {
        "turn_id": turn.turn_id,
        "session_id": turn.session_id,
        "status": turn.status,
        "error": turn.error,
        "agent": turn.agent,
        "models": list(dict.fromkeys(str(model) for model in models if model)),
        "started_at": turn.started_at,
        "ended_at": turn.ended_at,
        "calls": len(turn.calls),
        "input_tokens": _total(usages, "input_tokens"),
        "output_tokens": _total(usages, "output_tokens"),
        "cache_read_tokens": _total(usages, "cache_read_tokens"),
        "cache_write_tokens": _total(usages, "cache_write_tokens"),
        "reasoning_tokens": _total(usages, "reasoning_tokens"),
        "cost": sum(costs) if costs else None,
        "repeats": _repeats(call, turn),
    }


def _repeats(call: Call, turn: PastTurn) -> t.RepeatedTurn | None:
    if turn.repeats is None:
        return None
    key, turn_id = turn.repeats
    own = is_visible(call.caller, key)
    return t.RepeatedTurn((id_of(call.caller, key) or key) if own else None, turn_id)


def _total(usages: Iterable[Usage], name: str) -> int:
    return sum(msgspec.structs.asdict(usage)[name] for usage in usages)


def _settings(call: RecordedCall) -> dict[str, Any]:
    found = _decoded(call.settings.text, {})
    return found if isinstance(found, dict) else {}


def _decoded(text: str | None, default: Any) -> Any:
    if text is None:
        return default
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return default


def _call(index: int, call: RecordedCall, made: RebuiltCall) -> t.PastCall:
    settings = _settings(call)
    fields = settings.get("fields")
    pairs = zip(call.history[::2], call.history[1::2], strict=True)
    tools = _decoded(None if call.tools is None else call.tools.text, [])
    return t.PastCall(
        number=index,
        format=settings.get("format"),
        provider=settings.get("provider"),
        model=settings.get("model"),
        url=settings.get("url"),
        settings=fields if isinstance(fields, dict) else {},
        system=None if call.system is None else call.system.text,
        tools=tools if isinstance(tools, list) else [],
        injected=_injected(call),
        earlier=sum(last - first + 1 for first, last in pairs),
        rows=call.rows,
        digest=call.digest,
        verdict=made.verdict,
        reasons=made.reasons,
        started=call.started,
        first=call.first,
        duration=call.duration,
        usage=call.usage,
        error=call.error,
    )


def _injected(call: RecordedCall) -> list[t.InjectedText]:
    found = _decoded(None if call.injected is None else call.injected.text, [])
    try:
        return msgspec.convert(found, list[t.InjectedText])
    except msgspec.ValidationError:
        return []


async def messages(call: Call) -> Response:
    """Return the messages of a request."""
    given = await call.runtime.api.call_rows(*_named(call))
    rows: Sequence[Any] = [*given.history, *given.turn]
    shown = rows[-MAX_MESSAGES:]
    listed = [to_row(row) for row in shown]
    return json_response(t.CallMessages(listed, len(rows) - len(shown), given.missing))


async def body(call: Call) -> Response:
    """Return the body of a request, as it is rebuilt now."""
    made = await call.runtime.api.rebuild_call(*_named(call))
    if made.body is None:
        text = f"The request cannot be rebuilt: {'; '.join(made.reasons)}."
        raise ApiError(409, text, code="not_rebuilt")
    headers = {"Hermes-Verdict": made.verdict, "X-Content-Type-Options": "nosniff"}
    return Response(made.body, media_type="application/json", headers=headers)


def _named(call: Call) -> tuple[str, int, int]:
    """Return the key, the turn and the number of the call that a path names."""
    key, text = resolve(call, call.path["key"]), call.path["number"]
    if number(text) == 0 and text != "0":
        raise not_found("such call")
    return key, number(call.path["turn_id"]), number(text)


async def repeat(call: Call) -> Response:
    """Run a turn again, in a branch before it."""
    key, turn_id = resolve(call, call.path["key"]), number(call.path["turn_id"])
    given = await call.read(t.RepeatBody)
    name = new_id("conv")
    to = call.caller.key(name)
    receipt = await call.runtime.api.repeat_turn(
        key, turn_id, to=to, source=call.caller.source(name), text=given.text,
        instructions=given.instructions, agent=given.agent, model=given.model,
    )  # fmt: skip
    call.services.hub.touch(to)
    return json_response(t.RepeatStarted(name, to, receipt.inbox_id), 201)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path=f"{ONE}/turns", handle=list_turns, query=t.TurnsQuery,
        summary="List the recorded turns of a conversation.", result=t.TurnList,
    ),
    Endpoint(
        method="GET", path=_TURN, handle=get, result=t.PastTurnDetails,
        summary="Return what the agent was given in a turn, and what it answered.",
    ),
    Endpoint(
        method="GET", path=f"{_CALL}/messages", handle=messages, result=t.CallMessages,
        summary="Return the messages of a request to a model.",
    ),
    Endpoint(
        method="GET", path=f"{_CALL}/body", handle=body, result=dict[str, Any],
        summary="Return the body of a request to a model, rebuilt from what is stored.",
    ),
    Endpoint(
        method="POST", path=f"{_TURN}/repeat", handle=repeat, body=t.RepeatBody, status=201,
        summary="Run a turn again, in a branch before it.", result=t.RepeatStarted,
    ),
)  # fmt: skip
