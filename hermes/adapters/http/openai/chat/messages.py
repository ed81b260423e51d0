"""Messages of a client: as runs to compare, and as rows of a transcript."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from hermes.adapters.http.endpoints import Call
from hermes.adapters.http.openai.chat.histories import Run, grouped, squeezed
from hermes.adapters.http.openai.chat.requests import text_of
from hermes.adapters.http.openai.content import AUDIO, FILES, IMAGES, read_content
from hermes.adapters.http.openai.tools import call_id_of, calls_of_message
from hermes.messages import JsonObject, Message, StoredMessage, ToolOutput, file_id_of
from hermes.transcript.decisions import decision_in

WRITTEN = frozenset({"user", "assistant", "tool"})


# Runs to compare


async def runs_of_client(call: Call, messages: Sequence[JsonObject]) -> list[Run]:
    """Return the history of a client as runs."""
    runs = []
    for first, end in grouped([message["role"] for message in messages]):
        group = messages[first:end]
        calls = [each.id for message in group for each in calls_of_message(message)]
        results = [
            (call_id_of(message, "tool_call_id", "messages"), squeezed(text_of(message)))
            for message in group
            if message["role"] == "tool"
        ]
        texts = [squeezed(text_of(each)) for each in group if each["role"] != "tool"]
        files = [
            digest
            for message in group
            if message["role"] == "user" and isinstance(message.get("content"), list)
            for part in message["content"]
            if (digest := await _digest(call, part)) is not None
        ]
        runs.append(
            Run(
                by_user=group[0]["role"] == "user",
                texts=tuple(texts),
                files=tuple(files),
                calls=frozenset(calls),
                results=tuple(results),
            )
        )
    return runs


async def _digest(call: Call, part: JsonObject) -> str | None:
    """Return what tells a file of a client from others; None for a text."""
    kind = str(part.get("type"))
    if kind not in IMAGES | FILES | {AUDIO}:
        return None
    fields = part.get(kind) if kind in {"file", AUDIO} else part
    fields = fields if isinstance(fields, dict) else {}
    if isinstance(fields.get("file_id"), str):
        return await _hash(call, fields["file_id"])
    given = fields.get("image_url", fields.get("file_data", fields.get("data")))
    given = given.get("url") if isinstance(given, dict) else given
    if not isinstance(given, str):
        return ""
    if kind in IMAGES and given[:5].lower() != "data:":
        return given
    data = given.partition(",")[2] if given[:5].lower() == "data:" else given
    try:
        return hashlib.sha256(base64.b64decode(data, validate=True)).hexdigest()
    except (binascii.Error, ValueError):  # it will be refused
        return ""


async def _hash(call: Call, file_id: str) -> str:
    found = await call.runtime.api.find_file(file_id)
    return file_id if found is None else found.hash


async def runs_of_rows(call: Call, rows: Sequence[StoredMessage]) -> list[Run]:
    """Return the rows of a session as runs."""
    rows = [row for row in rows if row.role in WRITTEN and not _is_decision(row)]
    runs = []
    for first, end in grouped([row.role for row in rows]):
        group = rows[first:end]
        by_user = group[0].role == "user"
        parts = [part for row in group if by_user for part in row.parts or ()]
        files = [await _part_digest(call, part) for part in parts if part.get("type") != "text"]
        runs.append(
            Run(
                by_user=by_user,
                texts=tuple(squeezed(row.content) for row in group if row.role != "tool"),
                files=tuple(files),
                calls=frozenset(each.id for row in group for each in row.tool_calls),
                results=tuple(
                    (row.tool_call_id or "", squeezed(row.content))
                    for row in group
                    if row.role == "tool"
                ),
                last=group[-1].id,
            )
        )
    return runs


def _is_decision(row: StoredMessage) -> bool:
    """Whether a row tells the agent what its user has decided: no client has it."""
    return row.role == "user" and decision_in(row.content) is not None


async def _part_digest(call: Call, part: JsonObject) -> str:
    file_id = file_id_of(part)
    return str(part.get("url", "")) if file_id is None else await _hash(call, file_id)


# Rows of a transcript


async def as_rows(
    call: Call, key: str, messages: Sequence[JsonObject], agent: str | None
) -> list[Message]:
    """Return messages of a client as rows; their files are stored for `key`. Raises `ApiError`."""
    rows: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        calls = calls_of_message(message)
        names |= {each.id: each.name for each in calls}
        content = await read_content(
            call, key, message.get("content") or "", param="messages.content", agent=agent
        )
        parts = content.parts or None
        match message["role"]:
            case "tool":
                call_id = call_id_of(message, "tool_call_id", "messages")
                name = names.get(call_id, "")
                rows.append(
                    Message("tool", content.text, parts=parts, tool_call_id=call_id, tool_name=name)
                )
            case "assistant":
                rows.append(Message("assistant", content.text or None, tool_calls=calls))
            case _:
                rows.append(Message("user", content.text, parts=parts))
    return rows


async def as_outputs(
    call: Call, key: str, messages: Sequence[JsonObject], agent: str | None
) -> tuple[ToolOutput, ...]:
    """Return results of the client's tools. Raises `ApiError`."""
    rows = await as_rows(call, key, messages, agent)
    return tuple(
        ToolOutput(row.tool_call_id or "", row.content or "", row.parts or ()) for row in rows
    )
