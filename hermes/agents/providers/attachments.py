"""Attachments as parts of a request: which ones a model takes, and what it gets instead.

The content of a file is not part of an encoded message. The message has a slot in its place, which
`file_body` fills while the request is sent. What a slot contains depends on the stored row and the
settings only, so the encoded history stays the same byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import attrs
import msgspec

from hermes.agents.providers.base import SLOT, Endpoint, FileBody
from hermes.messages import AttachmentKind, JsonObject, Message, file_id_of
from hermes.transcript.attachments import (
    MAX_TEXT,
    Form,
    describe,
    form_of,
    is_attachment,
    readable_size,
    transcript_of,
)
from hermes.transcript.render import parts_of
from hermes.transcript.tokens import file_tokens

NOT_SHOWN: Final = "it cannot be shown"
SENT: Final = "sent to the user"
MAX_NAME: Final = 255
ALL_KINDS: Final[tuple[AttachmentKind, ...]] = ("image", "file", "url")
"""What the models of OpenAI and Anthropic take by default."""
OTHER_KINDS: Final[tuple[AttachmentKind, ...]] = ("image",)
"""What models behind other URLs take by default."""

_KINDS: dict[Form, AttachmentKind] = {
    "image": "image", "audio": "audio", "pdf": "file", "url": "url",
}  # fmt: skip
_NAMES: dict[AttachmentKind, str] = {
    "image": "images", "audio": "audio", "file": "files", "url": "images on the web",
}  # fmt: skip
_OPENAI = re.compile(r"https://api\.openai\.com(?:[:/]|$)", re.IGNORECASE)
_WEB = re.compile(r"https?://\S+$", re.IGNORECASE)
_encode = msgspec.json.Encoder().encode


@attrs.frozen(kw_only=True)
class Acceptance:
    """The attachments that a model takes."""

    kinds: Sequence[AttachmentKind]
    max_bytes: dict[Form, int]
    """The size of the largest file of each form."""
    max_side: int | None = None
    """The largest width and height of an image, in pixels."""

    def limited(self, body: bytes | FileBody) -> bytes | FileBody:
        """Return a body with the limit for all of its files together: that of the largest one."""
        if isinstance(body, bytes):
            return body
        return attrs.evolve(body, max_bytes=-(-max(self.max_bytes.values()) // 3) * 4)

    def text_instead(self, part: JsonObject) -> JsonObject | None:
        """Return the text part that the model gets instead of an attachment, or None."""
        if transcript_of(part) is not None:
            return described(part)
        why = self._refusal(part)
        return None if why is None else described(part, why)

    def _refusal(self, part: JsonObject) -> str | None:
        """Return why the model cannot take an attachment; None if it can."""
        form = form_of(part)
        if form is None or (form == "audio" and form not in self.max_bytes):
            return f"this model does not take {part.get('media_type') or 'this type'}"
        if form in _KINDS and _KINDS[form] not in self.kinds:
            return f"this model does not take {_NAMES[_KINDS[form]]}"
        if form == "url" and not _WEB.match(part["url"]):
            return "it is not a web address"
        return self._excess(part, form)

    def _excess(self, part: JsonObject, form: Form) -> str | None:
        """Return what is too large about an attachment, or None."""
        size, most = part.get("size"), self.max_bytes.get(form)
        if most is not None and isinstance(size, int) and size > most:
            return f"this model takes at most {readable_size(most)}"
        sides = [part.get("width"), part.get("height")]
        side = max([each for each in sides if isinstance(each, int)], default=0)
        if self.max_side is not None and side > self.max_side:
            return f"this model takes at most {self.max_side} pixels a side"
        return None


def openai_acceptance(endpoint: Endpoint) -> Acceptance:
    """Return what a model takes that is reached by OpenAI's protocol."""
    default = ALL_KINDS if _OPENAI.match(endpoint.base_url) else OTHER_KINDS
    kinds = default if endpoint.attachments is None else endpoint.attachments
    most = 50_000_000
    return Acceptance(
        kinds=kinds,
        max_bytes={"image": most, "pdf": most, "audio": most, "text": MAX_TEXT},
    )


def anthropic_acceptance(endpoint: Endpoint) -> Acceptance:
    """Return what a model of Anthropic takes."""
    return Acceptance(
        kinds=ALL_KINDS if endpoint.attachments is None else endpoint.attachments,
        # The limit of an image is 5 MiB of base64; that of a request is 32 MB.
        max_bytes={"image": 5 * 2**20 // 4 * 3, "pdf": 23_000_000, "text": MAX_TEXT},
        max_side=8000,
    )


def acceptance_of(protocol: Literal["openai", "anthropic"], endpoint: Endpoint) -> Acceptance:
    """Return what the model of an endpoint takes."""
    return (anthropic_acceptance if protocol == "anthropic" else openai_acceptance)(endpoint)


def text_part(text: str) -> JsonObject:
    """Return a text as a part; both protocols have the same."""
    return {"type": "text", "text": text}


def has_attachments(message: Message) -> bool:
    """Return whether a message has files, or images on the web."""
    return bool(message.parts) and any(map(is_attachment, message.parts or ()))


def described_parts(message: Message, reason: str = "") -> Iterator[JsonObject]:
    """Yield the parts of a message, with texts instead of attachments."""
    for part in parts_of(message):
        yield described(part, reason) if is_attachment(part) else part


def described(part: JsonObject, reason: str = "") -> JsonObject:
    """Return an attachment as text: its transcript, or what it is and why it is not shown."""
    return text_part(transcript_of(part) or describe(part, reason))


def file_slot(
    part: JsonObject, block: JsonObject, encoding: Literal["base64", "text", "url"]
) -> msgspec.Raw:
    """Return a part whose data is filled in later.

    `block` is the part in the provider's format, with `SLOT` (see `data`) for the content. If the
    file cannot be read, a note takes its place. All of these end with a brace, which follows the
    slot: so a cache breakpoint can be added to the part.
    """
    before, after = _encode(block)[:-1].split(SLOT)
    note = _encode(text_part(describe(part, NOT_SHOWN)))[:-1]
    id_ = part["url"] if encoding == "url" else file_id_of(part)
    header = _encode([id_, encoding, file_tokens(part)])
    return msgspec.Raw(SLOT.join([b"", header, before, after, note, b"}"]))


def data(prefix: str = "") -> msgspec.Raw:
    """Return the string that has the content of a file after a prefix."""
    return msgspec.Raw(_encode(prefix)[:-1] + SLOT + b'"')


def name_of(part: JsonObject) -> str:
    """Return the name of a file, or an empty string."""
    return str(part.get("name") or "")[:MAX_NAME]


def inline_text(part: JsonObject) -> msgspec.Raw:
    """Return a text file as a text part that begins with its name."""
    block = {"type": "text", "text": data(f"{describe(part)}\n")}
    return file_slot(part, block, "text")
