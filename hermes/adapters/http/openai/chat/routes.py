"""Chat completions: each request is one turn, in a conversation or in none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

import msgspec
import trio
from msgspec.structs import replace
from starlette.responses import Response

from hermes.adapters.http.connections import COMMENT, KEEP_ALIVE, EventStream, Tracked
from hermes.adapters.http.credentials import new_id
from hermes.adapters.http.endpoints import Call, Endpoint, Services, decode, json_response
from hermes.adapters.http.errors import ApiError, stopping
from hermes.adapters.http.openai.acceptance import (
    MAX_KEY,
    Accepted,
    accept,
    find_repeated,
    idempotency_key,
    may_repeat,
    new_request,
)
from hermes.adapters.http.openai.chat.messages import as_outputs, as_rows
from hermes.adapters.http.openai.chat.objects import (
    ChunkStream,
    completion,
    error_frame,
    error_of,
)
from hermes.adapters.http.openai.chat.requests import ChatRequest, read_request
from hermes.adapters.http.openai.chat.targets import (
    TASK_HEADER,
    Target,
    ephemeral_target,
    named_conversation,
    stored_target,
)
from hermes.adapters.http.openai.models import DEFAULT, agent_of
from hermes.adapters.http.turns.endings import Ending
from hermes.adapters.http.turns.logs import TurnLog
from hermes.errors import HistoryChanged
from hermes.messages import (
    ApiRequest,
    Inbound,
    JsonObject,
    Message,
    Opening,
    Reply,
    StoredResponse,
)

PATH = "/v1/chat/completions"
MESSAGE_HEADER = "x-hermes-message"
"""The front end's id of the message that will have the answer."""
MAX_MESSAGE = 150
USER_HEADER = "x-hermes-user"
MAX_USER = 200
TRIES = 5
"""How often a conversation may change while its branch is chosen."""


class CreateCompletion(msgspec.Struct, kw_only=True):
    """The body of a request; the parameters that are not listed are in the documentation."""

    messages: list[dict[str, Any]]
    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None


async def create(call: Call) -> Response:
    """Create a chat completion. What repeats an earlier request gets the answer to that one."""
    raw = await call.body()
    request, digest = read_request(decode(raw, JsonObject)), call.digest(raw)
    if may_repeat(call) or not _is_simple(call, request):
        await call.verify()
    agent, key = agent_of(call, request.model), await _key(call, digest)
    accepted = await find_repeated(call, PATH, digest, key=key)
    if accepted is None:
        new = new_request(call, new_id("chatcmpl").replace("_", "-"), PATH, digest, key=key)
        accepted = await _accept(call, request, agent, new)
    ending = call.ending(accepted.response.id if accepted.tracked else None)
    answer = partial(_stream, ending) if request.stream else _plain
    return Tracked(ending, partial(answer, call.services, accepted.response, request))


def _is_simple(call: Call, request: ChatRequest) -> bool:
    """Whether nothing is read or written for a request before its message is accepted."""
    messages = (*request.history, *request.new, *request.outputs)
    return (
        MESSAGE_HEADER not in call.request.headers
        and named_conversation(call, request) is None
        and request.model in {None, DEFAULT}
        and all(isinstance(message.get("content"), str) for message in messages)
    )


async def _key(call: Call, digest: str) -> str | None:
    """Return the idempotency key of a request, or one that is made from the id of its message.

    A front end may send several requests for one message: for its title, or with the results of its
    own tools. These are different requests, and each of them has its own key. Raises `ApiError`.
    """
    headers = call.request.headers
    message, task = headers.get(MESSAGE_HEADER), headers.get(TASK_HEADER)
    key = idempotency_key(call)
    if key is not None or not message:
        return f"{task}:{key}"[:MAX_KEY] if task and key else key
    key = f"{task}:{message}" if task else message
    if not key.isprintable() or len(key) > MAX_MESSAGE:
        text = f"{MESSAGE_HEADER} must have 1 to {MAX_MESSAGE} printable characters."
        raise ApiError(400, text, code="invalid_value", param=MESSAGE_HEADER)
    found = await call.runtime.api.find_response(call.caller.id, key)
    return key if found is None or found.digest == digest else f"{key}:{digest}"


async def _accept(call: Call, request: ChatRequest, agent: str | None, new: ApiRequest) -> Accepted:
    """Find the conversation, and store the message. Raises `ApiError`."""
    name = named_conversation(call, request)
    if name is None:
        return await _accept_in(call, ephemeral_target(call), request, agent, new)
    for _ in range(TRIES - 1):
        try:
            target = await stored_target(call, name, request.history, agent)
            return await _accept_in(call, target, request, agent, new)
        except HistoryChanged:
            continue
    target = await stored_target(call, name, request.history, agent)
    return await _accept_in(call, target, request, agent, new)


async def _accept_in(
    call: Call, target: Target, request: ChatRequest, agent: str | None, new: ApiRequest
) -> Accepted:
    opening = target.opening
    if target.stored and agent is not None:
        settings = await call.runtime.conversation(target.key).settings()
        opening = replace(opening or Opening(), settings=replace(settings, agent=agent))
    history: Sequence[Message] = target.history
    if not target.stored:
        history = await as_rows(call, target.key, request.history, agent)
    message = _joined(await as_rows(call, target.key, request.new, agent))
    new = replace(
        new,
        echo={"model": request.model or DEFAULT},
        stored=target.stored,
        history=tuple(history),
        agent=None if target.stored else agent,
        follows=target.follows,
        opening=opening,
        options=request.options,
        outputs=await as_outputs(call, target.key, request.outputs, agent),
        decisions=request.decisions,
    )
    return await accept(call, _inbound(call, target, request, message, new))


def _inbound(
    call: Call, target: Target, request: ChatRequest, message: Message, api_request: ApiRequest
) -> Inbound:
    user = call.request.headers.get(USER_HEADER) or request.user
    return Inbound(
        session_key=target.key,
        event_id=api_request.id,
        text=message.content or "",
        parts=message.parts,
        source=target.source,
        when_busy="queue",
        metadata={"user": user[:MAX_USER]} if user else {},
        request=api_request,
    )


def _joined(rows: list[Message]) -> Message:
    """Return several messages of a user as one."""
    if len(rows) == 1:
        return rows[0]
    text = "\n\n".join(row.content or "" for row in rows)
    if all(row.parts is None for row in rows):
        return Message("user", text)
    parts = [
        part for row in rows for part in row.parts or ({"type": "text", "text": row.content or ""},)
    ]
    return Message("user", text, parts=tuple(parts))


# Answers


async def _plain(services: Services, response: StoredResponse, request: ChatRequest) -> Response:
    """Wait for the end of the turn."""
    del request
    reply = response.reply
    if reply is None:
        reply = await services.logs.of(response).wait()
    _mark_shown(services, reply)
    error = error_of(reply)
    return json_response(completion(response, reply)) if error is None else error.response()


async def _stream(
    ending: Ending, services: Services, response: StoredResponse, request: ChatRequest
) -> Response:
    await trio.lowlevel.checkpoint()
    chunks = ChunkStream(response, include_usage=request.include_usage)
    return EventStream(_chunks(services, response, chunks, ending), at_once=True)


async def _chunks(
    services: Services, response: StoredResponse, chunks: ChunkStream, ending: Ending
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a completion while its turn runs."""
    yield chunks.begin()
    reply, index = response.reply, 0
    log = TurnLog() if reply is not None else services.logs.of(response)
    while reply is None and not log.stopped:
        while index < len(log.events):
            index += 1
            if chunk := chunks.feed(log.events[index - 1]):
                yield chunk
        reply = log.reply
        if reply is None and await _is_silent(log):
            yield COMMENT
    if reply is None:
        yield error_frame(stopping())
        raise stopping()  # the connection counts as cut
    _mark_shown(services, reply)
    await ending.begin()
    yield chunks.end(reply)


def _mark_shown(services: Services, reply: Reply) -> None:
    for approval in reply.approvals:
        services.runtime.mark_shown(approval)


async def _is_silent(log: TurnLog) -> bool:
    """Wait for the next event of a turn. Returns whether there was none for a while."""
    with trio.move_on_after(KEEP_ALIVE) as waiting:
        if not log.stopped:
            await log.changed()
    return waiting.cancelled_caught


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path=PATH,
        handle=create,
        summary="Create a chat completion.",
        checks_token=True,
        body=CreateCompletion,
        streams=True,
    ),
)
