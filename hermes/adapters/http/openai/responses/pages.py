"""Messages of a transcript as items, and lists of items in pages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile

import attrs
import msgspec

from hermes.adapters.http.endpoints import Call
from hermes.adapters.http.errors import ApiError
from hermes.adapters.http.openai.responses.items import (
    bodies_of,
    call_body,
    has_tools,
    message_body,
    output_of,
    reasoning_body,
)
from hermes.adapters.http.openai.responses.outcomes import lost_items
from hermes.messages import JsonObject, Reply, StoredMessage, StoredResponse

MAX_PAGE = 100


class PageQuery(msgspec.Struct):
    """Which items of a list are returned."""

    limit: int = 20
    order: str = "desc"
    """"asc" for the oldest first."""
    after: str | None = None
    """The id of the item before the page."""


@attrs.frozen(kw_only=True)
class Page:
    """A part of a list."""

    limit: int = 20
    ascending: bool = False
    after: str | None = None


def read_page(call: Call) -> Page:
    """Return which part of a list is asked for. Raises `ApiError`."""
    query = call.request.query_params
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_PAGE):
        text = f"limit must be a number from 1 to {MAX_PAGE}."
        raise ApiError(400, text, code="invalid_value", param="limit")
    if order not in {"asc", "desc"}:
        raise ApiError(400, 'order must be "asc" or "desc".', code="invalid_value", param="order")
    return Page(limit=int(limit), ascending=order == "asc", after=query.get("after"))


def page_of(items: Sequence[JsonObject], page: Page) -> JsonObject:
    """Return a page of a list of items, which are in order. Raises `ApiError`."""
    ordered = list(items) if page.ascending else list(reversed(items))
    if page.after is not None:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            text = "There is no item with the id in after."
            raise ApiError(400, text, code="invalid_value", param="after")
        ordered = ordered[ids.index(page.after) + 1 :]
    shown = ordered[: page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(ordered) > len(shown),
    }


def items_of_rows(rows: Sequence[StoredMessage]) -> list[JsonObject]:
    """Return the items of messages; their ids are derived from those of the rows."""
    return [item for row in rows for item in _items(row)]


def input_of(response_id: str, rows: Sequence[StoredMessage]) -> list[JsonObject]:
    """Return the input of a response: the first of its rows."""
    items = items_of_rows(list(takewhile(lambda row: row.role != "assistant", rows)))
    ids = [f"{item['id'].partition('_')[0]}_{response_id.removeprefix('resp_')}" for item in items]
    return [{**item, "id": f"{ids[n]}_in{n}"} for n, item in enumerate(items)]


def items_of_conversation(
    rows: Sequence[StoredMessage], responses: Sequence[StoredResponse]
) -> list[JsonObject]:
    """Return the items of a conversation; those of its responses have the same ids there."""
    numbers = [row.id for row in rows]
    shown: dict[str, JsonObject | None] = {}
    for response in responses:
        reply = response.reply
        if reply is None or reply.messages is None or reply.turn_id != response.inbox_id:
            continue  # it has no messages, or they are those of the response that it steered
        first, last = reply.messages
        taken = rows[bisect_left(numbers, first) : bisect_right(numbers, last)]
        if len(taken) == last - first + 1:  # nothing was taken back
            shown.update(_shown(response, reply, taken))
    items = [shown.get(item["id"], item) for item in items_of_rows(rows)]
    return [item for item in items if item is not None]


def _shown(
    response: StoredResponse, reply: Reply, rows: Sequence[StoredMessage]
) -> Iterator[tuple[str, JsonObject | None]]:
    """Yield the ids of a turn's items as rows, with the items as the response shows them.

    None stands for a call that is shown together with its output.
    """
    given = input_of(response.id, rows)
    items = items_of_rows(rows)
    for item, named in zip(items, given, strict=False):
        yield item["id"], {**item, "id": named["id"]}
    lost = lost_items(response)
    hidden = {item["id"] for item in lost.values()}
    bodies = bodies_of(response.id, rows, reply, mcp=has_tools(response))
    output = output_of(response.id, lost, bodies)
    shown_items = [item for item in output if item["id"] not in hidden]
    said = [item for item in items[len(given) :] if item.get("role") != "user"]
    for kind in ("message", "reasoning"):
        ours = [item for item in said if item["type"] == kind]
        theirs = [item for item in shown_items if item["type"] == kind]
        if len(ours) == len(theirs):
            for item, named in zip(ours, theirs, strict=True):
                yield item["id"], _named(item, named)
    if has_tools(response):
        yield from _own_calls(said, shown_items)
    calls = {_call(item): item for item in shown_items if "call_id" in item}
    used = Counter(_call(item) for item in said)
    for item in said:
        if used[_call(item)] == 1 and (found := calls.get(_call(item))):  # else it was renamed
            yield item["id"], _named(item, found)


def _own_calls(
    said: Sequence[JsonObject], shown: Sequence[JsonObject]
) -> Iterator[tuple[str, JsonObject | None]]:
    """Yield the calls of the agent's tools that the response shows as one item with the output."""
    own = [item for item in shown if item["type"] == "mcp_call"]
    outputs = {item["call_id"]: item for item in said if item["type"] == "function_call_output"}
    if len(own) != len(outputs):
        return  # the model has used the id of a call again
    for item in said:
        if item["type"] == "function_call" and item["call_id"] in outputs:
            yield item["id"], None
    for item, named in zip(outputs.values(), own, strict=True):
        yield item["id"], named


def _call(item: JsonObject) -> tuple[str, str | None]:
    return item["type"], item.get("call_id")


def _named(item: JsonObject, shown: JsonObject) -> JsonObject:
    return {**item, "id": shown["id"], "status": shown["status"]}


def _items(row: StoredMessage) -> Iterator[JsonObject]:
    done = {"status": "completed"}
    if row.role == "tool":
        output = {"type": "function_call_output", "call_id": row.tool_call_id}
        yield {"id": f"fco_{row.id}", **output, "output": row.content or "", **done}
        return
    if row.role != "assistant":
        content = input_content(row)
        yield {"id": f"msg_{row.id}", "type": "message", "role": row.role, "content": content,
               **done}  # fmt: skip
        return
    if row.reasoning:
        yield {"id": f"rs_{row.id}", **reasoning_body(row.reasoning), **done}
    if row.content:
        yield {"id": f"msg_{row.id}", **message_body(row.content), **done}
    for number, call in enumerate(row.tool_calls):
        yield {"id": f"fc_{row.id}_{number}", **call_body(call), **done}


def input_content(row: StoredMessage) -> list[JsonObject]:
    """Return the content of a message of the user; files are named by their ids."""
    if row.parts is None:
        return [{"type": "input_text", "text": row.content or ""}]
    return [_input_part(part) for part in row.parts]


def _input_part(part: JsonObject) -> JsonObject:
    kind = part.get("type")
    if kind == "text":
        return {"type": "input_text", "text": part.get("text", "")}
    file_id, url = part.get("file"), part.get("url")
    if kind == "image":
        return {"type": "input_image", "detail": "auto", "file_id": file_id, "image_url": url}
    return {"type": "input_file", "file_id": file_id, "filename": part.get("name")}
