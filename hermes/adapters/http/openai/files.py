"""Files: uploaded before a message names them, or made by an answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from hermes.adapters.http.downloads import file_response
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError
from hermes.adapters.http.forms import read_form
from hermes.adapters.http.openai.uploads import find_readable, uploads_key
from hermes.messages import FileRecord

PATH = "/v1/files"
PURPOSES = ("user_data", "vision", "assistants")
"""What a file may be uploaded for; all of them mean the same here."""


class FileObject(Struct, kw_only=True):
    """A file, as clients see it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(Struct, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Struct, kw_only=True):
    """The result of a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class ListFiles(Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of a list."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


async def upload(call: Call) -> Response:
    """Store a file until it is deleted."""
    api, key = call.runtime.api, uploads_key(call.caller)
    form = await read_form(call, key, fields=["purpose"], max_files=1)
    ids = [file.id for _, file in form.files]
    try:
        _check_form(form.fields, [name for name, _ in form.files])
        await api.keep_file(ids[0], session_key=key, purpose=form.fields["purpose"])
    except BaseException:
        for file_id in ids:
            await api.delete_file(file_id, session_key=key)
        raise
    record, _ = await find_readable(call, ids[0])
    return json_response(file_object(record))


def _check_form(fields: dict[str, str], files: list[str]) -> None:
    """Raise `ApiError` unless the form has a file and a purpose."""
    if files != ["file"]:
        text = "The form needs a file in the field 'file'."
        raise ApiError(400, text, code="missing_file", param="file")
    if fields.get("purpose") not in PURPOSES:
        text = f"purpose must be one of {', '.join(PURPOSES)}."
        raise ApiError(400, text, code="invalid_value", param="purpose")


async def list_files(call: Call) -> Response:
    """List the files that were uploaded in this namespace."""
    query = call.query(ListFiles)
    found = await call.runtime.api.list_files(
        uploads_key(call.caller),
        purpose=query.purpose,
        after=query.after,
        limit=query.limit + 1,
        oldest_first=query.order == "asc",
    )
    page = [file_object(record) for record in found[: query.limit]]
    return json_response(
        FileList(
            data=page,
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
            has_more=len(found) > query.limit,
        )
    )


async def retrieve(call: Call) -> Response:
    """Describe a file."""
    record, _ = await find_readable(call, call.path["file_id"])
    return json_response(file_object(record))


async def download(call: Call) -> Response:
    """Return the content of a file: an upload, or one of a message or an answer."""
    record, keys = await find_readable(call, call.path["file_id"])
    reader = await call.runtime.conversation(keys[0]).open_file(record.file.id)
    return file_response(call.request, reader)


async def delete(call: Call) -> Response:
    """Delete an uploaded file. Conversations that use it have their own."""
    record, _ = await find_readable(call, call.path["file_id"])
    file_id = record.file.id
    key = uploads_key(call.caller)
    if not await call.runtime.api.delete_file(file_id, session_key=key):
        text = "The file belongs to a conversation, and is deleted with it."
        raise ApiError(409, text, code="file_in_use")
    return json_response(FileDeleted(id=file_id))


def file_object(record: FileRecord) -> FileObject:
    """Return a file as clients see it."""
    file = record.file
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=int(record.created_at),
        filename=file.name or file.id,
        purpose=record.purpose or PURPOSES[0],
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST", path=PATH, handle=upload, summary="Upload a file (multipart/form-data).",
        result=FileObject,
    ),
    Endpoint(
        method="GET", path=PATH, handle=list_files, summary="List the uploaded files.",
        query=ListFiles, result=FileList,
    ),
    Endpoint(
        method="GET", path=f"{PATH}/{{file_id}}", handle=retrieve, summary="Describe a file.",
        result=FileObject,
    ),
    Endpoint(
        method="GET", path=f"{PATH}/{{file_id}}/content", handle=download,
        summary="Download a file.",
    ),
    Endpoint(
        method="DELETE", path=f"{PATH}/{{file_id}}", handle=delete,
        summary="Delete an uploaded file.", result=FileDeleted,
    ),
)  # fmt: skip
