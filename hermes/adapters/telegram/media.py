"""The file of a message: which one to download, its name, and what is said if there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from hermes.adapters.telegram.bot_api_types import File, Media
from hermes.sanitize import one_line
from hermes.transcript.attachments import describe

MAX_DOWNLOAD = 20 * 1024 * 1024
"""The largest file that Telegram lets a bot download."""
MAX_LABEL = 64
NOT_DOWNLOADED = "it could not be downloaded"
TOO_LARGE = "it is too large"
ANIMATED = "it is animated"
_EXTENSIONS = {
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "audio/ogg": ".ogg",
    "audio/mpeg": ".mp3",
    "audio/mp4": ".m4a",
    "audio/x-m4a": ".m4a",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "video/mp4": ".mp4",
    "video/webm": ".webm",
    "video/quicktime": ".mov",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "application/json": ".json",
    "text/plain": ".txt",
}
_LABEL_SYNTAX = re.compile(r"[\[\]:\"]")


@attrs.frozen
class RemoteFile:
    """A file of a message at Telegram."""

    kind: str
    """What it is for people, such as "photo"."""
    file_id: str
    name: str
    size: int | None
    """The number of bytes, as the message says."""
    label: str = ""
    """The name or emoji that the sender has chosen, if there is one."""

    def note(self, reason: str = "") -> str:
        """Return what takes the place of the file in a text, such as `[photo: it is too large]`."""
        part = {"type": self.kind, "name": self.label or None, "size": self.size}
        return describe(part if reason else {"type": self.kind, "name": self.label}, reason)


def file_of(media: Media, limit: int = MAX_DOWNLOAD) -> tuple[RemoteFile | None, str]:
    """Return the file of a message to download, and a note about it for the text.

    Files of more than `limit` bytes and animated stickers have only a note. A sticker has both,
    since its emoji is not part of the file.
    """
    found = next(_found(media, limit), None)
    if found is None:
        return None, ""
    kind, file, media_type = found
    remote = _remote(kind, file, media_type)
    if file.is_animated or file.is_video:
        return None, remote.note(ANIMATED)
    if file.file_size is not None and file.file_size > limit:
        return None, remote.note(TOO_LARGE)
    return remote, remote.note() if kind == "sticker" else ""


def label_of(media: Media) -> str:
    """Return what a message has besides its text, such as `[photo]`; "" if nothing."""
    found = next(_found(media, MAX_DOWNLOAD), None)
    return "" if found is None else _remote(*found).note()


def extension(media_type: str | None) -> str:
    """Return the usual end of the name of a file of this type; "" if it is not known."""
    return _EXTENSIONS.get((media_type or "").partition(";")[0].strip().lower(), "")


def _found(media: Media, limit: int) -> Iterator[tuple[str, File, str]]:
    """Yield the kind, the file and its usual type of each file."""
    if media.photo:
        yield "photo", _best(media.photo, limit), "image/jpeg"
    # Telegram also sends an animation as a document, for clients that do not know animations.
    for kind, file, media_type in (
        ("animation", media.animation, "video/mp4"),
        ("document", media.document, ""),
        ("audio", media.audio, "audio/mpeg"),
        ("voice", media.voice, "audio/ogg"),
        ("video", media.video, "video/mp4"),
        ("video", media.video_note, "video/mp4"),
        ("sticker", media.sticker, "image/webp"),
    ):
        if file is not None:
            yield kind, file, media_type


def _best(sizes: list[File], limit: int) -> File:
    """Return the largest size of a photo that may be downloaded; else the smallest of all."""
    ordered = sorted(sizes, key=lambda size: (size.width * size.height, size.file_size or 0))
    allowed = [size for size in ordered if (size.file_size or 0) <= limit]
    return allowed[-1] if allowed else ordered[0]


def _remote(kind: str, file: File, media_type: str) -> RemoteFile:
    name = file.file_name or f"{kind}{extension(file.mime_type) or extension(media_type)}"
    label = one_line(_LABEL_SYNTAX.sub(" ", file.file_name or file.emoji or ""))[:MAX_LABEL]
    return RemoteFile(kind, file.file_id, name, file.file_size, label)
