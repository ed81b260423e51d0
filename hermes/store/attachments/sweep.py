"""Delete attached files that nothing names any more, and content that no row names."""

from __future__ import annotations

import functools
import logging
from collections.abc import Generator
from pathlib import Path
from typing import Final

from hermes.store.attachments import rows as attachments
from hermes.store.files.blobs import BlobFolder
from hermes.store.transaction import Transaction, Work

log: Final = logging.getLogger(__name__)
SPARED = 3600.0
"""Seconds for which a file is kept although nothing names it: a message may be about to."""
STEP = 200


def sweep_files(folder: BlobFolder) -> Generator[Work[int], int, int]:
    """Delete files without a reference, and blobs without a row, if they are over an hour old.

    Returns how many blobs were deleted. A blob is deleted in a write transaction, after its row:
    nobody can store a row for it at the same time. Each piece needs a transaction for itself: if
    one removed a blob whose row the same transaction deletes, a rollback would leave only the row.
    """
    while (yield _delete_rows) == STEP:
        pass
    removed = 0
    for each in folder.folders():
        removed += yield functools.partial(_remove_from, folder=each)
    return removed


def _delete_rows(tx: Transaction) -> int:
    """Delete files that nothing names, and blobs without files. Returns how many files."""
    deleted = tx.run(
        "DELETE FROM files WHERE id IN (SELECT f.id FROM files f "
        f"WHERE f.created_at < ? AND {attachments.UNUSED} LIMIT ?)",
        tx.now - SPARED,
        STEP,
    )
    tx.run("DELETE FROM blobs WHERE NOT EXISTS (SELECT 1 FROM files f WHERE f.hash = blobs.hash)")
    return deleted


def _remove_from(tx: Transaction, folder: Path) -> int:
    """Remove those of the files of a folder that are old and have no row. Returns how many."""
    try:
        return sum(_remove(tx, path) for path in sorted(folder.iterdir()))
    except FileNotFoundError:
        return 0
    except OSError as error:
        log.warning("unused files in %s cannot be deleted: %s", folder, error)
        return 0


def _remove(tx: Transaction, path: Path) -> bool:
    """Remove a file if it is old and has no row. Returns whether it was removed."""
    try:
        if path.stat().st_mtime >= tx.now - SPARED or _has_row(tx, path.name):
            return False
        path.unlink()
    except FileNotFoundError:  # a staged file that is complete now
        return False
    except OSError as error:
        log.warning("the unused file %s cannot be deleted: %s", path, error)
        return False
    return True


def _has_row(tx: Transaction, digest: str) -> bool:
    return tx.one("SELECT 1 FROM blobs WHERE hash = ?", digest) is not None
