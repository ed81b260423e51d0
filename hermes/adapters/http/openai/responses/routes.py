"""Responses: each request is stored with its message, and answered by one turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import trio
from msgspec.structs import replace
from starlette.responses import Response

from hermes.adapters.http.connections import EventStream, Tracked
from hermes.adapters.http.credentials import new_id
from hermes.adapters.http.endpoints import Call, Endpoint, Services, decode, json_response
from hermes.adapters.http.errors import ApiError, not_found
from hermes.adapters.http.openai.acceptance import (
    Accepted,
    accept,
    find_repeated,
    idempotency_key,
    may_repeat,
    new_request,
)
from hermes.adapters.http.openai.content import Content, read_content
from hermes.adapters.http.openai.models import DEFAULT, agent_of
from hermes.adapters.http.openai.responses.objects import response_object
from hermes.adapters.http.openai.responses.outcomes import outcome_of, rows_of
from hermes.adapters.http.openai.responses.pages import (
    PageQuery,
    input_of,
    page_of,
    read_page,
)
from hermes.adapters.http.openai.responses.requests import (
    Parameters,
    echo_of,
    options_of,
    read_input,
    read_parameters,
)
from hermes.adapters.http.openai.responses.resuming import stream_elsewhere
from hermes.adapters.http.openai.responses.streams import (
    LiveResponse,
    live_response,
    read_live,
    read_stored,
)
from hermes.adapters.http.openai.responses.targets import Target, target_of
from hermes.adapters.http.turns.endings import Ending
from hermes.messages import (
    Inbound,
    JsonObject,
    Opening,
    Receipt,
    Reply,
    StoredMessage,
    StoredResponse,
    WaitingMessage,
)

PATH = "/v1/responses"
STEER_PATH = f"{PATH}/{{response_id}}/steer"
STEER_ECHO = ("conversation", "model")


class CreateResponse(msgspec.Struct, kw_only=True):
    """The body of a request; the parameters that are not listed are in the documentation."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    conversation: str | dict[str, Any] | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None


class SteerResponse(msgspec.Struct, kw_only=True):
    """A message for the running turn."""

    input: str | list[dict[str, Any]]


class StreamQuery(msgspec.Struct):
    """How a response is retrieved."""

    stream: bool = False
    starting_after: int | None = None
    """Only events with a greater number."""


async def create(call: Call) -> Response:
    """Create a response. What repeats an earlier request gets the response to that one."""
    raw = await call.body()
    body = decode(raw, JsonObject)
    parameters, digest = read_parameters(body), call.digest(raw)
    if may_repeat(call) or not _is_simple(parameters):
        await call.verify()
    accepted = await find_repeated(call, PATH, digest)
    if accepted is None:
        accepted = await _accept(call, parameters, digest)
    return _answer(call, accepted, parameters)


def _is_simple(parameters: Parameters) -> bool:
    """Whether nothing is read or written for a request before its message is accepted."""
    return (
        parameters.conversation is None
        and parameters.previous is None
        and parameters.model == DEFAULT
        and isinstance(parameters.body.get("input"), str)
    )


async def _accept(call: Call, parameters: Parameters, digest: str) -> Accepted:
    key, agent = idempotency_key(call), agent_of(call, parameters.model)
    async with target_of(call, parameters) as target:
        given = await read_input(call, target.key, parameters.body, agent)
        options = options_of(parameters, given)
        request = replace(
            new_request(call, new_id("resp"), PATH, digest, key=key),
            echo=echo_of(parameters, options, target.conversation),
            stored=parameters.store,
            history=given.history,
            agent=None if parameters.store else agent,
            opening=await _opening(call, target, agent) if parameters.store else None,
            options=options,
            outputs=given.outputs,
            decisions=given.decisions,
        )
        content = given.content or Content("")
        inbound = Inbound(
            session_key=target.key,
            event_id=request.id,
            text=content.text,
            parts=content.parts or None,
            source=target.source,
            when_busy="queue",
            request=request,
        )
        return await accept(call, inbound)


async def _opening(call: Call, target: Target, agent: str | None) -> Opening | None:
    """Return how the request opens its conversation: a branch, or with the agent that it names."""
    opening = target.branch
    if agent is not None:
        settings = None if opening is None else opening.settings
        settings = settings or await call.runtime.conversation(target.key).settings()
        opening = replace(opening or Opening(), settings=replace(settings, agent=agent))
    return opening


def _answer(call: Call, accepted: Accepted, parameters: Parameters) -> Response:
    """Return the answer in the form that the client asked for."""
    services, response = call.services, accepted.response
    ending = call.ending(response.id if accepted.tracked else None)
    if parameters.stream:
        make = partial(_stream, services, response, ending, fresh=accepted.fresh)
    elif parameters.background:
        make = partial(_now, services, response, fresh=accepted.fresh)
    else:
        make = partial(_plain, services, response)
    return Tracked(ending, make)


async def _plain(services: Services, response: StoredResponse) -> Response:
    """Wait for the end of the turn."""
    reply, log = response.reply, services.logs.find(response.inbox_id)
    if reply is None:
        log = services.logs.of(response)
        reply = await log.wait()
    if log is not None and isinstance(log.listener, LiveResponse):
        outcome = await log.listener.ended()
        return json_response(outcome.as_object(response))
    if log is not None and log.attempt > 1:  # it may have items of the attempt before
        response = await services.runtime.api.get_response(response.id) or response
    events = () if log is None else log.events
    outcome = await outcome_of(services.runtime, response, reply, events)
    return json_response(outcome.as_object(response))


async def _now(services: Services, response: StoredResponse, *, fresh: bool = False) -> Response:
    """Return the response as it is now."""
    log = services.logs.find(response.inbox_id)
    if services.shared is not None and not fresh:
        log = await services.logs.heard(response)
    if response.reply is not None or (log is not None and log.reply is not None):
        return await _plain(services, response)
    live = None if log is None else log.listener
    output = live.items.output if isinstance(live, LiveResponse) else []
    running = log is not None and log.attempt > 0
    return json_response(response_object(response, output, running=running))


async def _stream(
    services: Services,
    response: StoredResponse,
    ending: Ending,
    after: int = -1,
    *,
    fresh: bool = False,
) -> Response:
    """Stream the response from the event after `after`, or the whole one again."""
    if services.shared is not None and not fresh and response.reply is None:
        return await stream_elsewhere(services, response, ending, after)
    log = services.logs.find(response.inbox_id)
    if log is None:  # a turn that need not wait begins now
        await trio.lowlevel.checkpoint()
        log = services.logs.find(response.inbox_id)
    if log and isinstance(live := log.listener, LiveResponse) and live.has_numbers_to(after):
        return EventStream(read_live(services, live, log, ending, after))
    reply = response.reply or (None if log is None else log.reply)
    if reply is not None:
        return EventStream(read_stored(services, response, reply, ending, after))
    log = services.logs.of(response)
    live = live_response(services, response, log)
    return EventStream(read_live(services, live, log, ending, after), at_once=after < 0)


# Retrieval


async def _find(call: Call) -> StoredResponse:
    """Return the response that the path names. Raises `ApiError` if the caller has none."""
    response_id = call.path["response_id"]
    found = await call.runtime.api.get_response(response_id)
    if found is None or not call.caller.owns(found.session_key) or not found.stored:
        raise not_found(f"response {response_id[:100]!r}")
    return found


async def retrieve(call: Call) -> Response:
    """Return a response, or stream it."""
    response, query = await _find(call), call.request.query_params
    after = query.get("starting_after", "-1")
    if query.get("stream", "false").lower() != "true":
        return await _now(call.services, response)
    if re.fullmatch("-?[0-9]{1,18}", after) is None:
        text = "starting_after must be the number of an event."
        raise ApiError(400, text, code="invalid_value", param="starting_after")
    ending = call.ending(None)
    return Tracked(ending, partial(_stream, call.services, response, ending, int(after)))


async def cancel(call: Call) -> Response:
    """Cancel a response: its message is withdrawn, or its turn is interrupted."""
    response = await _find(call)
    if response.reply is None:
        log = call.services.logs.of(response)
        if await call.runtime.api.cancel_turn(_receipt(response)):
            await log.wait()
        response = await _find(call)
    return await _now(call.services, response)


def _receipt(response: StoredResponse) -> Receipt:
    return Receipt(
        response.inbox_id, response.session_key, response.session_id, 0, response.created_at
    )


async def delete(call: Call) -> Response:
    """Delete a response; its messages stay in the conversation."""
    response = await _find(call)
    await call.runtime.api.delete_response(response.id)
    return json_response({"id": response.id, "object": "response", "deleted": True})


async def input_items(call: Call) -> Response:
    """List the input of a response."""
    response = await _find(call)
    rows = await _input_rows(call, response)
    return json_response(page_of(input_of(response.id, rows), read_page(call)))


async def _input_rows(call: Call, response: StoredResponse) -> Sequence[StoredMessage]:
    if response.reply is None:
        history = await call.runtime.conversation(response.session_key).history()
        waiting = [row for row in history if isinstance(row, WaitingMessage)]
        return [row for row in waiting if row.inbox_id == response.inbox_id]
    rows = await rows_of(call.runtime, response.session_key, response.reply)
    if response.reply.turn_id == response.inbox_id:
        return rows
    # The turn of another message has taken this one.
    same = [row for row in rows if row.role == "user" and row.timestamp == response.created_at]
    return await _own_row(call, response, response.reply, same) if len(same) > 1 else same


async def _own_row(
    call: Call, response: StoredResponse, reply: Reply, same: Sequence[StoredMessage]
) -> Sequence[StoredMessage]:
    """Return the row of one of several messages that were stored at once, in their order."""
    ids = [
        each.id
        for each in await call.runtime.api.list_responses(response.session_key, STEER_PATH)
        if each.created_at == response.created_at
        and each.reply is not None
        and each.reply.turn_id == reply.turn_id
    ]
    known = len(ids) == len(same) and response.id in ids
    return [same[ids.index(response.id)]] if known else same


async def steer(call: Call) -> Response:
    """Send a message into the turn of a response that runs. It is stored before this returns.

    The message has a response of its own: if the turn ends before the agent takes it, the next turn
    answers it. Otherwise both responses have the same reply.
    """
    response, raw = await _find(call), await call.body()
    body, digest = decode(raw, SteerResponse), call.digest(raw)
    accepted = await find_repeated(call, STEER_PATH, digest)
    if accepted is None:
        log = await call.services.logs.heard(response)
        if response.reply is not None or not log.attempt or log.reply is not None:
            text = "The response is not in progress, so it cannot be steered."
            raise ApiError(409, text, code="not_in_progress")
        accepted = await _accept_steering(call, response, body, digest)
    steering = accepted.response.id
    make = partial(_steered, call.services, response, steering)
    return Tracked(call.ending(steering if accepted.tracked else None), make)


async def _accept_steering(
    call: Call, response: StoredResponse, body: SteerResponse, digest: str
) -> Accepted:
    content = await read_content(call, response.session_key, body.input)
    new = new_request(call, new_id("resp"), STEER_PATH, digest, key=idempotency_key(call))
    echo = {name: response.echo[name] for name in STEER_ECHO if name in response.echo}
    inbound = Inbound(
        session_key=response.session_key,
        event_id=new.id,
        text=content.text,
        parts=content.parts or None,
        source=call.caller.source(echo.get("conversation", "")),
        when_busy="steer",
        request=replace(new, echo=echo),
    )
    return await accept(call, inbound)


async def _steered(services: Services, response: StoredResponse, steering: str) -> Response:
    """Return the response whose turn was steered, and the id of the response to the message."""
    shown = msgspec.json.decode((await _now(services, response)).body, type=JsonObject)
    return json_response({**shown, "steering_response_id": steering})


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path=PATH,
        handle=create,
        summary="Create a response.",
        checks_token=True,
        body=CreateResponse,
        streams=True,
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{response_id}}",
        handle=retrieve,
        summary="Return a response, or stream it.",
        query=StreamQuery,
        streams=True,
    ),
    Endpoint(
        method="DELETE",
        path=f"{PATH}/{{response_id}}",
        handle=delete,
        summary="Delete a response.",
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/{{response_id}}/cancel",
        handle=cancel,
        summary="Cancel a response.",
    ),
    Endpoint(
        method="POST",
        path=STEER_PATH,
        handle=steer,
        summary="Send a message into the running turn of a response.",
        body=SteerResponse,
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{response_id}}/input_items",
        handle=input_items,
        summary="List the input of a response.",
        query=PageQuery,
    ),
)
