"""Open the database for the admin commands: beside a runtime or exclusively.

Only `migrate` changes the schema; every other command refuses a file of an older version.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from hermes.config import data_path
from hermes.errors import StoreInUse, StoreRefused
from hermes.store.choosing import engine_of, side_of
from hermes.store.cli.read_only import ReadOnlyStore, is_read_only, read_version, refusal
from hermes.store.files.contents import FileContents
from hermes.store.sqlite import file_lock, opening, runtime_lock, schema
from hermes.store.sqlite.blobs import BlobFolder
from hermes.store.sqlite.runtime_lock import RuntimeLock
from hermes.store.sync_store import SessionStore
from hermes.store.transaction import Clock, Work
from hermes.store.verb_kinds import Chunked

R = TypeVar("R")
S = TypeVar("S")

CURRENT_VERSION = len(schema.MIGRATIONS)
PROGRESS_STEPS = 100_000
"""SQLite instructions between two checks for Ctrl-C: about a millisecond."""


def existing_path(options: Namespace) -> Path | str:
    """Return the path or URL of the database, or raise `StoreRefused` if there is no such file."""
    if isinstance(options.db, str):
        return options.db
    path: Path = options.db.expanduser()
    if not path.exists():
        raise StoreRefused(f"{path} does not exist; use --db to name the database")
    return file_lock.resolve(path)


def schema_version(path: Path) -> int:
    """Return the schema version of the file."""
    if is_read_only(path):
        return read_version(path)
    with file_lock.no_trace(path, had_lock=file_lock.has_lock(path)), file_lock.wait_opening(path):
        return opening.stored_version(path)


@contextmanager
def open_current(path: Path | str) -> Iterator[SessionStore]:
    """Open an existing database, whose queries Ctrl-C can interrupt.

    A file that is read-only can be read. Raises `StoreRefused` if it has an older schema.
    """
    require_current(path)
    if isinstance(path, str):
        with SessionStore(path) as store:
            yield store
        return
    with ReadOnlyStore(path) if is_read_only(path) else SessionStore(path) as store:
        store.snapshot(lambda tx: tx.db.set_progress_handler(lambda: False, PROGRESS_STEPS))
        yield store


def require_current(path: Path | str) -> None:
    """Raise `StoreRefused` if a database has an older schema, or the URL of one has none."""
    if isinstance(path, str):
        with side_of(path).source(Clock()):
            return
    version = schema_version(path)
    if version < CURRENT_VERSION:
        from hermes.settings.installation import command  # noqa: PLC0415 - rarely needed

        raise StoreRefused(
            f"{path} has schema {version}, but this version of Hermes needs {CURRENT_VERSION}; "
            f"run: {command('store migrate --db')} {shlex.quote(str(path))}"
        )


def in_use(path: Path | str) -> bool:
    """Return whether a runtime owns the database, so that a long check would delay it."""
    if isinstance(path, str):
        return False
    if is_read_only(path):
        return runtime_lock.owner(path) is not None
    try:
        RuntimeLock(path).close()
    except StoreInUse:
        return True
    return False


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the runtime lock of the file, to change it.

    Raises `StoreInUse` if a runtime owns it, and `StoreRefused` if it is read-only.
    """
    if is_read_only(path):
        raise refusal(path)
    had_lock = file_lock.has_lock(path)
    lock = RuntimeLock(path)
    try:
        with file_lock.no_trace(path, had_lock=had_lock):
            yield
    finally:
        lock.close()


def run_chunked(
    store: SessionStore, work: Generator[Work[S], S, R], on_step: Callable[[int], None]
) -> R:
    """Run work of many transactions; after each, call `on_step` with their number so far."""
    steps = Chunked(work)
    number = 0
    while (step := steps.next()) is not None:
        with steps.counted():
            steps.done(store.transact(step))
        number += 1
        on_step(number)
    return steps.result()


def prepare_folder(options: Namespace) -> None:
    """Create the folder of the database if it is the default one. It must be writable."""
    if isinstance(options.db, str):
        return
    if options.db == data_path():
        options.db.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = file_lock.resolve(options.db)
    if path.exists() and is_read_only(path):
        raise refusal(path)


@contextmanager
def new_blobs(options: Namespace) -> Iterator[FileContents]:
    """Return what stores attached files; a folder is removed if there is no database then."""
    if isinstance(options.db, str):
        with engine_of(options.db).connect(Clock()) as db:
            yield db.blobs
        return
    path = file_lock.resolve(options.db)
    folder = BlobFolder(path)
    try:
        yield folder
    finally:
        if not path.exists():
            for each in (*folder.folders(), folder.path):
                with suppress(OSError):  # it has other files, or does not exist
                    each.rmdir()


@contextmanager
def open_or_create(options: Namespace) -> Iterator[SessionStore]:
    """Open the database, and create it if it does not exist."""
    prepare_folder(options)
    path = options.db
    if isinstance(path, str) or not (path := file_lock.resolve(path)).exists():
        SessionStore(path).close()
    with open_current(path) as store:
        yield store
