"""Endpoints for the verbs that change the current session of a conversation."""

from __future__ import annotations

from starlette.responses import Response

from hermes.actors.conversation import Conversation
from hermes.adapters.http.api import types as t
from hermes.adapters.http.api.conversations import ONE
from hermes.adapters.http.api.names import require_id, resolve
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError
from hermes.messages import SessionChange


async def _begin(call: Call, body: t.VerbBody) -> Conversation:
    """Return the conversation of a request, if it is in the session that the client expects."""
    conversation = call.runtime.conversation(resolve(call, call.path["key"]))
    if body.session_id is not None:
        view = await call.runtime.api.view(conversation.session_key)
        if view.session_id != body.session_id:
            raise ApiError(409, f"The current session is {view.session_id}.", code="conflict")
    return conversation


def _changed(call: Call, change: SessionChange) -> Response:
    call.services.hub.touch(change.session_key)
    return json_response(change)


async def new(call: Call) -> Response:
    """End the current session and start a new one."""
    body = await call.read(t.NewBody)
    return _changed(call, await (await _begin(call, body)).new(body.title))


async def switch(call: Call) -> Response:
    """Continue with another session of this conversation."""
    body = await call.read(t.SwitchBody)
    return _changed(call, await (await _begin(call, body)).switch(body.target))


async def branch(call: Call) -> Response:
    """Copy the conversation, or its beginning, and continue in the copy."""
    body = await call.read(t.BranchBody)
    conversation = await _begin(call, body)
    to = None if body.to is None else call.caller.key(require_id(body.to))
    change = await conversation.branch(body.title, to=to, before=body.before)
    return _changed(call, change)


async def undo(call: Call) -> Response:
    """Take back the last messages of the user and their replies."""
    body = await call.read(t.UndoBody)
    conversation = await _begin(call, body)
    if body.last is not None:
        rows = await conversation.history(limit=1, include_waiting=False)
        if not rows or rows[-1].id != body.last:
            raise ApiError(409, "The last message is another one.", code="conflict", param="last")
    return _changed(call, await conversation.undo(body.exchanges))


async def compress(call: Call) -> Response:
    """Summarize the older part of the conversation."""
    body = await call.read(t.CompressBody)
    conversation = await _begin(call, body)
    change = await conversation.compress(body.focus, keep_exchanges=body.keep_exchanges)
    return _changed(call, change)


async def close(call: Call) -> Response:
    """End the current session; the next message starts a new one."""
    body = await call.read(t.VerbBody)
    return _changed(call, await (await _begin(call, body)).close(reason="api_close"))


ENDPOINTS: tuple[Endpoint, ...] = tuple(
    Endpoint(
        method="POST", path=f"{ONE}/{name}", handle=handle, body=body, result=SessionChange,
        summary=summary,
    )
    for name, handle, body, summary in (
        ("new", new, t.NewBody, "Start a new session."),
        ("switch", switch, t.SwitchBody, "Continue with another session of the conversation."),
        ("branch", branch, t.BranchBody, "Copy the conversation, or its beginning."),
        ("undo", undo, t.UndoBody, "Take back the last messages."),
        ("compress", compress, t.CompressBody, "Summarize the older part."),
        ("close", close, t.VerbBody, "End the current session."),
    )
)  # fmt: skip
