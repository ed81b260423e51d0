"""The seam between Trio and SQLite: a connection that runs whole functions, in a thread or inline.

Both are shielded and have no deadline: a caller may stop waiting, the function runs to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

import apsw
import apsw.aio
import trio

from hermes.store.database import Database

P = ParamSpec("P")
R = TypeVar("R")

Fault: TypeAlias = Literal["busy", "full", "unknown-absent", "unknown-present"]


class Worker(Protocol):
    """Runs functions on one connection, one at a time."""

    db: Database

    async def run(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    async def aclose(self) -> None: ...


class OpenWorker(Protocol):
    """How a store gets its connections."""

    async def __call__(self, path: Path, *, readonly: bool, vfs: str | None) -> Worker: ...


class ThreadWorker:
    """A connection with a thread of its own, through APSW's async support."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def run(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        with trio.CancelScope(shield=True):
            result: R = await self.db.async_run(function, self.db, *args, **kwargs)  # type: ignore[attr-defined]
        return result

    async def aclose(self) -> None:
        # An open connection would keep the process from ending.
        with trio.CancelScope(shield=True):
            await self.db.aclose()  # type: ignore[attr-defined]


async def open_in_thread(path: Path, *, readonly: bool, vfs: str | None) -> ThreadWorker:
    """Open a connection in a new thread."""
    # Said outright, because under an anyio portal APSW would take AnyIO's controller.
    token = apsw.async_controller.set(apsw.aio.Trio)  # type: ignore[arg-type]
    try:
        with trio.CancelScope(shield=True):
            db = await Database.as_async(path, readonly=readonly, vfs=vfs)  # type: ignore[call-arg, arg-type]
    finally:
        apsw.async_controller.reset(token)
    return ThreadWorker(db)  # type: ignore[arg-type]


class FaultyDatabase(Database):
    """A connection whose COMMITs go wrong on demand: the next fault is asked for before each."""

    def __init__(
        self, path: Path, *, readonly: bool, vfs: str | None, faults: Callable[[], Fault | None]
    ) -> None:
        self._faults: Callable[[], Fault | None] = lambda: None
        super().__init__(path, readonly=readonly, vfs=vfs)
        self._faults = faults

    def execute(self, statements: str, bindings: object = None, **options: object) -> apsw.Cursor:
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
    """A connection without a thread, for simulations that must repeat exactly."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def run(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()  # others run while a thread would work
        return function(self.db, *args, **kwargs)

    async def aclose(self) -> None:
        self.db.close()


def inline(faults: Callable[[], Fault | None] = lambda: None) -> OpenWorker:
    """Open connections without threads; `faults` is asked before each COMMIT of the writer."""

    async def open_inline(path: Path, *, readonly: bool, vfs: str | None) -> InlineWorker:
        await trio.lowlevel.checkpoint()
        if readonly:
            return InlineWorker(Database(path, readonly=True, vfs=vfs))
        return InlineWorker(FaultyDatabase(path, readonly=False, vfs=vfs, faults=faults))

    return open_inline
