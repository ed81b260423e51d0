"""`POST /hooks/NAME`: an event of another service is stored as a message, and starts a turn.

It is answered with 202 as soon as it is stored; a repeated event gets the same answer, and no
second turn. The turn is a request without a waiting client: its reply is in the conversation, and
sent to the chat that the settings name. The row of the outbox is committed with the turn.
"""

from __future__ import annotations

import time

import msgspec
from starlette.responses import Response

from hermes.adapters.http.access.requests import set_replaceable
from hermes.adapters.http.credentials import new_id
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError, not_found
from hermes.adapters.http.hooks.registry import Hook, user_id
from hermes.adapters.http.hooks.signatures import BadSignature, verify
from hermes.adapters.http.hooks.templates import text_of
from hermes.messages import ApiRequest, Inbound

PATH = "/hooks/{name}"


class HookEvent(msgspec.Struct):
    """An event that was stored."""

    id: str | None
    """The id of its response; null if that has been deleted."""
    event_id: str


async def receive(call: Call) -> Response:
    """Store an event."""
    hook = call.services.hooks.get(call.path["name"])
    if hook is None:
        raise not_found("such webhook")
    body = await call.body(hook.table.max_body)
    try:
        event_id = verify(
            hook.scheme, hook.key, call.request.scope["headers"], body,
            now=time.time(), window=hook.table.window,
        )  # fmt: skip
    except BadSignature as error:
        raise ApiError(401, str(error), code="invalid_signature") from None
    challenge = _challenge(body)
    if challenge is not None:
        return json_response(Challenge(challenge))
    set_replaceable(call.request.scope, False)
    stored = await _store(call, hook, event_id, body)
    return json_response(HookEvent(stored, event_id), 202)


class Challenge(msgspec.Struct):
    """What a service wants to have repeated."""

    challenge: str


class _Verification(msgspec.Struct, tag_field="type", tag="url_verification"):
    """A request by which a service such as Slack verifies the URL, once, before it sends events."""

    challenge: str


def _challenge(body: bytes) -> str | None:
    """Return what the service wants to have repeated; None for an event."""
    try:
        return msgspec.json.decode(body, type=_Verification).challenge
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def _store(call: Call, hook: Hook, event_id: str, body: bytes) -> str | None:
    """Store the message of an event, and return the id of its response."""
    text = text_of(hook.table.text, body)
    if not text.strip():
        raise ApiError(400, "The event has no text.", code="invalid_value")
    request = ApiRequest(
        id=new_id("resp"),
        credential=user_id(hook.name),
        path=f"/hooks/{hook.name}",
        digest=call.digest(body),
        process=call.services.process,
        deliver=hook.chat,
    )
    inbound = Inbound(
        session_key=hook.session_key,
        event_id=f"event:{event_id}",
        text=text,
        source=hook.source,
        when_busy="queue",
        metadata={"hook": hook.name},
        request=request,
    )
    receipt = await call.runtime.submit(inbound)
    response = await call.runtime.api.response_to(receipt)
    if response is not None and response.id == request.id:
        # Nobody waits for it, so no retry may attach to it.
        await call.runtime.api.end_connection(request.id, request.process, complete=True)
    return None if response is None else response.id


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path=PATH,
        handle=receive,
        summary="Store an event of another service; its signature is the credential.",
        role=None,
        result=HookEvent,
        status=202,
        other_results={200: Challenge},
    ),
)
