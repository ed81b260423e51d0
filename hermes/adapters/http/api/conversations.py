"""Endpoints for conversations: list, create, change and delete them, and read their messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from hermes.adapters.http.api import types as t
from hermes.adapters.http.api.names import id_of, is_visible, prefixes, require_id, resolve
from hermes.adapters.http.credentials import new_id
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError, not_found
from hermes.adapters.jsonrpc.rows import to_row
from hermes.adapters.jsonrpc.types import Row
from hermes.messages import ConversationSettings, ConversationSummary, SearchHit

PATH = "/api/conversations"
ONE = f"{PATH}/{{key}}"
MAX_PAGES = 20
"""Pages of the store that are read for one page of a token with narrow patterns."""


class HistoryPageOptions(TypedDict):
    """Which messages of a transcript to return."""

    limit: int
    before: int | None
    after: int | None
    lineage: bool


async def list_conversations(call: Call) -> Response:
    """List the caller's conversations, most recently active first."""
    query = call.query(t.ListQuery)
    before = None if query.before is None else _cursor(query.before)
    found, page = list[ConversationSummary](), list[ConversationSummary]()
    for _ in range(MAX_PAGES):
        page = await call.runtime.api.conversations(
            prefixes=prefixes(call.caller), title_contains=query.q, archived=query.archived,
            before=before, limit=query.limit,
        )  # fmt: skip
        found += [each for each in page if is_visible(call.caller, each.session_key)]
        if page:
            before = page[-1].last_active, page[-1].session_key
        if len(page) < query.limit or len(found) >= query.limit:
            break
    more = len(page) == query.limit
    following = None
    if more and before is not None:
        last = found[query.limit - 1] if len(found) >= query.limit else None
        at = before if last is None else (last.last_active, last.session_key)
        following = msgspec.json.encode(at).decode()
    listed = [_listed(call, each) for each in found[: query.limit]]
    return json_response(t.ConversationList(listed, following))


def _cursor(text: str) -> tuple[float, str]:
    try:
        return msgspec.json.decode(text, type=tuple[float, str])
    except (msgspec.MsgspecError, UnicodeError):
        message = "`before` is not the `next` of a page."
        raise ApiError(400, message, code="invalid_value", param="before") from None


def _listed(call: Call, found: ConversationSummary) -> t.Conversation:
    return msgspec.convert(_fields(call, found), t.Conversation)


def _fields(call: Call, found: ConversationSummary) -> dict[str, Any]:
    turn = call.runtime.api.progress(found.session_key)
    name = id_of(call.caller, found.session_key)
    turn_id = None if turn is None else turn.turn_id
    return {**msgspec.structs.asdict(found), "id": name, "turn_id": turn_id}


async def create(call: Call) -> Response:
    """Create a conversation, or return the one with this id."""
    body = await call.read(t.CreateBody)
    key = call.caller.key(new_id("conv") if body.id is None else require_id(body.id))
    settings = {"agent": body.agent, "model": body.model, "metadata": body.metadata}
    await _change(call, key, {name: value for name, value in settings.items() if value is not None})
    if body.title is not None:
        await call.runtime.conversation(key).set_title(body.title)
    call.services.hub.touch(key)
    return json_response(await _details(call, key), 201)


async def _change(call: Call, key: str, settings: dict[str, object]) -> None:
    if settings:
        await call.runtime.conversation(key).configure(**settings)  # type: ignore[arg-type]


async def get(call: Call) -> Response:
    """Return a conversation. It must have a message, a title or settings."""
    key = resolve(call, call.path["key"])
    found = await _details(call, key)
    used = found.message_count or found.waiting or found.title or found.turn_id
    if not used and found.settings == ConversationSettings():
        raise not_found("such conversation")
    return json_response(found)


async def _details(call: Call, key: str) -> t.ConversationDetails:
    """Return a conversation, which may be empty."""
    settings = await call.runtime.conversation(key).settings()
    found = await call.runtime.api.conversations(keys=[key], archived=None, limit=1)
    fields = _fields(call, found[0] if found else _empty(key, call.caller.token.platform))
    return msgspec.convert({**fields, "settings": settings}, t.ConversationDetails)


def _empty(key: str, platform: str) -> ConversationSummary:
    return ConversationSummary(
        session_key=key, session_id="", title=None, preview="", platform=platform,
        started_at=None, last_active=0.0, message_count=0, waiting=0, archived=False, model=None,
        cost=0.0,
    )  # fmt: skip


async def update(call: Call) -> Response:
    """Rename, archive or configure a conversation."""
    key = resolve(call, call.path["key"])
    body = await call.read(t.UpdateBody)
    conversation = call.runtime.conversation(key)
    if body.title is not UNSET:
        await conversation.set_title(body.title)
    if body.archived is not UNSET:
        session_id = (await call.runtime.api.view(key)).session_id or ""
        move = conversation.archive if body.archived else conversation.unarchive
        await move(session_id)
    settings = {"agent": body.agent, "model": body.model, "metadata": body.metadata}
    await _change(
        call, key, {name: value for name, value in settings.items() if value is not UNSET}
    )
    call.services.hub.touch(key)
    return json_response(await _details(call, key))


async def delete(call: Call) -> Response:
    """Delete a conversation with all messages of its current session, and its settings."""
    key = resolve(call, call.path["key"])
    deleted = await call.runtime.api.delete_conversation(key)
    call.services.hub.touch(key)
    return json_response(t.Deleted(deleted))


async def history(call: Call) -> Response:
    """Return a page of the messages of a conversation."""
    key, query = resolve(call, call.path["key"]), call.query(t.HistoryQuery)
    if query.before is not None and query.after is not None:
        raise ApiError(400, "Pass only one of `before` and `after`.", code="invalid_value")
    options = HistoryPageOptions(
        limit=query.limit, before=query.before, after=query.after, lineage=query.lineage
    )
    if query.session_id is None:
        rows = await call.runtime.conversation(key).history(**options, include_waiting=False)
    else:
        found = await call.runtime.admin.find(query.session_id, session_key=key)
        if found is None or query.session_id not in found.lineage or found.session is None:
            raise not_found("such session in this conversation")
        rows = await call.runtime.admin.messages(query.session_id, **options)
    page: Sequence[Row] = [to_row(row) for row in rows]
    if query.rendered:
        page = await call.services.hub.renderer.rows(key, page)
    return json_response(t.HistoryPage(page))


async def sessions(call: Call) -> Response:
    """List the sessions of a conversation: those before `/new`, branches and others."""
    key, query = resolve(call, call.path["key"]), call.query(t.SessionsQuery)
    found = await call.runtime.conversation(key).sessions(
        include_archived=query.archived, limit=query.limit, offset=query.offset
    )
    return json_response(t.SessionList(found))


async def search(call: Call) -> Response:
    """Search the messages of the caller's conversations."""
    query = call.query(t.SearchQuery)
    hits = await call.runtime.api.search(
        query.q, prefixes=prefixes(call.caller), role=query.role, limit=query.limit
    )
    sessions = {hit.session_id for hit in hits}
    keys = {each: await _visible_key(call, each) for each in sessions}
    narrow = call.caller.token.keys and not call.caller.has_role("operator")
    found = [_found(hit, keys[hit.session_id]) for hit in hits]
    return json_response(t.SearchResult([each for each in found if each.session_key or not narrow]))


async def search_one(call: Call) -> Response:
    """Search the messages of one conversation."""
    key, query = resolve(call, call.path["key"]), call.query(t.SearchQuery)
    hits = await call.runtime.conversation(key).search(query.q, role=query.role, limit=query.limit)
    return json_response(t.SearchResult([_found(hit, key) for hit in hits]))


def _found(hit: SearchHit, key: str | None) -> t.FoundMessage:
    return t.FoundMessage(**msgspec.structs.asdict(hit), session_key=key)


async def _visible_key(call: Call, session_id: str) -> str | None:
    """Return the session key of a session that the caller may use; None if there is none."""
    found = await call.runtime.admin.find(session_id)
    keys: Iterable[str] = () if found is None else (*found.session_keys, *found.owners)
    return next((key for key in keys if is_visible(call.caller, key)), None)


async def all_sessions(call: Call) -> Response:
    """List the sessions of all conversations."""
    query = call.query(t.SessionsQuery)
    found = await call.runtime.admin.sessions(
        include_archived=query.archived, limit=query.limit, offset=query.offset
    )
    return json_response(t.SessionList(found))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path=PATH, handle=list_conversations, query=t.ListQuery,
        summary="List the caller's conversations.", result=t.ConversationList,
    ),
    Endpoint(
        method="POST", path=PATH, handle=create, body=t.CreateBody, status=201,
        summary="Create a conversation.", result=t.ConversationDetails,
    ),
    Endpoint(
        method="GET", path=ONE, handle=get, summary="Return a conversation.",
        result=t.ConversationDetails,
    ),
    Endpoint(
        method="PATCH", path=ONE, handle=update, body=t.UpdateBody,
        summary="Rename, archive or configure a conversation.", result=t.ConversationDetails,
    ),
    Endpoint(
        method="DELETE", path=ONE, handle=delete, summary="Delete a conversation.",
        result=t.Deleted,
    ),
    Endpoint(
        method="GET", path=f"{ONE}/history", handle=history, query=t.HistoryQuery,
        summary="Return a page of messages.", result=t.HistoryPage,
    ),
    Endpoint(
        method="GET", path=f"{ONE}/sessions", handle=sessions, query=t.SessionsQuery,
        summary="List the sessions of a conversation.", result=t.SessionList,
    ),
    Endpoint(
        method="GET", path=f"{ONE}/search", handle=search_one, query=t.SearchQuery,
        summary="Search a conversation.", result=t.SearchResult,
    ),
    Endpoint(
        method="GET", path="/api/search", handle=search, query=t.SearchQuery,
        summary="Search the caller's conversations.", result=t.SearchResult,
    ),
    Endpoint(
        method="GET", path="/api/sessions", handle=all_sessions, query=t.SessionsQuery,
        summary="List the sessions of all conversations.", result=t.SessionList, role="operator",
    ),
)  # fmt: skip
