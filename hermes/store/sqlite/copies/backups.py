"""Copy a database while it is in use, and return its free space."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

import apsw

from hermes.errors import StoreBusy, StoreRefused
from hermes.store.engine import Progress
from hermes.store.files.problems import cannot_open
from hermes.store.sqlite import file_lock
from hermes.store.sqlite.copies.blob_backups import BlobCopy
from hermes.store.sqlite.transaction import Connection

log: Final = logging.getLogger(__name__)

ATTEMPTS = 5
BACKUP_STEP = 1024
"""Pages that a backup copies between two reports of its progress."""


def backup(
    db: Connection, target: Path, *, replace: bool = False, progress: Progress | None = None
) -> Path:
    """Copy the database as it is now, while others may write; return the path of the copy.

    Attached files are copied next to it. The copy appears under its name when it is complete.
    Raises `StoreRefused` if the target exists. With `replace`, as before a migration, the target is
    replaced, and attached files are not copied.
    """
    target = target.expanduser()
    if target.exists() and not replace:
        raise StoreRefused(f"{target} already exists; choose another file")
    if not target.parent.is_dir():
        raise StoreRefused(f"the folder {target.parent} does not exist; create it first")
    partial = target.with_name(f"{target.name}.partial")
    if replace:
        ours, _ = _copy_database(db, partial, progress)
        _publish(partial, target, ours)
        return target
    with BlobCopy(db.blobs, target) as blobs:
        ours = _copy_all(db, partial, blobs, progress)
        try:
            blobs.publish()
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _publish(partial, target, ours)
    return target


def _copy_all(db: Connection, partial: Path, blobs: BlobCopy, progress: Progress | None) -> int:
    """Copy the database and the files that it names. Returns the inode of the copy.

    A file that the copy names may have been deleted since: then both are copied again.
    """
    for _ in range(ATTEMPTS):
        blobs.collect()
        ours, sizes = _copy_database(db, partial, progress)
        try:
            missing = blobs.complete(sizes)
            if all(_names(db, digest) for digest in missing):
                if missing:  # the store is damaged; what is left of it is copied
                    log.warning("attached files are missing, also in the backup: %d", len(missing))
                return ours
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        partial.unlink(missing_ok=True)
    raise StoreBusy("attached files were deleted during the backup; try again")


def _names(db: Connection, digest: str) -> bool:
    return bool(db.execute("SELECT 1 FROM blobs WHERE hash = ?", (digest,)).fetchall())


def _copy_database(
    db: Connection, partial: Path, progress: Progress | None
) -> tuple[int, dict[str, int]]:
    """Copy the database to a new file. Returns its inode, and the sizes of its blobs by hash."""
    _remove(partial)
    _remove_logs(partial)
    file_lock.create(partial)
    ours = os.stat(partial).st_ino
    copy = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        _copy(db, copy, progress or (lambda _done, _all: None))
        # One file: a copy could be moved without its WAL file.
        copy.execute("PRAGMA journal_mode = DELETE")
        known = copy.execute("SELECT 1 FROM sqlite_schema WHERE name = 'blobs'").fetchall()
        named = copy.execute("SELECT hash, size FROM blobs").fetchall() if known else []
    except BaseException:
        copy.close()
        partial.unlink(missing_ok=True)
        raise
    copy.close()
    return ours, {str(digest): int(size or 0) for digest, size in named}


def _publish(partial: Path, target: Path, ours: int) -> None:
    """Give the complete copy its name."""
    if os.stat(partial).st_ino != ours:
        raise StoreBusy(f"another backup to {target} is running; try again")
    try:
        _remove_logs(target)  # of an earlier file: SQLite would apply them to the copy
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove_logs(path: Path) -> None:
    """Remove the journal, WAL and shared memory files of a database."""
    for suffix in ("-journal", "-wal", "-shm"):
        _remove(path.with_name(path.name + suffix))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_open(path, error, "removed") from error


def _copy(db: apsw.Connection, copy: apsw.Connection, progress: Progress) -> None:
    # One read transaction for all steps: otherwise each commit of another process would make the
    # backup start again.
    db.execute("BEGIN")
    try:
        db.execute("SELECT 1 FROM sqlite_schema").fetchall()
        with copy.backup("main", db, "main") as job:
            while not job.done:
                job.step(BACKUP_STEP)
                progress(job.page_count - job.remaining, job.page_count)
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def vacuum(db: apsw.Connection) -> None:
    """Merge the search index and return free space to the file system."""
    db.execute("INSERT INTO search (search) VALUES ('optimize')")
    db.execute("VACUUM")
    with contextlib.suppress(apsw.BusyError):  # because of a reader; the file is truncated later
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
