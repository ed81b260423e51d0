"""Folders for database files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def quick_directory() -> TemporaryDirectory[str]:
    """A temporary directory in memory, if the machine has one: flushing costs nothing there."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return TemporaryDirectory(prefix="hermes-", dir=memory if usable else None)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """The path of a `quick_directory`, which is removed after the block."""
    with quick_directory() as folder:
        yield Path(folder)
