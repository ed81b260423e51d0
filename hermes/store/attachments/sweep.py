"""Delete attached files that nothing names any more, and content that no row names."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path

from hermes.store.attachments import rows as attachments
from hermes.store.files.blobs import BlobFolder
from hermes.store.transaction import Transaction, Work

SPARED = 3600.0
"""Seconds for which a file is kept although nothing names it: a message may be about to."""
STEP = 200


def sweep_files(folder: BlobFolder) -> Generator[Work[int], int, int]:
    """Delete files without a reference, and blobs without a row, if they are over an hour old.

    Returns how many blobs were deleted. A blob is deleted in a write transaction, after its row:
    nobody can store a row for it at the same time.
    """
    while (yield _delete_rows) == STEP:
        pass
    removed, found = 0, list(folder.all_blobs())
    for first in range(0, len(found), STEP):
        some = found[first : first + STEP]
        removed += yield lambda tx, some=some: _remove(tx, some)
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


def _remove(tx: Transaction, paths: Sequence[Path]) -> int:
    """Remove those of the files that are old and have no row. Returns how many."""
    removed = 0
    for path in paths:
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < tx.now - SPARED and not _has_row(tx, path.name):
                path.unlink()
                removed += 1
    return removed


def _has_row(tx: Transaction, digest: str) -> bool:
    return tx.one("SELECT 1 FROM blobs WHERE hash = ?", digest) is not None
