"""Results of MCP tools: their contents as texts and files.

Resources that a result only links to are never fetched.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence

import attrs
from mcp_types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from hermes.agents.tools.outputs import Audience, ToolOutput
from hermes.config import AttachmentLimits
from hermes.media import recognize
from hermes.messages import Attachment
from hermes.sanitize import one_line, shorten

MAX_FILES = AttachmentLimits().message_files
MAX_BYTES = AttachmentLimits().message_bytes
MAX_URI = 2_000
NO_OUTPUT = "(no output)"


def text_of(outputs: Sequence[ToolOutput]) -> str:
    """Return the text of a result."""
    texts = [output.text for output in outputs if output.text or not output.files]
    return "\n".join(texts) or NO_OUTPUT


def outputs_of_result(
    result: CallToolResult, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES
) -> list[ToolOutput]:
    """Return the contents of a result, in order.

    A content that is not valid base64, too large or one too many becomes a text that says so. It
    decodes up to `max_bytes`, so call it in a thread if the result has files.
    """
    files = _Files(max_files, max_bytes)
    return [_output(content, files) for content in result.content]


def _output(content: ContentBlock, files: _Files) -> ToolOutput:
    audience = _audience(content.annotations)
    match content:
        case TextContent(text=text):
            return ToolOutput(text)
        case (
            ImageContent(data=data, mime_type=declared)
            | AudioContent(data=data, mime_type=declared)
        ):
            return files.decode(content.type, data, declared, None, audience)
        case ResourceLink(name=name, uri=uri):
            return ToolOutput(f"[link {one_line(name)}: {_shown(uri)}]")
        case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
            return ToolOutput(f"[resource {_shown(uri)}]\n{text}")
        case EmbeddedResource(resource=BlobResourceContents(uri=uri, blob=data, mime_type=kind)):
            return files.decode(f"resource {_shown(uri)}", data, kind, uri, audience)
        case _:
            return ToolOutput(f"({content.type})")


def _shown(uri: str) -> str:
    return shorten(one_line(uri), MAX_URI)


def _audience(annotations: Annotations | None) -> Audience:
    """Return the audience of a content block: both, unless the server says otherwise."""
    given = set((annotations and annotations.audience) or ())
    if len(given) != 1:
        return "both"
    return "user" if "user" in given else "model"


@attrs.define
class _Files:
    """Decodes the files of one result, within limits for all of them together."""

    left: int
    """How many more files may follow."""
    bytes_left: int

    def decode(
        self, what: str, data: str, declared: str | None, uri: str | None, audience: Audience
    ) -> ToolOutput:
        """Return a file, or a text that says why there is none."""
        # Its decoded size; line breaks and padding make it smaller.
        size = len(data) * 3 // 4
        if self.left <= 0:
            return ToolOutput(f"[{what}: the result has too many files]")
        if size > self.bytes_left + 2:
            return ToolOutput(f"[{what}: the files of the result are too large]")
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            return ToolOutput(f"[{what}: its data is not valid base64]")
        self.left -= 1
        self.bytes_left -= len(content)
        name = None if uri is None else uri.rpartition("/")[2].partition("?")[0]
        file = Attachment(data=content, name=name)
        return ToolOutput(_contradiction(content, declared), [file], audience)


def _contradiction(content: bytes, declared: str | None) -> str:
    """Say if a content is no image or audio although it is declared as one."""
    kind = (declared or "").partition("/")[0].lower()
    if kind not in {"image", "audio"}:
        return ""
    found = recognize(io.BytesIO(content)).media_type
    if found.startswith(f"{kind}/"):
        return ""
    return f"[a file was declared as {shorten(one_line(declared or ''), 100)}, but it is {found}]"
