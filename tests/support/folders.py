"""Folders for database files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ENOUGH = 2**30
"""The free bytes that a file system in memory must have."""


def memory_folder() -> Path | None:
    """Return a folder in memory, if the machine has a large one: flushing costs nothing there."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return memory if usable and shutil.disk_usage(memory).free >= ENOUGH else None


def quick_directory() -> TemporaryDirectory[str]:
    """Return a temporary directory, in memory if possible."""
    return TemporaryDirectory(prefix="hermes-", dir=memory_folder())


@contextmanager
def quick_folder() -> Iterator[Path]:
    """The path of a `quick_directory`, which is removed after the block."""
    with quick_directory() as folder:
        yield Path(folder)
