"""Attached files, as the runtime, agents and adapters see them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from hermes.messages import Attachment, FileRecord, StoredFile


class FileReader(Protocol):
    """Reads a stored file in pieces. It holds nothing open."""

    @property
    def file(self) -> StoredFile:
        """What is known of the file."""
        ...

    def read(self, offset: int = 0, size: int | None = None) -> Awaitable[bytes]:
        """Return bytes from an offset; without a size, all that follow.

        Raises `UnknownFile` if the file was deleted.
        """
        ...


class FileStore(Protocol):
    """Stores and returns attached files."""

    def put_file(
        self,
        attachment: Attachment,
        *,
        session_key: str,
        principal: str | None = None,
        turn_id: int | None = None,
    ) -> Awaitable[StoredFile]:
        """Store a file for a conversation; it is on disk when this returns.

        It is deleted after an hour unless a message of the conversation names it. Pass `turn_id`
        for a file that is made during a turn. Raises `AttachmentRefused`.
        """
        ...

    def open_file(self, file_id: str, *, session_key: str) -> Awaitable[FileReader]:
        """Return a reader of a file of this conversation. Raises `UnknownFile`."""
        ...

    def discard_file(self, file_id: str, *, session_key: str) -> Awaitable[bool]:
        """Delete a file that no message names. Returns whether there was one."""
        ...

    def find_file(self, file_id: str) -> Awaitable[FileRecord | None]:
        """Return a file with the keys that can read it; None if there is none with this id."""
        ...

    def list_files(
        self,
        session_key: str,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = ...,
        oldest_first: bool = False,
    ) -> Awaitable[list[FileRecord]]:
        """Return the files that were uploaded for themselves, newest first."""
        ...

    def keep_file(self, file_id: str, *, session_key: str, purpose: str) -> Awaitable[bool]:
        """Keep a file until it is deleted, although no message names it."""
        ...

    def copy_file(
        self, file_id: str, *, session_key: str, to: str, principal: str | None = None
    ) -> Awaitable[StoredFile]:
        """Return a file of `to` with the content of a file that `session_key` can read."""
        ...
