"""Describe attached files in words, for people and for models that cannot take them."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from hermes.errors import AttachmentRefused
from hermes.messages import JsonObject, Message, StoredMessage, file_id_of

MAX_URL: Final = 2048
_FILE_TYPES = frozenset({"image", "audio", "file"})
_UNITS = ("bytes", "kB", "MB", "GB")
_STEP = 1000


def describe(part: JsonObject, reason: str = "") -> str:
    """Return what a part is, such as `[image cat.png, 12 kB]`; with a `reason`, after a colon."""
    words = [str(part.get("type") or "file")]
    if name := part.get("name") or part.get("url"):
        words.append(str(name))
    size = part.get("size")
    sized = f", {readable_size(size)}" if isinstance(size, int) else ""
    return f"[{' '.join(words)}{sized}{': ' if reason else ''}{reason}]"


def is_attachment(part: JsonObject) -> bool:
    """Return whether a part is a stored file, or a remote one."""
    return file_id_of(part) is not None or ("url" in part and part.get("type") in _FILE_TYPES)


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
    return f"{value:.3g} {_UNITS[unit]}" if unit else f"{size} bytes"
