"""Which engine opens a database: PostgreSQL for its URLs, SQLite for anything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.config import is_database_url
from hermes.errors import StoreRefused
from hermes.store.copying.sides import Side
from hermes.store.engine import Engine, OpenWorker
from hermes.store.sqlite.copies.side import SqliteSide
from hermes.store.sqlite.engine import SqliteEngine


def engine_of(
    target: str | os.PathLike[str],
    *,
    max_wal_bytes: int | None = None,
    open_worker: OpenWorker | None = None,
    vfs: str | None = None,
) -> Engine:
    """Return the engine for a path, or for a URL (`postgresql://…`); nothing is opened.

    Raises `StoreRefused` for an option of SQLite with a URL, or if psycopg is not installed.
    """
    if not is_database_url(target):
        return SqliteEngine(
            Path(target), max_wal_bytes=max_wal_bytes, open_worker=open_worker, vfs=vfs
        )
    given = {"max_wal_bytes": max_wal_bytes, "vfs": vfs}
    for name, value in given.items():
        if value is not None:
            raise StoreRefused(f"{name} is an option for SQLite; leave it out with PostgreSQL")
    return _postgres(str(target), open_worker)


def side_of(target: str) -> Side:
    """Return a path or a URL as a side of a copy; nothing is opened.

    Raises `StoreRefused` if it cannot be one.
    """
    if not is_database_url(target):
        return SqliteSide(Path(target))
    with _driver_required():
        from hermes.store.postgres.copies.side import PostgresSide  # noqa: PLC0415 - an extra
    return PostgresSide(target)


def _postgres(url: str, open_worker: OpenWorker | None) -> Engine:
    with _driver_required():
        from hermes.store.postgres.engine import PostgresEngine  # noqa: PLC0415 - an extra
    return PostgresEngine(url, open_worker=open_worker)


@contextmanager
def _driver_required() -> Iterator[None]:
    """Raise `StoreRefused` if an import in the block needs psycopg, and it is not installed."""
    try:
        yield
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        raise StoreRefused(
            "PostgreSQL needs psycopg; install 'hermes-runtime[postgres]'"
        ) from error
