"""`GET …/export`: a conversation as a file, in Markdown for people or as JSON with everything."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from hermes.adapters.http.api.conversations import ONE
from hermes.adapters.http.api.names import resolve
from hermes.adapters.http.endpoints import Call, Endpoint
from hermes.adapters.jsonrpc.rows import to_row
from hermes.adapters.jsonrpc.types import Row
from hermes.transcript.export import as_markdown

MAX_NAME = 80
MARKDOWN = "text/markdown; charset=utf-8"


class ExportQuery(msgspec.Struct, kw_only=True):
    """The form of the file."""

    format: Literal["markdown", "json"] = "markdown"


class Export(msgspec.Struct, kw_only=True):
    """A conversation with all its messages, also those before its summaries."""

    session_key: str
    session_id: str | None
    title: str | None
    messages: list[Row]


async def export(call: Call) -> Response:
    """Return a conversation as a file.

    Markdown has the questions and the answers. JSON has the calls of tools and their results, too.
    """
    key, query = resolve(call, call.path["key"]), call.query(ExportQuery)
    view = await call.runtime.api.view(key)
    rows = await call.runtime.conversation(key).history(lineage=True, include_waiting=False)
    if query.format == "json":
        found = Export(
            session_key=key, session_id=view.session_id, title=view.title,
            messages=[to_row(row) for row in rows],
        )  # fmt: skip
        content = msgspec.json.format(msgspec.json.encode(found))
        return _file(content, "application/json", _name(view.title, "json"))
    text = as_markdown(view.title, rows, call.runtime.texts) + "\n"
    return _file(text.encode(), MARKDOWN, _name(view.title, "md"))


def _name(title: str | None, suffix: str) -> str:
    """Return the name of the file: the title, without what file systems do not allow."""
    plain = re.sub(r'[\x00-\x1f<>:"/\\|?*]+', " ", title or "")
    return f"{' '.join(plain.split())[:MAX_NAME].strip(' .') or 'conversation'}.{suffix}"


def _file(content: bytes, media_type: str, name: str) -> Response:
    ascii_name = re.sub(r"[^ !#-\[\]-~]|%", "_", name)
    disposition = f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(name, safe='')}"
    headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
    return Response(content, media_type=media_type, headers=headers)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path=f"{ONE}/export", handle=export, query=ExportQuery, result=Export,
        summary="Download a conversation, as Markdown or JSON.", media_types=(MARKDOWN,),
    ),
)  # fmt: skip
