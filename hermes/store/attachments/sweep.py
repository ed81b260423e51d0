"""Delete attached files that nothing names any more, and content that no row names."""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from hermes.store.attachments import rows as attachments
from hermes.store.files.blobs import INCOMING, BlobFolder
from hermes.store.transaction import Transaction, Work

log: Final = logging.getLogger(__name__)

SPARED = 3600.0
"""Seconds for which a file is kept although nothing names it: a message may be about to."""
STEP = 200
# ?1 is the machine's steady clock: a date that is set wrong ages nothing. The clock starts again
# with the machine, so a file from a later time of it is at least as old as the machine's start.
IS_OLD: Final = f"CASE WHEN f.steady_at <= ?1 THEN ?1 - f.steady_at ELSE ?1 END > {SPARED}"
_FILES = (
    f"SELECT f.id, f.purpose IS NULL AND {IS_OLD} AND {attachments.UNUSED} FROM files f "
    f"WHERE f.id > ?2 ORDER BY f.id LIMIT {STEP}"
)
_BLOBS = (
    f"SELECT b.hash, {attachments.FREE} FROM blobs b WHERE b.hash > ? ORDER BY b.hash LIMIT {STEP}"
)
_BLOB_NAME = re.compile("[0-9a-f]{64}")


class Swept(NamedTuple):
    """What a step of a sweep did."""

    last: str = ""
    """The last row that was looked at; empty at the end."""
    blobs: int = 0
    """How many files were removed."""
    size: int = 0
    """The number of their bytes."""


def sweep_files(folder: BlobFolder) -> Generator[Work[Swept], Swept, Swept]:
    """Delete files without a reference, and blobs without a row, if they are over an hour old.

    Returns what was removed. A blob is removed in a write transaction, after its row: nobody can
    store a row for it at the same time. Each transaction looks at some rows or at one subfolder.
    Each piece needs a transaction for itself: if one removed a blob whose row the same transaction
    deletes, a rollback would leave only the row.
    """
    for step in (_delete_files, _delete_blobs):
        done = yield functools.partial(step, after="")
        while done.last:
            done = yield functools.partial(step, after=done.last)
    blobs = size = 0
    for subfolder in folder.folders():
        done = yield functools.partial(_remove, folder=subfolder)
        blobs, size = blobs + done.blobs, size + done.size
    return Swept("", blobs, size)


def _delete_files(tx: Transaction, after: str) -> Swept:
    """Delete the rows of files that are old and unused."""
    found = tx.all(_FILES, tx.steady, after)
    tx.run_each("DELETE FROM files WHERE id = ?", [(id_,) for id_, unused in found if unused])
    return Swept(found[-1][0] if len(found) == STEP else "")


def _delete_blobs(tx: Transaction, after: str) -> Swept:
    """Delete the rows of blobs without files."""
    found = tx.all(_BLOBS, after)
    tx.run_each("DELETE FROM blobs WHERE hash = ?", [(hash_,) for hash_, free in found if free])
    return Swept(found[-1][0] if len(found) == STEP else "")


def _remove(tx: Transaction, folder: Path) -> Swept:
    """Remove the files of one folder that are old and have no row."""
    blobs = size = 0
    with _reported(folder), _locked(folder) as is_ours:
        for path, bytes_ in _old_files(tx, folder) if is_ours else ():
            if not _has_row(tx, path.name):
                with _reported(path):
                    path.unlink()
                    blobs, size = blobs + 1, size + bytes_
    return Swept("", blobs, size)


def remove_blob(tx: Transaction, digest: str) -> None:
    """Remove content without a row, however old it is. It needs a transaction for itself.

    Content without a row is about to be stored only inside of another write transaction.
    """
    path = tx.db.blobs.path_of(digest)
    if not _has_row(tx, digest):
        with _reported(path):
            path.unlink()


def _old_files(tx: Transaction, folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the blobs or staged files of a folder that are old, with their sizes."""
    for path in folder.iterdir():
        if folder.name == INCOMING or _BLOB_NAME.fullmatch(path.name):
            with suppress(FileNotFoundError):
                status = path.stat()
                if status.st_mtime < tx.now - SPARED:
                    yield path, status.st_size


def _has_row(tx: Transaction, digest: str) -> bool:
    return tx.one("SELECT 1 FROM blobs WHERE hash = ?", digest) is not None


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder for the block; yields False if others keep staged files in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        locked = False
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        yield locked
    finally:
        os.close(descriptor)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Log an error of the file system in the block, unless the file does not exist."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s was not swept: %s", path, error.strerror or error)


def unused(tx: Transaction) -> Swept:
    """Return what a sweep would remove now."""
    sql = (
        "SELECT hash FROM blobs b WHERE EXISTS (SELECT 1 FROM files f WHERE f.hash = b.hash "
        f"AND NOT (f.purpose IS NULL AND {IS_OLD} AND {attachments.UNUSED}))"
    )
    kept = {hash_ for (hash_,) in tx.all(sql, tx.steady)}
    sizes: list[int] = []
    for folder in tx.db.blobs.folders():
        with _reported(folder):
            sizes += [size for path, size in _old_files(tx, folder) if path.name not in kept]
    return Swept("", len(sizes), sum(sizes))
