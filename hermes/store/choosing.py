"""Which engine opens a database: PostgreSQL for its URLs, SQLite for anything else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.config import is_database_url
from hermes.errors import StoreRefused
from hermes.messages import ClusterView, StoreStats
from hermes.store.cluster.view import cluster_view
from hermes.store.copying.sides import Side
from hermes.store.engine import Engine, OpenWorker
from hermes.store.maintenance import stats
from hermes.store.sqlite import inspection
from hermes.store.sqlite.copies.side import SqliteSide
from hermes.store.sqlite.engine import SqliteEngine
from hermes.store.transaction import Clock


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


def schema_versions(url: str) -> tuple[int, int]:
    """Return the version of the schema in a PostgreSQL database, 0 without one, and the current."""
    with _driver_required():
        from hermes.store.postgres.copies.side import PostgresSide  # noqa: PLC0415 - an extra
    return PostgresSide(url).schema_versions()


def has_store(target: str | os.PathLike[str]) -> bool:
    """Return whether a PostgreSQL database has the tables of a store. Raises `StoreRefused`."""
    return schema_versions(os.fspath(target))[0] > 0


def read_stats(target: str | os.PathLike[str]) -> tuple[StoreStats, int]:
    """Return the statistics of a database, and how many messages were parked; nothing is changed.

    Raises `StoreRefused` if it cannot be read.
    """
    if not is_database_url(target):
        return inspection.read_stats(Path(target))
    clock = Clock()
    with side_of(str(target)).source(clock) as db:
        return db.run_read(clock, stats.facts), db.run_read(clock, stats.count_parked)


def read_cluster(target: str | os.PathLike[str]) -> tuple[ClusterView, float]:
    """Return the nodes of a database, and the time of its clock; a file has no nodes.

    Raises `StoreRefused` if it cannot be read.
    """
    if not is_database_url(target):
        return ClusterView(), time.time()
    clock = Clock()
    with side_of(str(target)).source(clock) as db:
        return db.run_read(clock, lambda tx: (cluster_view(tx), tx.now))


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
