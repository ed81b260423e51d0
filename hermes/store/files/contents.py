"""Where the content of attached files is kept: what every engine of a store provides.

A new file is written to an upload and flushed. The transaction that stores its row places it: from
then on it is found by its SHA-256 hash, and equal files share it. SQLite keeps contents in a folder
next to the database (`blobs`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import attrs

from hermes.media import Media

CHUNK: Final = 1 << 20
"""Bytes that are read or written at once."""
SPARED: Final = 3600.0
"""Seconds for which a file is kept although nothing names it: a message may be about to."""


def new_file_id() -> str:
    """Return the id of a new file, which nobody can guess."""
    return f"file_{secrets.token_hex(16)}"


class Queries(Protocol):
    """What contents use of the `Transaction` that they are called in."""

    @property
    def now(self) -> float: ...
    def one(self, sql: str, *values: Any) -> tuple[Any, ...] | None: ...
    def all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]: ...
    def run(self, sql: str, *values: Any) -> int: ...


class Upload(Protocol):
    """The content of one file while it is written."""

    @property
    def id(self) -> str:
        """The name of the upload, which no other has."""
        ...

    def write(self, data: bytes | bytearray) -> None:
        """Append bytes. Raises `OSError` or `StoreError` if they cannot be stored."""
        ...

    def finish(self) -> BinaryIO:
        """Make what was written durable. Returns it as a file to read; close that."""
        ...

    def discard(self) -> None:
        """Remove the upload, unless it was placed. Raises nothing."""
        ...


@attrs.frozen
class StagedFile:
    """A file whose content is complete and durable, but which has no row yet."""

    upload: Upload
    hash: str
    size: int
    media: Media
    id: str = attrs.Factory(new_file_id)
    """The id of its row."""
    hold: ExitStack = attrs.field(factory=ExitStack, repr=False)
    """What keeps the upload from being swept until it is discarded or placed."""

    def discard(self) -> None:
        """Remove the content, unless it was placed."""
        self.upload.discard()
        self.hold.close()


class Swept(NamedTuple):
    """What a step of a sweep did."""

    last: str = ""
    """The last of what it looked at, after which the next step goes on; empty at the end."""
    blobs: int = 0
    """How many contents were removed."""
    size: int = 0
    """The number of their bytes."""


class FileContents(Protocol):
    """The contents of a store's files.

    Those that take a transaction need one that writes, and no sweep runs at the same time.
    """

    def begin(self) -> Upload:
        """Begin an upload. It is swept when it is old, unless it is begun during `hold`."""
        ...

    def hold(self) -> AbstractContextManager[None]:
        """Keep uploads from being swept during the block, however old they are."""
        ...

    def place(self, tx: Queries, staged: StagedFile) -> None:
        """Store the row of a content, and let its hash name this upload.

        A content that is there already is replaced: it may be damaged. A transaction that is tried
        again may have placed it before.
        """
        ...

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Return bytes of a content, as far as it has them. Blocks, so call it in a thread.

        Raises `FileNotFoundError` if it is gone, and `ValueError` for a negative offset or size.
        """
        ...

    def remove(self, tx: Queries, digest: str) -> None:
        """Remove a content whose row an earlier transaction has deleted, however old it is."""
        ...

    def sweep(self, tx: Queries, after: str) -> Swept:
        """Remove the next contents and uploads that are old and have no row.

        It needs a transaction for itself: if it removed a content whose row the same transaction
        deletes, a rollback could leave only the row.
        """
        ...

    def old(self, tx: Queries) -> Iterator[tuple[str, int]]:
        """Yield the hashes of contents and the ids of uploads that are old, with their sizes."""
        ...

    def absence(self) -> str | None:
        """Return why no content can be there, or None."""
        ...

    def size(self, tx: Queries, digest: str) -> int:
        """Return how many bytes a content has. Raises `OSError` if that cannot be determined."""
        ...

    def where(self, digest: str) -> str:
        """Return where a content is, for the text of a problem."""
        ...


def has_row(tx: Queries, digest: str) -> bool:
    """Return whether a content has a row."""
    return tx.one("SELECT 1 FROM blobs WHERE hash = ?", digest) is not None


def require_range(offset: int, size: int) -> None:
    """Raise `ValueError` for a negative offset or size."""
    if offset < 0 or size < 0:
        raise ValueError(f"a file cannot be read from {offset:,} on, {size:,} bytes")
