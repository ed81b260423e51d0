"""The conversation of a request: a new one, a named one, or that of an earlier response."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from hermes.adapters.http.credentials import new_id
from hermes.adapters.http.endpoints import Call
from hermes.adapters.http.errors import ApiError, not_found, unsupported
from hermes.adapters.http.openai.responses.requests import Parameters
from hermes.errors import UnknownSession
from hermes.messages import (
    SUMMARY,
    ConversationSettings,
    Opening,
    Source,
    StoredMessage,
    StoredResponse,
    WaitingMessage,
)
from hermes.session_keys import EPHEMERAL, session_key

_CONVERSATION = re.compile(r"conv_[0-9a-f]{32}")


@attrs.frozen
class Target:
    """Where the message of a request goes."""

    conversation: str | None
    """The id of the conversation; None if the request belongs to none."""
    key: str
    source: Source
    branch: Opening | None = None
    """How the conversation begins, if the request opens a branch."""


@asynccontextmanager
async def target_of(call: Call, parameters: Parameters) -> AsyncIterator[Target]:
    """Find the conversation of a request; the block accepts its message.

    A request that follows an earlier response waits for others that do so at the same time, so that
    only one of them continues the conversation. Raises `ApiError` if there is none.
    """
    if not parameters.store:
        if parameters.previous is not None or parameters.conversation is not None:
            raise unsupported("store", "must not be false for a request in a conversation")
        name = new_id(EPHEMERAL)
        yield Target(None, call.caller.key(name), call.caller.source(name))
        return
    if parameters.previous is None:
        named = parameters.conversation
        yield _target(call, new_id("conv")) if named is None else await _named(call, named)
        return
    previous = await call.runtime.api.get_response(parameters.previous)
    if previous is None or not previous.stored or not call.caller.owns(previous.session_key):
        raise not_found(f"response {parameters.previous[:100]!r}", "previous_response_id")
    async with call.services.following.setdefault(previous.session_key, trio.Lock()):
        conversation = previous.echo.get("conversation")
        if conversation is not None and await _is_newest(call, previous):
            yield _target(call, conversation, key=previous.session_key)
        else:
            yield await _branch(call, previous)


async def _branch(call: Call, previous: StoredResponse) -> Target:
    """Return a new conversation with the messages up to those of an earlier response."""
    fresh = await call.runtime.api.get_response(previous.id) or previous
    last = await _last_row(call, fresh)
    if last is None:
        text = "The response in previous_response_id has not ended, or its messages are gone."
        raise ApiError(400, text, code="invalid_value", param="previous_response_id")
    settings = await call.runtime.conversation(previous.session_key).settings()
    branch = Opening(is_new=True, upto=last.id, settings=settings)
    return attrs.evolve(_target(call, new_id("conv")), branch=branch)


async def _last_row(call: Call, response: StoredResponse) -> StoredMessage | None:
    """Return the last message of a response's turn, unless it was taken back or deleted."""
    reply = response.reply
    if reply is None or reply.messages is None:
        return None
    try:
        rows = await call.runtime.admin.messages(
            reply.session_id, after=reply.messages[1] - 1, limit=1
        )
    except UnknownSession:
        return None
    return rows[0] if rows and rows[0].id == reply.messages[1] else None


def _target(call: Call, conversation: str, key: str | None = None) -> Target:
    source = call.caller.source(conversation)
    return Target(conversation, key or session_key(source), source)


async def _named(call: Call, conversation: str) -> Target:
    target = _target(call, conversation)
    if not is_conversation_id(conversation) or not await exists(call, target.key):
        raise not_found(f"conversation {conversation[:100]!r}", "conversation")
    return target


def is_conversation_id(text: str) -> bool:
    """Whether a text has the form of the id of a conversation."""
    return _CONVERSATION.fullmatch(text) is not None


async def exists(call: Call, key: str) -> bool:
    """Whether there is a conversation: it was created, or has a message."""
    conversation = call.runtime.conversation(key)
    if await conversation.settings() != ConversationSettings():
        return True
    return bool(await last_message(call, key)) or bool(await conversation.sessions(limit=1))


async def last_message(call: Call, key: str) -> StoredMessage | None:
    """Return the last message of a conversation, which may wait for its turn."""
    rows = await call.runtime.conversation(key).history(limit=1)
    return rows[-1] if rows else None


async def _is_newest(call: Call, response: StoredResponse) -> bool:
    """Whether nothing was said in the conversation after a response."""
    last = await last_message(call, response.session_key)
    if last is None or isinstance(last, WaitingMessage):
        return last is not None and last.inbox_id == response.inbox_id
    fresh = await call.runtime.api.get_response(response.id)
    reply = None if fresh is None else fresh.reply
    if fresh is None or reply is None or reply.messages is None:
        return False
    return last.id == reply.messages[1] or await _is_compressed(call, fresh, last)


async def _is_compressed(call: Call, response: StoredResponse, last: StoredMessage) -> bool:
    """Whether the session of a response was compressed, and nothing was said since then.

    The new session has a summary, and copies of the last messages.
    """
    row, reply = await _last_row(call, response), response.reply
    if row is None or reply is None:
        return False
    found = await call.runtime.admin.find(reply.session_id, session_key=response.session_key)
    if found is None or found.session_id == reply.session_id:
        return False
    is_summary = (last.provider_data or {}).get("hermes") == SUMMARY
    return is_summary or last.timestamp <= row.timestamp
