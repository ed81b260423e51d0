"""Delete attached files that nothing names any more, and content that no row names."""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import Final

from hermes.store.attachments import rows as attachments
from hermes.store.files.contents import SPARED, FileContents, Swept, has_row
from hermes.store.transaction import Transaction, Work

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


def sweep_files(contents: FileContents) -> Generator[Work[Swept], Swept, Swept]:
    """Delete files without a reference, and blobs without a row, if they are over an hour old.

    Returns what was removed. A blob is removed in a write transaction, after its row: nobody can
    store a row for it at the same time. Each transaction looks at some rows or contents.
    Each piece needs a transaction for itself: if one removed a blob whose row the same transaction
    deletes, a rollback would leave only the row.
    """
    blobs = size = 0
    for step in (_delete_files, _delete_blobs, contents.sweep):
        after: str | None = None
        while after != "":
            after, *done = yield functools.partial(step, after=after or "")
            blobs, size = blobs + done[0], size + done[1]
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


def remove_blob(tx: Transaction, digest: str) -> None:
    """Remove content without a row, however old it is. It needs a transaction for itself.

    Content without a row is about to be stored only inside of another write transaction.
    """
    if not has_row(tx, digest):
        tx.db.blobs.remove(tx, digest)


def unused(tx: Transaction) -> Swept:
    """Return what a sweep would remove now."""
    sql = (
        "SELECT hash FROM blobs b WHERE EXISTS (SELECT 1 FROM files f WHERE f.hash = b.hash "
        f"AND NOT (f.purpose IS NULL AND {IS_OLD} AND {attachments.UNUSED}))"
    )
    kept = {hash_ for (hash_,) in tx.all(sql, tx.steady)}
    sizes = [size for name, size in tx.db.blobs.old(tx) if name not in kept]
    return Swept("", len(sizes), sum(sizes))
