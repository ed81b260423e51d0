"""The seam between the store and its engine: what SQLite and PostgreSQL do differently.

Both run the same verbs, which are functions of a `Transaction`. An engine opens connections; each
of them begins, commits and classifies errors in its own way. `SessionStore`, the store actor and
group commit use these protocols only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import attrs

from hermes.protocols.cluster import Cluster
from hermes.store.transaction import Clock, Host, Transaction, Work

R = TypeVar("R")

Then: TypeAlias = Callable[[R], None]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of pages that are done, and of all pages."""


class Connection(Host, Protocol):
    """One connection, which is used by one thread at a time.

    `commit_group` calls `begin`, runs requests, then calls `check` and `commit`, and after any
    error `roll_back` and `recover`.
    """

    driver_errors: tuple[type[Exception], ...]
    """What the driver raises. After such an error the transaction must be rolled back."""

    # Writing

    def begin(self, clock: Clock, batch: Sequence[Work[object]]) -> Transaction:
        """Begin a transaction in which this batch will run.

        Raises `StoreBusy` if the database cannot be written now: then nothing is tried again. An
        engine with several writers locks the session_keys of the batch (`Work` with `keys`) here,
        in their order.
        """
        ...

    @property
    def check(self) -> Callable[[], None]:
        """Raises `StoreFailed` if the transaction must not be committed: its file is gone."""
        ...

    def commit(self) -> None:
        """Commit the transaction.

        Raises an error of the driver if it was certainly not committed. If that is unknown, settle
        it here, or raise `StoreFailed`.
        """
        ...

    def roll_back(self) -> None:
        """Roll back the transaction, if there is one."""
        ...

    def recover(self, error: Exception, tries: int, *, alone: bool) -> bool:
        """Make the connection ready after an error of the driver, and a rollback.

        Returns whether the same batch shall run again, which has failed `tries` times (1 or more).
        If not, each half of the batch is tried, unless it has one request only (`alone`). This may
        wait and connect again.
        """
        ...

    def total_changes(self) -> int:
        """Return a number that grows with each changed row."""
        ...

    def flushes(self, value: bool) -> None:
        """Set whether a commit waits until its data is on the disk; outside of transactions."""
        ...

    # Reading

    def run_read(self, clock: Clock, work: Work[R]) -> R:
        """Run work that only reads, in one read transaction. Raises errors of the store only."""
        ...

    def times(self, clock: Clock) -> tuple[float, float]:
        """Return the wall time and the steady time that a transaction would have now."""
        ...

    # Errors

    def translate(self, error: Exception, undone: str = "nothing was stored") -> Exception:
        """Return an error of the driver as one of the store's, and any other error as it is.

        `StoreFailed` ends the store: the database is damaged, or not the one that was opened.
        """
        ...

    def is_search_damage(self, error: BaseException | None) -> bool:
        """Return whether an error says that the search index is damaged, which can be rebuilt."""
        ...

    # Maintenance

    log_pages: int
    """The number of pages in the write-ahead log after the last commit; 0 without one."""

    @property
    def log_limit(self) -> int:
        """The bytes in the write-ahead log at which messages are refused; 0 without a limit."""
        ...

    @property
    def checkpoint_due(self) -> bool:
        """Whether `checkpoint` shall be called now, after a commit."""
        ...

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database. Errors are logged: nothing is lost."""
        ...

    def vacuum(self) -> None:
        """Return free space to the file system. Raises `StoreRefused` with what to do instead."""
        ...

    def backup_to(self, target: Path, progress: Progress | None = None) -> Path:
        """Copy the database; return the path. Raises `StoreRefused` with what to do instead."""
        ...

    def close(self) -> None:
        """Close the connection. Errors are logged: they cannot affect committed data."""
        ...


class Worker(Protocol):
    """Runs functions on one connection, one at a time."""

    db: Connection

    async def run(self, function: Callable[[Connection], R], then: Then[R] | None = None) -> R:
        """Run the function with the connection, and return its result.

        `then` is called with the result before the caller is resumed.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class OpenWorker(Protocol):
    """Opens a connection by calling `connect`, and returns its worker."""

    async def __call__(self, connect: Callable[[], Connection], *, readonly: bool) -> Worker: ...


class ClusterStore(Protocol):
    """What a cluster needs of the store.

    What locks several conversations, or a role, is a transaction for itself: in a batch it would
    wait for one while others wait for those of the batch.
    """

    async def transact(self, work: Work[R], /) -> R: ...
    async def transact_alone(self, work: Work[R], /) -> R: ...
    async def snapshot(self, work: Work[R], /) -> R: ...
    async def waiting_keys(self, after: int = 0, limit: int = 1000) -> list[tuple[str, int]]: ...


@attrs.frozen
class Connections:
    """The connections of one store.

    Reads that may take long use `browser`, and searches `searcher`, so that they delay no others.
    """

    writer: Worker
    reader: Worker
    browser: Worker
    searcher: Worker
    check: Callable[[], None]
    """Raises `StoreFailed` if the database was removed or replaced; called at each sweep."""
    join: Callable[[ClusterStore], AbstractAsyncContextManager[Cluster]]
    """Become one of the processes that use the database, for the time of the block."""


class Engine(Protocol):
    """A database that can be opened: a file for SQLite, or a URL of PostgreSQL."""

    label: str
    """What users see: the path, or the host and the name of the database; never a password."""
    path: Path | None
    """The file, if it is one."""
    threads: bool
    """Whether connections have threads; False if they run inline, for tests."""

    def connect(self, clock: Clock) -> AbstractContextManager[Connection]:
        """Open one connection, for `SessionStore`; create or migrate the database if needed.

        Raises `StoreRefused` if the database cannot be used as a store.
        """
        ...

    def open(self, clock: Clock) -> AbstractAsyncContextManager[Connections]:
        """Open the connections of a runtime; create or migrate the database if needed.

        Raises `StoreInUse` if another runtime owns the database, and `StoreRefused` if it cannot be
        used as a store. A lost connection is opened again by its engine.
        """
        ...
