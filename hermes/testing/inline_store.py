"""A store without threads, for tests and simulations that must repeat exactly.

    async with open_store(path, open_worker=inline()) as store: ...

It works with Trio's `MockClock`, and COMMIT can be made to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import apsw
import trio

from hermes.store.engine import Connection, OpenWorker, Then, Worker
from hermes.store.sqlite.connection import Database

R = TypeVar("R")

CommitFault: TypeAlias = Literal["busy", "full", "unknown-absent", "unknown-present"]
"""How a COMMIT fails. After an `unknown` one, the data is or is not on disk."""


Faults: TypeAlias = Callable[[], CommitFault | None]
"""Returns whether and how the next COMMIT shall fail."""


def _with_faults(db: Connection, faults: Faults) -> None:
    """Make a connection ask before each COMMIT."""
    if not isinstance(db, Database):
        db.close()
        raise TypeError("errors of COMMIT can be injected with SQLite only")
    execute = db.execute

    def execute_or_fail(statements: str, *bindings: Any, **options: Any) -> apsw.Cursor:
        match faults() if statements == "COMMIT" else None:
            case None:
                return execute(statements, *bindings, **options)
            case "busy":
                raise apsw.BusyError("injected")
            case "full":
                execute("ROLLBACK")
                raise apsw.FullError("injected")
            case "unknown-absent":
                execute("ROLLBACK")
                raise apsw.IOError("injected before the commit")
            case "unknown-present":
                execute("COMMIT")
                raise apsw.IOError("injected after the commit")

    db.execute = execute_or_fail  # type: ignore[method-assign]


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


def inline(faults: Faults | None = None) -> OpenWorker:
    """Return an `open_worker` for `open_store` that opens connections without threads.

    `faults` is called before each COMMIT of the writing connection; for SQLite only.
    """

    async def open_inline(connect: Callable[[], Connection], *, readonly: bool) -> Worker:
        await trio.lowlevel.checkpoint()
        db = connect()
        if faults is not None and not readonly:
            _with_faults(db, faults)
        return InlineWorker(db)

    return open_inline
