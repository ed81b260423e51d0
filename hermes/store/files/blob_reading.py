"""What a reader of an attached file is told if its content is missing or damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hermes.errors import StoreError, UnknownFile
from hermes.messages import StoredFile


def require_data(file: StoredFile, offset: int, count: int, data: bytes) -> bytes:
    """Return bytes that were read, or raise `UnknownFile` if the content has been cut."""
    if not data and count and offset < file.size:
        raise UnknownFile(f"the content of the file {file.id} is damaged")
    return data


@contextmanager
def reading(file_id: str) -> Iterator[None]:
    """Raise `UnknownFile` or `StoreError` if the content of a file cannot be read in the block."""
    try:
        yield
    except FileNotFoundError:
        raise UnknownFile(f"the file {file_id} was deleted") from None
    except OSError as error:
        text = f"the file {file_id} cannot be read: {error.strerror or error}"
        raise StoreError(text) from error
