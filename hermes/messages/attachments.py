"""Files of messages: what a sender attaches, what the store keeps, and the parts that name it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import attrs
import msgspec

from hermes.messages.transcript import JsonObject

PartType: TypeAlias = Literal["image", "audio", "file"]
"""What a part with a file is for a model."""
AttachmentKind: TypeAlias = Literal["image", "file", "audio", "url"]
"""What a model may take: images, files, audio, and images on the web that its provider fetches."""


@attrs.frozen(kw_only=True)
class Attachment:
    """A file to send with a message: exactly one of `path`, `data`, `file`, `chunks` and `url`.

    Its type is recognized by its bytes. Raises `ValueError` if not exactly one is given, and
    `TypeError` if one has the wrong type.
    """

    path: str | os.PathLike[str] | None = None
    """A file to read. `name` is its name by default."""
    data: bytes | None = attrs.field(default=None, repr=False)
    """The content itself."""
    file: BinaryIO | None = None
    """An open file, which is read to its end in a thread. It is not closed."""
    chunks: AsyncIterable[bytes] | None = None
    """The content as it arrives, for example from a network."""
    url: str | None = None
    """An image on the web. Hermes never fetches it: the provider does, if it accepts URLs."""
    name: str | None = None
    """The name that people see."""
    size: int | None = None
    """The expected number of bytes; the file is refused if it has another."""

    def __attrs_post_init__(self) -> None:
        """Check that there is one source."""
        given = [self.path, self.data, self.file, self.chunks, self.url]
        if sum(each is not None for each in given) != 1:
            raise ValueError("an attachment needs one of path, data, file, chunks and url")
        if self.chunks is not None and not isinstance(self.chunks, AsyncIterable):
            raise TypeError("chunks must be an asynchronous iterable; pass data= or file= instead")
        # `open` would take a number for a descriptor, and close it.
        if self.path is not None and not isinstance(self.path, str | os.PathLike):
            raise TypeError(f"path must be a string or a path, not {self.path!r:.50}")
        if self.name is not None and not isinstance(self.name, str):
            raise TypeError(f"name must be a string, not {self.name!r:.50}")
        if self.size is not None and not isinstance(self.size, int):
            raise TypeError(f"size must be a whole number, not {self.size!r:.50}")

    @property
    def file_name(self) -> str | None:
        """The name that people see: `name`, or that of the path."""
        return self.name or (None if self.path is None else Path(self.path).name)


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as the store keeps it. Its id is random, and readable by its conversations only."""

    id: str
    media_type: str
    size: int
    name: str | None = None
    width: int | None = None
    height: int | None = None

    @property
    def type(self) -> PartType:
        """What it is for a model."""
        kind = self.media_type.partition("/")[0]
        return "image" if kind == "image" else "audio" if kind == "audio" else "file"

    @property
    def part(self) -> JsonObject:
        """The part of a message that names this file."""
        fields = {
            "type": self.type, "file": self.id, "media_type": self.media_type, "name": self.name,
            "size": self.size, "width": self.width, "height": self.height,
        }  # fmt: skip
        return {name: value for name, value in fields.items() if value is not None}


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file, with what the store knows about it."""

    file: StoredFile
    created_at: float
    purpose: str | None = None
    """What it was uploaded for; None for a file of a message or an answer."""
    hash: str = ""
    """The SHA-256 of its content, in hexadecimal digits."""
    keys: tuple[str, ...] = ()
    """The conversations that can read it, if they were asked for."""


def file_id_of(part: JsonObject) -> str | None:
    """Return the id of the stored file that a part names, or None."""
    file_id = part.get("file")
    return file_id if isinstance(file_id, str) else None


def file_ids(parts: Iterable[JsonObject] | None) -> list[str]:
    """Return the ids of the stored files that parts name, each once and in order."""
    return list(dict.fromkeys(id_ for part in parts or () if (id_ := file_id_of(part))))


def stored_file(part: JsonObject) -> StoredFile:
    """Return the file that a stored part names."""
    return StoredFile(
        id=part["file"],
        media_type=part["media_type"],
        size=part["size"],
        name=part.get("name"),
        width=part.get("width"),
        height=part.get("height"),
    )
