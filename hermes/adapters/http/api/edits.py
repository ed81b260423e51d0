"""`POST …/edit`: a new version of a message, in a branch before it.

A branch is made first, and then the message is sent to it. A request that is sent again, also
without an `Idempotency-Key` or after a crash between the two, finds what the first one did.
"""

from __future__ import annotations

import hashlib

import msgspec
from starlette.responses import Response

from hermes.adapters.http.api import types as t
from hermes.adapters.http.api.conversations import ONE
from hermes.adapters.http.api.messages import answer, sent_key, source_of, submit
from hermes.adapters.http.api.names import resolve
from hermes.adapters.http.endpoints import Call, Endpoint
from hermes.messages import Session


async def edit(call: Call) -> Response:
    """Replace a message of the user: the conversation goes on in a branch before it."""
    key = resolve(call, call.path["key"])
    body = await call.read(t.EditBody)
    event_id = sent_key(call)
    if event_id is None or not await _was_sent(call, key, event_id):
        session_id = await _branch(call, key, body)
        event_id = event_id or _event_id(session_id, body)
    options = {"commands": False, "event_id": event_id}
    receipt = await submit(call, key, body.text, body.parts, options)  # type: ignore[arg-type]
    call.services.hub.touch(key)
    return await answer(call, receipt, background=body.background)


def _event_id(session_id: str, body: t.EditBody) -> str:
    """Return the id of the message that an edit sends to its branch."""
    content = msgspec.json.encode([body.message, body.text, body.parts])
    return f"edit:{session_id}:{hashlib.sha256(content).hexdigest()}"


async def _was_sent(call: Call, key: str, event_id: str) -> bool:
    """Whether the message was accepted before."""
    source = source_of(call, key)
    return await call.runtime.receipt_of(key, event_id, source=source) is not None


async def _branch(call: Call, key: str, body: t.EditBody) -> str:
    """Return the session of the branch, and make it unless another request has done so."""
    known = await _find_branch(call, key, body)
    if known is not None:
        return known
    try:
        change = await call.runtime.conversation(key).branch(before=body.message)
    except ValueError:  # the message is not in the current session, perhaps since a moment ago
        known = await _find_branch(call, key, body)
        if known is None:
            raise
        return known
    return change.session_id or ""


async def _find_branch(call: Call, key: str, body: t.EditBody) -> str | None:
    """Return the session of the branch that an equal request has made, if it is the current one."""
    current = (await call.runtime.api.view(key)).session_id
    found = None if current is None else await call.runtime.admin.find(current)
    if found is None:
        return None
    for session_id in found.lineage:
        if await _was_sent(call, key, _event_id(session_id, body)):
            return session_id
    session = found.session
    begun = session is not None and await _is_begun(call, key, session, body.message)
    return session.id if session is not None and begun else None


async def _is_begun(call: Call, key: str, session: Session, message: int) -> bool:
    """Whether the session is the branch before a message, and nothing was sent to it yet."""
    parent = session.parent_session_id
    if session.kind != "branch" or parent is None:
        return False
    edited = await call.runtime.admin.messages(parent, before=message + 1, limit=1)
    if not edited or edited[-1].id != message:
        return False
    before = await call.runtime.admin.messages(parent, before=message)
    return len(await call.runtime.conversation(key).history()) == len(before)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST", path=f"{ONE}/edit", handle=edit, body=t.EditBody,
        summary="Replace a message, in a branch.", result=t.SentMessage, idempotency_key=True,
        other_results={202: t.SentMessage},
    ),
)  # fmt: skip
