"""How the store opens a PostgreSQL database."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path

from hermes.config import shown_database
from hermes.errors import StoreRefused
from hermes.store.engine import Connection, Connections
from hermes.store.transaction import Clock


class PostgresEngine:
    """The engine for one PostgreSQL database."""

    path: Path | None = None
    threads: bool = True

    def __init__(self, url: str) -> None:
        self.label: str = shown_database(url)

    def connect(self, clock: Clock) -> AbstractContextManager[Connection]:
        """Open one connection."""
        raise StoreRefused("PostgreSQL is not supported yet")

    def open(self, clock: Clock) -> AbstractAsyncContextManager[Connections]:
        """Open the connections of a runtime."""
        raise StoreRefused("PostgreSQL is not supported yet")
