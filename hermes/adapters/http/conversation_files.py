"""Files of a conversation, under `/api`: uploaded for a message, or made by an answer."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from hermes.adapters.http.api.conversations import ONE
from hermes.adapters.http.api.names import resolve
from hermes.adapters.http.downloads import file_response
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.forms import read_form
from hermes.messages import JsonObject


class StoredParts(msgspec.Struct):
    """The parts that name the files, for a message of the conversation."""

    parts: list[JsonObject]


async def upload(call: Call) -> Response:
    """Store files for a message, which must name them within an hour."""
    form = await read_form(call, resolve(call, call.path["key"]))
    return json_response(StoredParts([file.part for _, file in form.files]), 201)


async def download(call: Call) -> Response:
    """Return the content of a file that the conversation can read."""
    conversation = call.runtime.conversation(resolve(call, call.path["key"]))
    return file_response(call.request, await conversation.open_file(call.path["file_id"]))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST", path=f"{ONE}/files", handle=upload, result=StoredParts, status=201,
        summary="Upload files for a message (multipart/form-data).",
    ),
    Endpoint(
        method="GET", path=f"{ONE}/files/{{file_id}}", handle=download,
        summary="Download a file of a conversation.",
    ),
)  # fmt: skip
