"""What a reader of an attached file is told if its content is missing or damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hermes.errors import FileDamaged, StoreError, UnknownFile
from hermes.messages import StoredFile


def require_data(file: StoredFile, offset: int, count: int, data: bytes) -> bytes:
    """Return bytes that were read, or raise `FileDamaged` if the content was cut."""
    if len(data) < min(count, file.size - offset):
        raise FileDamaged(f"the file {file.id} cannot be read: its content is damaged")
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
