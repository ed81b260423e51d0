"""Read a database that this process may not write to: its file or its folder is read-only."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from hermes.errors import StoreError, StoreRefused
from hermes.store.conversations.search import unindexed
from hermes.store.files.problems import may_write
from hermes.store.sqlite import file_lock, opening
from hermes.store.sqlite.inspection import open_unchanged
from hermes.store.sync_store import SessionStore
from hermes.store.transaction import Clock, Work

log: logging.Logger = logging.getLogger(__name__)

R = TypeVar("R")


def is_read_only(path: Path) -> bool:
    """Return whether this process may not write to the file, its folder or its lock file."""
    lock = f"{path}.lock"
    return not may_write(path) or (file_lock.has_lock(path) and not os.access(lock, os.W_OK))


def refusal(path: Path) -> StoreRefused:
    """Return the error for a read-only file that is to be changed."""
    return StoreRefused(f"{path} is read-only; copy it to another folder to change it")


def read_version(path: Path) -> int:
    """Return the schema version of a read-only file."""
    with ExitStack() as stack:
        return opening.version_of(open_unchanged(path, stack), path)


class ReadOnlyStore(SessionStore):
    """A store without the verbs that write: they raise `StoreRefused`. Nothing is created."""

    def __init__(self, path: Path) -> None:
        self.label: str = str(path)
        self.path: Path | None = path
        self._path = path
        self._clock = Clock()
        self._lock = threading.RLock()
        self._stack = ExitStack()
        self._db = open_unchanged(path, self._stack)
        self._before = _state(path)
        self._open = True

    def close(self) -> None:
        """Close the file. Raises `StoreError` if somebody has modified it meanwhile."""
        if not self._open:
            return
        self._open = False
        self._stack.close()
        if _state(self._path) != self._before:
            raise StoreError(f"{self.path} was modified meanwhile; run the command again")

    def transact(self, work: Work[R]) -> R:
        """Raise `StoreRefused`."""
        raise refusal(self._path)

    def run_search(self, work: Work[R]) -> R:
        """Run work that reads the search index as it is."""
        if self.snapshot(unindexed):
            log.warning("the latest messages are not indexed, and are not found")
        return self.snapshot(work)


def _state(path: Path) -> object:
    """Return what changes if somebody writes to a file that is opened as immutable."""
    if file_lock.has_wal(path):
        return "wal"
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino
