"""Endpoints for messages: send, steer, interrupt and withdraw."""

from __future__ import annotations

from starlette.responses import Response

from hermes.actors.admission.options import MessageOptions, make_inbound
from hermes.adapters.http.api import types as t
from hermes.adapters.http.api.conversations import ONE
from hermes.adapters.http.api.names import id_of, number, resolve
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError, not_found
from hermes.adapters.http.tracing import trace_metadata
from hermes.adapters.jsonrpc.files.handlers import message_parts
from hermes.adapters.jsonrpc.frames import Refused
from hermes.errors import ActorStopped, Draining, EventConflict, ReplyNotFound
from hermes.messages import Attachment, MessageOutcome, Receipt, Source

MAX_KEY = 255


def source_of(call: Call, key: str) -> Source:
    """Return the source of the caller's messages to a conversation."""
    return call.caller.source(id_of(call.caller, key) or key)


async def submit(
    call: Call, key: str, text: str, parts: t.Parts, options: MessageOptions
) -> Receipt:
    """Store a message of the caller. With an `Idempotency-Key`, a repeated one is stored once."""
    if not text.strip() and not parts:
        raise ApiError(400, "The message is empty.", code="invalid_value", param="text")
    stored, attachments = _parts(parts)
    event_id = options.get("event_id") or sent_key(call)
    given: MessageOptions = {
        **options, "source": source_of(call, key), "event_id": event_id,
        "parts": stored or None, "attachments": attachments or None,
        "metadata": {**(options.get("metadata") or {}), **trace_metadata(call)},
    }  # fmt: skip
    inbound = make_inbound(key, text, given)
    try:
        return await call.runtime.submit(inbound, attachments=attachments or None)
    except EventConflict:
        text = "The Idempotency-Key was used for another message of this conversation."
        raise ApiError(422, text, code="idempotency_key_reused") from None


def _parts(parts: t.Parts) -> tuple[list[dict[str, object]], list[Attachment]]:
    try:
        return message_parts(parts)
    except Refused as refused:
        raise ApiError(400, str(refused), code="file_refused", param="parts") from None


def sent_key(call: Call) -> str | None:
    """Return the event id of a request with an `Idempotency-Key`; None without one."""
    key = call.request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY:
        raise ApiError(400, f"An Idempotency-Key has 1 to {MAX_KEY} characters.")
    return f"key:{key}"


async def answer(call: Call, receipt: Receipt, *, background: bool) -> Response:
    """Return an accepted message: now, or with its reply.

    A message that was accepted is never reported as failed: it is answered after a restart.
    """
    if not background:
        try:
            await call.runtime.wait(receipt)
        except ReplyNotFound:
            pass
        except (Draining, ActorStopped):
            return json_response(_sent(receipt, None), 202)
    outcome = await call.runtime.api.outcome(receipt.inbox_id)
    sent = _sent(receipt, outcome)
    return json_response(sent, 202 if sent.state == "open" else 200)


def _sent(receipt: Receipt, outcome: MessageOutcome | None) -> t.SentMessage:
    return t.SentMessage(
        message_id=receipt.inbox_id,
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        state="open" if outcome is None else outcome.state,
        reply=None if outcome is None else outcome.reply,
    )


async def send(call: Call) -> Response:
    """Send a message or a command, and wait for the reply."""
    key = resolve(call, call.path["key"])
    body = await call.read(t.MessageBody)
    options: MessageOptions = {
        "when_busy": body.when_busy, "commands": body.commands, "metadata": body.metadata,
    }  # fmt: skip
    receipt = await submit(call, key, body.text, body.parts, options)
    return await answer(call, receipt, background=body.background)


async def steer(call: Call) -> Response:
    """Send a message to the running turn; if none is running, it is a normal message."""
    key = resolve(call, call.path["key"])
    body = await call.read(t.SteerBody)
    options: MessageOptions = {"when_busy": "steer", "commands": False}
    receipt = await submit(call, key, body.text, body.parts, options)
    return await answer(call, receipt, background=True)


async def retry(call: Call) -> Response:
    """Answer the last message again."""
    key = resolve(call, call.path["key"])
    body = await call.read(t.RetryBody)
    receipt = await submit(call, key, "/retry", [], {})
    return await answer(call, receipt, background=body.background)


async def interrupt(call: Call) -> Response:
    """Stop the running turn; what it has said so far is kept."""
    key = resolve(call, call.path["key"])
    return json_response(t.Interrupted(await call.runtime.conversation(key).interrupt()))


async def get(call: Call) -> Response:
    """Return what became of a message."""
    outcome = await _outcome(call)
    return json_response(_sent(outcome.receipt, outcome))


async def withdraw(call: Call) -> Response:
    """Take back a message whose turn has not begun."""
    outcome = await _outcome(call)
    withdrawn = outcome.state == "open" and await call.runtime.withdraw(outcome.receipt)
    return json_response(t.Withdrawn(withdrawn))


async def _outcome(call: Call) -> MessageOutcome:
    key = resolve(call, call.path["key"])
    outcome = await call.runtime.api.outcome(number(call.path["message_id"]))
    if outcome is None or outcome.receipt.session_key != key:
        raise not_found("such message")
    return outcome


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST", path=f"{ONE}/messages", handle=send, body=t.MessageBody,
        summary="Send a message or a command.", result=t.SentMessage, idempotency_key=True,
        other_results={202: t.SentMessage},
    ),
    Endpoint(
        method="GET", path=f"{ONE}/messages/{{message_id}}", handle=get,
        summary="Return a message that was sent, and its reply.", result=t.SentMessage,
    ),
    Endpoint(
        method="DELETE", path=f"{ONE}/messages/{{message_id}}", handle=withdraw,
        summary="Take back a message whose turn has not begun.", result=t.Withdrawn,
    ),
    Endpoint(
        method="POST", path=f"{ONE}/steer", handle=steer, body=t.SteerBody,
        summary="Send a message to the running turn.", result=t.SentMessage, idempotency_key=True,
        other_results={202: t.SentMessage},
    ),
    Endpoint(
        method="POST", path=f"{ONE}/retry", handle=retry, body=t.RetryBody,
        summary="Answer the last message again.", result=t.SentMessage, idempotency_key=True,
        other_results={202: t.SentMessage},
    ),
    Endpoint(
        method="POST", path=f"{ONE}/interrupt", handle=interrupt,
        summary="Stop the running turn.", result=t.Interrupted,
    ),
)  # fmt: skip
