"""Locks that keep runtimes away from a database while `hermes store copy` uses it.

Each runtime shares an advisory lock, on the connection that writes; a copy has it alone. The server
releases it when the connection ends, however that happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from hermes.errors import StoreBusy, StoreInUse, StoreRefused
from hermes.store.copying.tables import COPY_MARK
from hermes.store.postgres import schema
from hermes.store.postgres.address import Address
from hermes.store.postgres.driver import Driver, connect

TRIES, PAUSE = 20, 0.05
_KEY: Final = "1212502605, 1"
"""Two numbers, so that it is no key of other locks, which have one."""
_SHARE: Final = f"SELECT pg_try_advisory_lock_shared({_KEY})"
_LIVING: Final = (
    "SELECT name, ceil(lease_until - now)::int FROM nodes, "
    "(SELECT extract(epoch FROM clock_timestamp()) AS now) AS clock "
    "WHERE dead = 0 AND lease_until > now ORDER BY lease_until DESC"
)
_WAS_MOVED: Final = (
    "SELECT coalesce((SELECT value::json ->> 'moved_at' FROM meta "
    f"WHERE key = '{COPY_MARK}'), '') <> ''"
)
_TAKE: Final = f"SELECT pg_try_advisory_lock({_KEY})"


class RuntimeShare:
    """The share of one runtime, which connects again when the server was away."""

    def __init__(self) -> None:
        self._was_moved: bool | None = None

    def open(self, db: Driver, label: str) -> None:
        """Prepare a connection: create or migrate the tables, and share the lock.

        Raises `StoreInUse` during a copy, and `StoreRefused` if the database was moved since an
        earlier connection.
        """
        if not _is_taken(db, _SHARE):
            raise StoreInUse(f"{label} is being copied; start again when the copy is complete")
        schema.migrate(db, label)
        [(was_moved,)] = db.execute(_WAS_MOVED).fetchall()
        if was_moved and self._was_moved is False:
            raise StoreRefused("it was moved to another database meanwhile")
        self._was_moved = bool(was_moved)


@contextmanager
def alone(address: Address) -> Iterator[Callable[[], None]]:
    """Keep runtimes and other copies away during the block. Raises `StoreInUse` if there are some.

    Yields a function that raises `StoreBusy` if the lock was lost.
    """
    db = connect(address)
    try:
        if not _is_taken(db, _TAKE):
            raise StoreInUse(
                f"{address.label} is in use by a runtime or another copy; stop all runtimes first"
            )

        _require_no_nodes(db, address.label)

        def check() -> None:
            try:
                db.execute("SELECT 1")
            except psycopg.Error as error:
                text = f"the connection to {address.label} was lost; run the same command again"
                raise StoreBusy(text) from error

        yield check
    finally:
        db.close()


def _require_no_nodes(db: Driver, label: str) -> None:
    """Raise `StoreInUse` if a node could come back: it has lost its connection or was killed."""
    [(has_nodes,)] = db.execute("SELECT to_regclass('nodes') IS NOT NULL").fetchall()
    if has_nodes and (living := db.execute(_LIVING).fetchall()):
        name, seconds = living[0]
        raise StoreInUse(
            f"{label} is in use by the node {name}; stop it, or, if it has ended without a word, "
            f"try again in {seconds} s"
        )


def _is_taken(db: Driver, sql: str) -> bool:
    """Try for a moment: a connection that was closed just now may not have ended yet."""
    for _ in range(TRIES):
        [(taken,)] = db.execute(sql).fetchall()
        if taken:
            return True
        time.sleep(PAUSE)
    return False
