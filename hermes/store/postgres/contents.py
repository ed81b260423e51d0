"""The contents of attached files on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from hermes.errors import AttachmentRefused
from hermes.store.files.contents import Queries, StagedFile, Swept


class NoContents:
    """Refuses files, until they are stored as rows."""

    def begin(self) -> NoReturn:
        """Raise `AttachmentRefused`."""
        raise AttachmentRefused("files cannot be attached on PostgreSQL yet")

    def hold(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def place(self, tx: Queries, staged: StagedFile) -> None:
        """Never called, because there are no uploads."""

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Raise `FileNotFoundError`."""
        raise FileNotFoundError(digest)

    def remove(self, tx: Queries, digest: str) -> None:
        """Do nothing."""

    def sweep(self, tx: Queries, after: str) -> Swept:
        """Return that there was nothing to do."""
        return Swept()

    def old(self, tx: Queries) -> Iterator[tuple[str, int]]:
        """Yield nothing."""
        return iter(())

    def absence(self) -> str | None:
        """Return why no content can be there."""
        return "files cannot be attached on PostgreSQL yet"

    def size(self, tx: Queries, digest: str) -> int:
        """Raise `FileNotFoundError`."""
        raise FileNotFoundError(digest)

    def where(self, digest: str) -> str:
        """Return the hash."""
        return digest
