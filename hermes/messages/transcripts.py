"""Transcripts of audio files: the `text` of their parts, which is also in the content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from hermes.messages.attachments import file_id_of
from hermes.messages.transcript import JsonObject, Message


def untranscribed(parts: Iterable[JsonObject] | None) -> list[str]:
    """Return the ids of audio files that have no transcript."""
    return [
        file_id
        for part in parts or ()
        if part.get("type") == "audio" and (file_id := file_id_of(part)) and "text" not in part
    ]


def add_transcripts(
    parts: Iterable[JsonObject], transcripts: Mapping[str, str]
) -> tuple[JsonObject, ...]:
    """Return parts with transcripts, given by the id of the file; earlier ones stay."""
    added = [(part, [transcripts.get(id_) for id_ in untranscribed([part])]) for part in parts]
    return tuple({**part, "text": text[0]} if any(text) else part for part, text in added)


def with_parts(message: Message, parts: Sequence[JsonObject]) -> Message:
    """Return a message with these parts; transcripts among them belong to its content, too."""
    if any(part.get("type") == "audio" and "text" in part for part in parts):
        return said_by_parts(message, parts)
    return replace(message, content=message.content or None, parts=tuple(parts))


def said_by_parts(message: Message, parts: Sequence[JsonObject]) -> Message:
    """Return a message whose parts and content say the same, in the same order.

    Its text becomes the first part, unless its parts have it already.
    """
    content = message.content
    if content and not _is_said(content, message.parts or parts):
        parts = ({"type": "text", "text": content}, *parts)
    return replace(message, content="\n\n".join(_texts(parts)) or None, parts=tuple(parts))


def _is_said(content: str, parts: Sequence[JsonObject]) -> bool:
    """Return whether parts have the content already, with or without the transcripts."""
    plain = [part for part in parts if part.get("type") == "text"]
    return content.split() in ([*_words(parts)], [*_words(plain)])


def _words(parts: Iterable[JsonObject]) -> Iterable[str]:
    return " ".join(_texts(parts)).split()


def _texts(parts: Iterable[JsonObject]) -> Iterable[str]:
    return (text for part in parts if isinstance(text := part.get("text"), str) and text)
