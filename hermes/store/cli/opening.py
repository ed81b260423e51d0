"""How the admin commands open the file: beside its runtime, or alone; never an older schema.

What an older Hermes may have open is not changed under its feet; only `migrate` does that.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hermes.config import data_path
from hermes.errors import StoreInUse, StoreRefused
from hermes.store import connection, file_lock, schema
from hermes.store.chunked import Chunked
from hermes.store.sync_store import SessionStore
from hermes.store.transaction import Work

R = TypeVar("R")
S = TypeVar("S")

CURRENT = len(schema.MIGRATIONS)
LOOK_UP = 100_000
"""Steps of SQLite after which it lets a Ctrl-C through: about a millisecond."""


def existing(options: Namespace) -> Path:
    """The file that is meant, if there is one."""
    named: Path = options.db.expanduser()
    if not named.exists():
        raise StoreRefused(f"{named} does not exist; name another with --db")
    return file_lock.resolve(named)


def version(path: Path) -> int:
    """The schema of the file."""
    with file_lock.no_trace(path, had_lock=file_lock.has_lock(path)), file_lock.wait_opening(path):
        return connection.stored_version(path)


@contextmanager
def opened(path: Path) -> Iterator[SessionStore]:
    """The store at `path`, which is there and current, and lets a Ctrl-C through."""
    found = version(path)
    if found < CURRENT:
        raise StoreRefused(
            f"{path} has schema {found} and this Hermes has {CURRENT}; run: "
            f"python -m hermes.store migrate --db {path}"
        )
    with SessionStore(path) as store:
        store.snapshot(lambda tx: tx.db.set_progress_handler(lambda: False, LOOK_UP))
        yield store


def in_use(path: Path) -> bool:
    """Whether a runtime has the file."""
    try:
        file_lock.RuntimeLock(path).close()
    except StoreInUse:
        return True
    return False


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """While no runtime has the file, and none can take it."""
    had_lock = file_lock.has_lock(path)
    lock = file_lock.RuntimeLock(path)
    try:
        with file_lock.no_trace(path, had_lock=had_lock):
            yield
    finally:
        lock.close()


def drive(store: SessionStore, work: Generator[Work[S], S, R], tell: Callable[[int], None]) -> R:
    """Run work of many transactions, and tell after each how many there were."""
    steps = Chunked(work)
    number = 0
    while (piece := steps.next()) is not None:
        with steps.counted():
            steps.done(store.transact(piece))
        number += 1
        tell(number)
    return steps.result()


@contextmanager
def opened_or_made(options: Namespace) -> Iterator[SessionStore]:
    """`opened`, also where there is no file yet."""
    if options.db == data_path():
        options.db.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = file_lock.resolve(options.db)
    if not path.exists():
        SessionStore(path).close()
    with opened(path) as store:
        yield store
