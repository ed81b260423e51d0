"""Conversations: created before their first message, with metadata; their items are messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response

from hermes.adapters.http.credentials import new_id
from hermes.adapters.http.endpoints import Call, Endpoint, decode, json_response
from hermes.adapters.http.errors import ApiError, not_found, unsupported
from hermes.adapters.http.openai.responses.pages import (
    Page,
    PageQuery,
    items_of_conversation,
    items_of_rows,
    page_of,
    read_page,
)
from hermes.adapters.http.openai.responses.requests import check_metadata, read_messages
from hermes.adapters.http.openai.responses.targets import exists, is_conversation_id
from hermes.errors import ReplyNotFound, ReplyTimeout, UnknownSession
from hermes.messages import (
    ConversationSettings,
    JsonObject,
    Receipt,
    WaitingMessage,
)

PATH = "/v1/conversations"
RESPONSES = "/v1/responses"
CREATED = "openai_created_at"
METADATA = "openai_metadata"
MAX_SESSIONS = 1000
CANCEL_SECONDS = 10.0
MAX_NEW_ITEMS = 20


class CreateConversation(msgspec.Struct, kw_only=True):
    """The body of a new conversation."""

    metadata: dict[str, str] | None = None
    items: list[dict[str, Any]] | None = None


class UpdateConversation(msgspec.Struct, kw_only=True):
    """The body of a change."""

    metadata: dict[str, str] | None


class CreateItems(msgspec.Struct, kw_only=True):
    """New items of a conversation."""

    items: list[dict[str, Any]]


async def create(call: Call) -> Response:
    """Create a conversation, which may begin with a history."""
    body = await call.read(CreateConversation)
    conversation, metadata = new_id("conv"), check_metadata(body.metadata)
    rows = await read_messages(call, call.caller.key(conversation), body.items or [])
    settings = {CREATED: int(time.time()), METADATA: metadata}
    await call.runtime.conversation(call.caller.key(conversation)).configure(metadata=settings)
    if rows:
        await call.runtime.api.add_messages(
            call.caller.key(conversation), rows, call.caller.source(conversation)
        )
    return json_response(_object(conversation, settings))


async def retrieve(call: Call) -> Response:
    """Return a conversation."""
    conversation, key, settings = await _find(call)
    return json_response(_object(conversation, await _dated(call, key, settings.metadata)))


async def update(call: Call) -> Response:
    """Replace the metadata of a conversation."""
    conversation, key, settings = await _find(call)
    body = decode(await call.body(), UpdateConversation)
    metadata = {**settings.metadata, METADATA: check_metadata(body.metadata)}
    metadata = await _dated(call, key, metadata)
    await call.runtime.conversation(key).configure(metadata=metadata)
    return json_response(_object(conversation, metadata))


async def delete(call: Call) -> Response:
    """Delete a conversation with its messages and responses; a running turn is cancelled."""
    conversation, key, _ = await _find(call)
    handle = call.runtime.conversation(key)
    for row in reversed(await handle.history()):  # the running one last
        if isinstance(row, WaitingMessage):
            await _cancel(call, Receipt(row.inbox_id, key, "", 0, row.timestamp))
    await call.runtime.api.delete_responses(key)  # those of a session without messages
    sessions = await handle.sessions(
        include_subagents=True, include_archived=True, limit=MAX_SESSIONS
    )
    for summary in sessions:
        try:
            await call.runtime.admin.delete(summary.session.id)
        except UnknownSession:
            continue  # it was deleted together with another
    await handle.configure(agent=None, model=None, metadata=None)
    return json_response({"id": conversation, "object": "conversation.deleted", "deleted": True})


async def _cancel(call: Call, receipt: Receipt) -> None:
    """Cancel a message, so that no turn answers it after the conversation was deleted."""
    if await call.runtime.api.cancel_turn(receipt):
        with suppress(ReplyNotFound, ReplyTimeout):
            await call.runtime.wait(receipt, timeout=CANCEL_SECONDS)
    response = await call.runtime.api.response_to(receipt)
    if response is not None:
        await call.runtime.api.delete_response(response.id)


async def _find(call: Call) -> tuple[str, str, ConversationSettings]:
    """Return the id, the key and the settings of the conversation in the path."""
    conversation = call.path["conversation_id"]
    key = call.caller.key(conversation)
    if not is_conversation_id(conversation) or not await exists(call, key):
        raise not_found(f"conversation {conversation[:100]!r}")
    return conversation, key, await call.runtime.conversation(key).settings()


async def _dated(call: Call, key: str, settings: Mapping[str, Any]) -> JsonObject:
    """Return the metadata with the time at which the conversation began, if a response did that."""
    if CREATED in settings:
        return dict(settings)
    found = await call.runtime.conversation(key).sessions(include_archived=True, limit=MAX_SESSIONS)
    began = min((summary.started_at for summary in found), default=time.time())
    return {**settings, CREATED: int(began)}


def _object(conversation: str, settings: JsonObject | Any) -> JsonObject:
    return {
        "id": conversation,
        "object": "conversation",
        "created_at": settings.get(CREATED, 0),
        "metadata": settings.get(METADATA, {}),
    }


# Items


async def list_items(call: Call) -> Response:
    """List the items of a conversation, newest first unless `order` is "asc"."""
    _, key, _ = await _find(call)
    return json_response(page_of(await _items(call, key), read_page(call)))


async def create_items(call: Call) -> Response:
    """Add items to a conversation; no turn answers them."""
    conversation, key, _ = await _find(call)
    body = decode(await call.body(), CreateItems)
    if not 0 < len(body.items) <= MAX_NEW_ITEMS:
        text = f"items must have 1 to {MAX_NEW_ITEMS} items."
        raise ApiError(400, text, code="invalid_value", param="items")
    rows = await read_messages(call, key, body.items)
    source = call.caller.source(conversation)
    added = await call.runtime.api.add_messages(key, rows, source)
    items = items_of_rows(added)
    return json_response(page_of(items, Page(limit=max(1, len(items)), ascending=True)))


async def get_item(call: Call) -> Response:
    """Return an item."""
    _, key, _ = await _find(call)
    for item in await _items(call, key):
        if item["id"] == call.path["item_id"]:
            return json_response(item)
    raise not_found(f"item {call.path['item_id'][:100]!r}")


async def delete_item(call: Call) -> Response:
    """Refuse to delete an item: what follows it was said in its knowledge."""
    await _find(call)
    raise unsupported("item_id", "cannot be deleted: items are deleted with their conversation")


async def _items(call: Call, key: str) -> list[JsonObject]:
    responses = await call.runtime.api.list_responses(key, RESPONSES)
    rows = await call.runtime.conversation(key).history(include_waiting=False)
    return items_of_conversation(rows, responses)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path=PATH,
        handle=create,
        summary="Create a conversation.",
        body=CreateConversation,
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{conversation_id}}",
        handle=retrieve,
        summary="Return a conversation.",
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/{{conversation_id}}",
        handle=update,
        summary="Replace the metadata of a conversation.",
        body=UpdateConversation,
    ),
    Endpoint(
        method="DELETE",
        path=f"{PATH}/{{conversation_id}}",
        handle=delete,
        summary="Delete a conversation, its messages and its responses.",
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{conversation_id}}/items",
        handle=list_items,
        summary="List the items of a conversation.",
        query=PageQuery,
    ),
    Endpoint(
        method="POST",
        path=f"{PATH}/{{conversation_id}}/items",
        handle=create_items,
        summary="Add items to a conversation.",
        body=CreateItems,
    ),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{conversation_id}}/items/{{item_id}}",
        handle=get_item,
        summary="Return an item.",
    ),
    Endpoint(
        method="DELETE",
        path=f"{PATH}/{{conversation_id}}/items/{{item_id}}",
        handle=delete_item,
        summary="Refused: an item is deleted with its conversation.",
    ),
)
