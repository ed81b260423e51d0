"""How the store opens a PostgreSQL database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

from hermes.background import protected
from hermes.errors import StoreRefused
from hermes.store.engine import Connection, Connections, OpenWorker, Worker
from hermes.store.postgres.address import Address, parse
from hermes.store.postgres.cluster.joining import join
from hermes.store.postgres.connection import PostgresConnection
from hermes.store.postgres.copies import claims
from hermes.store.transaction import Clock
from hermes.store.worker import open_in_thread, watched


class PostgresEngine:
    """The engine for one PostgreSQL database, which must exist."""

    path: Path | None = None

    def __init__(self, url: str, *, open_worker: OpenWorker | None = None) -> None:
        self.threads: bool = open_worker is None or open_worker is open_in_thread
        self._open_worker: OpenWorker = open_worker or open_in_thread
        try:
            self._address: Address = parse(url)
        except ValueError as error:
            raise StoreRefused(str(error)) from None
        self.label: str = self._address.label

    def _connect(self) -> PostgresConnection:
        return PostgresConnection(self._address)

    def _connect_writer(self) -> PostgresConnection:
        # A node that is stopped in a transaction must not hold its locks for longer than its lease.
        address = self._address
        return PostgresConnection(address, claims.RuntimeShare().open, idle=address.lease)

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
                for readonly in (False, True, True, True):
                    connect = self._connect if readonly else self._connect_writer
                    workers.append(await self._open_worker(connect, readonly=readonly))
                writer, reader, browser, searcher = workers
                assert isinstance(writer.db, PostgresConnection)
                be_node = partial(join, self._address, writer.db, threads=self.threads)
                yield Connections(writer, reader, browser, searcher, _nothing, be_node)
            finally:
                with trio.CancelScope(shield=True):
                    for worker in reversed(workers):
                        await worker.aclose()


def _nothing() -> None: ...
