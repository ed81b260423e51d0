"""Describe attached files in words, for people and for models that cannot take them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from hermes.errors import AttachmentRefused
from hermes.messages import JsonObject, Message, StoredMessage, file_id_of
from hermes.transcript.render import parts_of

Form: TypeAlias = Literal["image", "audio", "pdf", "text", "url"]
"""What a model can take an attachment as."""

MAX_TEXT: Final = 200_000
"""Text files up to this size are sent to models, in bytes."""
MAX_REFERENCES: Final = 30
"""How many files that are no longer shown a summary names."""
MAX_URL: Final = 2048
_FILE_TYPES = ("image", "audio", "file")  # a type may be anything that is JSON
_UNITS = ("bytes", "kB", "MB", "GB")
_STEP = 1000
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_AUDIO = frozenset({"audio/wav", "audio/x-wav", "audio/wave", "audio/mpeg", "audio/mp3"})
_TEXTS = frozenset({"application/json", "application/xml", "application/javascript"})
# The name of a file may contain brackets.
_OPENING = r"\[(?:image|audio|file)\b"
_REFERENCE = re.compile(rf"{_OPENING}(?:(?!{_OPENING})[^\n])*?: (file_[0-9a-f]{{32}})\]")


def describe(part: JsonObject, reason: str = "") -> str:
    """Return what a part is, such as `[image cat.png, 12 kB]`; with a `reason`, after a colon."""
    words = [str(part.get("type") or "file")]
    if name := part.get("name") or part.get("url"):
        words.append(str(name))
    size = part.get("size")
    sized = f", {readable_size(size)}" if isinstance(size, int) else ""
    return f"[{' '.join(words)}{sized}{': ' if reason else ''}{reason}]"


def as_text(message: Message | StoredMessage) -> str:
    """Return a message as a text: what it says, then a line for each file.

    A message without a content says what its text parts do.
    """
    parts = message.parts or ()
    said = [part["text"] for part in parts if part.get("type") == "text" and "text" in part]
    lines = [message.content] if message.content else [str(text) for text in said]
    return "\n".join([*lines, *(describe(part) for part in parts if is_attachment(part))])


def check_url(url: object) -> None:
    """Raise `AttachmentRefused` unless this is the address of an image that a provider may fetch.

    Hermes itself never fetches it.
    """
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        raise AttachmentRefused("the address of an attachment must be a string without spaces")
    if len(url) > MAX_URL:
        raise AttachmentRefused(f"the address of an attachment has more than {MAX_URL} characters")
    try:
        parsed = urlsplit(url)
        web = parsed.scheme in {"http", "https"} and bool(parsed.hostname)
    except ValueError:  # such as "http://[1"
        raise AttachmentRefused("the address of an attachment is not valid") from None
    if not web:
        raise AttachmentRefused("the address of an attachment must begin with http:// or https://")
    if "@" in parsed.netloc:
        raise AttachmentRefused("the address of an attachment must not contain a user or password")


def check_part(part: JsonObject) -> None:
    """Raise `AttachmentRefused` if a part names a file in a way that is not allowed.

    Parts in a provider's own format are not checked.
    """
    if part.get("type") not in _FILE_TYPES:
        return
    if "path" in part:
        raise AttachmentRefused("a part cannot name a path; pass the file as an attachment")
    if "url" in part and file_id_of(part) is None:
        if part["type"] != "image":
            raise AttachmentRefused("only an image can be attached by its address")
        check_url(part["url"])


def readable_size(size: int) -> str:
    """Return a number of bytes as people read it, such as `1.2 MB`."""
    value, unit = float(size), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{value:.3g} {'byte' if size == 1 else _UNITS[unit]}"


def is_attachment(part: JsonObject) -> bool:
    """Return whether a part names a stored file or an image on the web.

    Other parts are in the format of a provider, and are sent as they are.
    """
    remote = part.get("type") == "image" and isinstance(part.get("url"), str)
    return remote or file_id_of(part) is not None


def form_of(part: JsonObject) -> Form | None:
    """Return what a model can take an attachment as; None if no model takes its type."""
    if file_id_of(part) is None:
        return "url"
    media_type = str(part.get("media_type"))
    if media_type in _IMAGES:
        return "image"
    if media_type in _AUDIO:
        return "audio"
    if media_type == "application/pdf":
        return "pdf"
    return "text" if media_type.startswith("text/") or media_type in _TEXTS else None


def transcript_of(part: JsonObject) -> str | None:
    """Return an attachment that was transcribed as `[audio voice.ogg] …`, or None."""
    text = part.get("text")
    if not (isinstance(text, str) and text.strip()):
        return None
    unsized = {name: value for name, value in part.items() if name != "size"}
    return f"{describe(unsized)} {text}"


def reference(part: JsonObject) -> str:
    """Return what an attachment is, with its id: `[image cat.png, 12 kB: file_…]`."""
    return describe(part, file_id_of(part) or "")


def readable_text(
    message: Message | StoredMessage, described: Callable[[JsonObject], str] = describe
) -> str:
    """Return a message as text, in which its files are `described`."""
    if not message.parts:
        return message.content or ""
    return " ".join(_readable(part, described) for part in parts_of(message))


def _readable(part: JsonObject, described: Callable[[JsonObject], str]) -> str:
    if is_attachment(part):
        return transcript_of(part) or described(part)
    text = part.get("text")
    return text if isinstance(text, str) else f"({part.get('type', 'a part')})"


def with_references(
    summary: str, replaced: Iterable[Message | StoredMessage], previous: str | None
) -> str:
    """Return a summary that names the files of the messages that it replaces.

    Those that the `previous` summary named are among them. The oldest are left out.
    """
    named: dict[str, str] = {found[1]: found[0] for found in _REFERENCE.finditer(previous or "")}
    for message in replaced:
        for part in message.parts or ():
            if (file_id := file_id_of(part)) is not None:
                named[file_id] = reference(part)
    missing: Sequence[str] = [text for id_, text in named.items() if id_ not in summary]
    lines = missing[-MAX_REFERENCES:]
    return "\n".join([summary, "", "Files:", *lines]) if lines else summary
