"""How an SQLite file is created, checked and migrated when it is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from hermes.errors import StoreRefused
from hermes.store.maintenance import cleanup
from hermes.store.sqlite import file_lock, schema
from hermes.store.sqlite.connection import Database
from hermes.store.sqlite.copies import backups
from hermes.store.sqlite.errors import unreadable
from hermes.store.sqlite.transaction import SqliteTransaction
from hermes.store.transaction import Clock

log: Final = logging.getLogger(__name__)


def open_database(path: Path, clock: Clock, vfs: str | None = None) -> Database:
    """Open a store's file; create it if it does not exist, migrate it if its schema is older.

    Call it inside of `file_lock.Opening`. Raises `StoreRefused` and leaves the file as it is if it
    cannot be used.
    """
    return _open(path, vfs, lambda db, version: _make_current(db, path, clock, version))


def open_copy(path: Path, clock: Clock) -> Database:
    """Open an incomplete copy, which `open_database` refuses; create it if there is no file.

    Call it inside of `file_lock.Opening`. Raises `StoreRefused` if the file is something else.
    """
    kind = schema.COPY_ID
    return _open(
        path, None, lambda db, version: _make_current(db, path, clock, version, kind), kind
    )


def stored_version(path: Path) -> int:
    """Return the schema version of an existing file, without migrating it.

    Call it inside of `file_lock.Opening`.
    """
    found = []
    _open(path, None, lambda _, version: found.append(version)).close()
    return found[0]


def _open(
    path: Path,
    vfs: str | None,
    prepare: Callable[[Database, int], None],
    kind: int = schema.APPLICATION_ID,
) -> Database:
    file_lock.refuse_old_sqlite(apsw.sqlite_lib_version())
    file_lock.refuse_network_file_system(path)
    fresh = file_lock.create(path)
    # If a process left a WAL file, read it, but do not move it into a file that is then refused.
    keep_wal = not fresh and file_lock.has_wal(path)
    if not fresh and not keep_wal:
        file_lock.refuse_damaged(path)
    try:
        db = Database(path, vfs=vfs)
    except apsw.Error as error:
        raise unreadable(path, error) from error
    try:
        if keep_wal:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        version = 0 if fresh else version_of(db, path, kind)
        prepare(db, version)
    except apsw.Error as error:
        db.close()
        raise unreadable(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


def _make_current(
    db: Database, path: Path, clock: Clock, version: int, kind: int = schema.APPLICATION_ID
) -> None:
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    _use_wal(db, path)
    if version < len(schema.MIGRATIONS):
        _migrate(db, path, clock, version, kind)


def version_of(db: Database, path: Path, kind: int = schema.APPLICATION_ID) -> int:
    """Return the schema version of the file; refuse other programs' files and newer versions.

    `kind` is what the file must be: a store, or an incomplete copy of one (`schema.COPY_ID`).
    """
    version, application_id = (int(db.pragma(n)) for n in ("user_version", "application_id"))
    if (application_id, version) == (kind, len(schema.MIGRATIONS)):
        return version
    tables = len(db.execute("SELECT 1 FROM sqlite_schema").fetchall())
    if (application_id, version, tables) == (0, 0, 0):
        return 0
    if application_id == schema.COPY_ID != kind:
        raise StoreRefused(
            f"{path} is an incomplete copy; complete it with `hermes store copy`, or delete it"
        )
    if application_id == schema.APPLICATION_ID != kind:
        raise StoreRefused(f"{path} has a store already; choose another file for the copy")
    if application_id != kind:
        raise StoreRefused(f"{path} is a database of another program; choose another file")
    if version > len(schema.MIGRATIONS):
        raise StoreRefused(
            f"{path} was written by a newer Hermes (schema {version}, this one knows "
            f"{len(schema.MIGRATIONS)}); update Hermes"
        )
    return version


def _use_wal(db: Database, path: Path) -> None:
    if db.pragma("journal_mode") == "wal":
        return
    if db.pragma("journal_mode", "wal") != "wal":
        raise StoreRefused(f"{path} is on a file system without shared memory, which WAL needs")
    # The first read creates the WAL file and its index.
    db.execute("SELECT 1 FROM sqlite_schema").fetchall()


def _migrate(db: Database, path: Path, clock: Clock, version: int, kind: int) -> None:
    if version:
        # Without attached files: a migration changes none of them.
        backups.backup(db, path.with_name(f"{path.name}.schema{version}.backup"), replace=True)
    # One transaction for all steps: if one of them fails, the old version can still open the file.
    db.execute("BEGIN IMMEDIATE")
    try:
        version = int(db.pragma("user_version"))  # another process may just have migrated it
        for script in schema.MIGRATIONS[version:]:
            db.execute(script)
        tx = SqliteTransaction.begin(db, clock)
        cleanup.finalize_orphaned_compression_sessions(tx)
        cleanup.prune_empty_ghost_sessions(tx)
        db.execute(f"PRAGMA application_id = {kind}")
        db.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    if 0 < version < len(schema.MIGRATIONS):
        log.info("migrated the database from schema %d to %d", version, len(schema.MIGRATIONS))
