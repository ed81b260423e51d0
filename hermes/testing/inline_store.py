"""A store without threads, for tests and simulations that must repeat exactly.

    async with open_store(path, open_worker=inline()) as store: ...

It works with Trio's `MockClock`, and COMMIT can be made to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import apsw
import trio

from hermes.store.engine import Connection, Then, Worker
from hermes.store.sqlite.connection import Database
from hermes.store.sqlite.engine import OpenWorker

R = TypeVar("R")

CommitFault: TypeAlias = Literal["busy", "full", "unknown-absent", "unknown-present"]
"""How a COMMIT fails. After an `unknown` one, the data is or is not on disk."""


class FaultyDatabase(Database):
    """A connection that asks `faults` before each COMMIT whether and how it shall fail."""

    def __init__(
        self,
        path: Path,
        *,
        readonly: bool,
        vfs: str | None,
        faults: Callable[[], CommitFault | None],
    ) -> None:
        self._faults: Callable[[], CommitFault | None] = lambda: None
        super().__init__(path, readonly=readonly, vfs=vfs)
        self._faults = faults

    def execute(self, statements: str, bindings: object = None, **options: object) -> apsw.Cursor:
        """Execute the statements, or fail."""
        fault = self._faults() if statements == "COMMIT" else None
        match fault:
            case None:
                return super().execute(statements, bindings, **options)  # type: ignore[arg-type]
            case "busy":
                raise apsw.BusyError("injected")
            case "full":
                super().execute("ROLLBACK")
                raise apsw.FullError("injected")
            case "unknown-absent":
                super().execute("ROLLBACK")
                raise apsw.IOError("injected before the commit")
            case "unknown-present":
                super().execute("COMMIT")
                raise apsw.IOError("injected after the commit")


class InlineWorker:
    """A connection that runs functions in Trio's own thread."""

    def __init__(self, db: Connection) -> None:
        self.db: Connection = db

    async def run(self, function: Callable[[Connection], R], then: Then[R] | None = None) -> R:
        """Run the function after a checkpoint, at which other tasks run as they would meanwhile."""
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        result = function(self.db)
        if then is not None:
            then(result)
        return result

    async def aclose(self) -> None:
        """Close the connection."""
        self.db.close()


def inline(faults: Callable[[], CommitFault | None] = lambda: None) -> OpenWorker:
    """Return an `open_worker` for `open_store` that opens connections without threads.

    `faults` is called before each COMMIT of the writing connection.
    """

    async def open_inline(path: Path, *, readonly: bool, vfs: str | None) -> Worker:
        await trio.lowlevel.checkpoint()
        if readonly:
            return InlineWorker(Database(path, readonly=True, vfs=vfs))
        return InlineWorker(FaultyDatabase(path, readonly=False, vfs=vfs, faults=faults))

    return open_inline
