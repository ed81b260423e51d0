"""How the store opens a PostgreSQL database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from hermes.background import protected
from hermes.errors import StoreRefused
from hermes.store.engine import Connection, Connections, Worker
from hermes.store.postgres.address import Address, parse
from hermes.store.postgres.connection import PostgresConnection
from hermes.store.transaction import Clock
from hermes.store.worker import start_worker, watched

CONNECTIONS: Final = 4
"""Of a runtime: for writing, reading, long reads and searches."""


class PostgresEngine:
    """The engine for one PostgreSQL database, which must exist."""

    path: Path | None = None
    threads: bool = True

    def __init__(self, url: str) -> None:
        try:
            self._address: Address = parse(url)
        except ValueError as error:
            raise StoreRefused(str(error)) from None
        self.label: str = self._address.label

    def _connect(self) -> PostgresConnection:
        return PostgresConnection(self._address)

    @contextmanager
    def connect(self, clock: Clock) -> Iterator[Connection]:
        """Open one connection."""
        db = self._connect()
        try:
            yield db
        finally:
            db.close()

    @protected
    async def open(self, clock: Clock) -> AsyncIterator[Connections]:
        """Open the connections of a runtime; the first one creates or migrates the tables."""
        workers: list[Worker] = []
        async with watched():
            try:
                while len(workers) < CONNECTIONS:
                    workers.append(await start_worker(self._connect))
                writer, reader, browser, searcher = workers
                yield Connections(writer, reader, browser, searcher, _nothing)
            finally:
                with trio.CancelScope(shield=True):
                    for worker in reversed(workers):
                        await worker.aclose()


def _nothing() -> None: ...
