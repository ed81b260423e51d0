"""`Transaction`: what every store function gets as its first argument.

It runs SQL, and carries the time and a source of ids. SQL never asks for time or randomness, so
that a simulation can repeat exactly. Each engine has its own subclass; a store function knows this
class only, and its SQL is valid on every engine.
"""

from __future__ import annotations

import abc
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import attrs
import msgspec

from hermes.config import AttachmentLimits
from hermes.messages import Accepted, Claim, OutboxRow
from hermes.store.files.contents import FileContents

Row: TypeAlias = tuple[Any, ...]
Value: TypeAlias = int | float | str | bytes | None


ALL_ROWS = 2**63 - 1
"""A limit that is never reached: not every engine takes a negative one for all rows."""


class Clock(msgspec.Struct, frozen=True):
    """Time and randomness. `steady` must be the same clock in all processes of the machine."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    hex8: Callable[[], str] = lambda: secrets.token_hex(4)


class Host(Protocol):
    """What store functions know of the connection they run on."""

    refusal: str | None
    """Why no message can be accepted now, or None."""
    delivers: bool
    """Whether a runtime receives what is accepted here, and starts its turn at once."""
    limits: AttachmentLimits
    """What may be attached."""
    node: int
    """The node of the runtime that this connection belongs to; 0 if there are no nodes."""

    @property
    def blobs(self) -> FileContents:
        """The content of attached files."""
        ...


class Sizes(msgspec.Struct, frozen=True):
    """How much room a database takes, in bytes."""

    log: int
    """The write-ahead log."""
    database: int
    free: int
    """What a vacuum would return."""
    disk_free: int | None
    """What the file system has left; None if that is unknown."""


class SearchIndex(Protocol):
    """The index of words: messages are added after they were committed, and before a search.

    Each engine has a module of these functions.
    """

    NO_SUMMARY: str
    """SQL: whether `m.extra` does not say that a message is a summary; the value is `SUMMARY`."""

    def unindexed(self, tx: Transaction) -> bool:
        """Return whether there are messages that are not indexed yet."""
        ...

    def count_unindexed(self, tx: Transaction) -> int:
        """Return how many messages are not indexed yet."""
        ...

    def index_step(self, tx: Transaction) -> bool:
        """Index some messages. Return whether more may wait."""
        ...

    def background_step(self, tx: Transaction) -> bool:
        """Do some of the work that can wait. Return whether there may be more."""
        ...

    def background_work_left(self, tx: Transaction) -> bool:
        """Return whether there is something to do for `background_step`."""
        ...

    def index_session(self, tx: Transaction, no: int) -> None:
        """Index the new messages of a session, before its rows are changed."""
        ...

    def index_imported(self, tx: Transaction, first: int, last: int) -> None:
        """Index rows that were inserted directly into `messages`."""
        ...

    def remove_session(self, tx: Transaction, no: int) -> None:
        """Remove a session from the index, before its messages are deleted."""
        ...

    def has_all_forms(self, tx: Transaction) -> bool:
        """Return whether every indexed message is found by other forms of its words."""
        ...

    def forms_left(self, tx: Transaction) -> int:
        """Return how many messages are found by their words as they are only."""
        ...

    def forms_step(self, tx: Transaction) -> int:
        """Add the forms of words of some older messages. Return how many; 0 at the end."""
        ...

    def rebuild(self, tx: Transaction) -> int:
        """Build the index from the messages. Return how many there are."""
        ...

    def check(self, tx: Transaction) -> str | None:
        """Return a description of the problem if the index is damaged, else None."""
        ...

    def find(self, tx: Transaction, search: Search) -> list[Row]:
        """Return what `search_messages` shows of the messages that match, best first.

        A row is (message id, session id, role, created_at, source, title, compacted, subagent,
        snippet). The snippet marks matches with >>> and <<<. Raises `StoreError` if it takes longer
        than the search may.
        """
        ...


class Search(msgspec.Struct, frozen=True):
    """What `search_messages` was asked for."""

    query: str
    given: Mapping[str, Value]
    """Conditions in SQL on `messages m` and `sessions s`, with the one value of each."""
    newest_first: bool
    limit: int
    offset: int
    timeout: float


R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@attrs.define
class Transaction(abc.ABC):
    """One transaction, writing or reading.

    SQL has `?` or `?1` for each value. `boundaries`, `unindexed`, `outbox` and `accepted` note what
    the transaction wrote, for those who act on it after COMMIT.
    """

    has_arrivals: ClassVar[bool]
    """Whether new messages wait in `arrivals` until they are indexed; else they go to `messages`.

    SQLite appends to a small table much faster than to an index of all messages.
    """
    search: ClassVar[SearchIndex]
    """The functions of the search index."""

    db: Host
    now: float
    steady: float
    """A clock that setting the date does not change; all processes of the database have it."""
    hex8: Callable[[], str]
    boundaries: bool = False
    """Whether it wrote boundary rows, which hooks are waiting for."""
    unindexed: bool = False
    """Whether it wrote messages that the search index lacks."""
    outbox: list[OutboxRow] = attrs.Factory(list)
    """The replies it wrote, in order."""
    accepted: list[Accepted] = attrs.Factory(list)
    """The inbound messages it stored, in order."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish every statement, before COMMIT or ROLLBACK."""

    @abc.abstractmethod
    def one(self, sql: str, *values: Value) -> Row | None:
        """Execute, and return the first row or None."""

    @abc.abstractmethod
    def all(self, sql: str, *values: Value) -> list[Row]:
        """Execute, and return all rows."""

    @abc.abstractmethod
    def run(self, sql: str, *values: Value) -> int:
        """Execute, and return the number of changed rows."""

    @abc.abstractmethod
    def run_each(self, sql: str, rows: Sequence[tuple[Value, ...]]) -> None:
        """Execute once for each row of values."""

    @abc.abstractmethod
    def insert(self, sql: str, *values: Value) -> int:
        """Insert one row, and return its new id: its `id`, in `sessions` its `no`.

        There is no RETURNING in the statement. On SQLite it would take twice as long.
        """

    @abc.abstractmethod
    def optional(self, sql: str, *values: Value) -> list[Row]:
        """Execute a minor statement on `leases`, a table that other programs may change.

        Return its rows; none if the table does not have this shape. The transaction can go on.
        """

    @abc.abstractmethod
    def has_leases(self) -> bool:
        """Return whether `leases` is a table, and not missing or a view."""

    # Locks: on SQLite a writing transaction is alone, and they do nothing. They last until the end
    # of the transaction. To prevent deadlocks, a transaction locks keys first, then sessions.

    @abc.abstractmethod
    def lock_key(self, session_key: str) -> None:
        """Lock a session_key, with or without a route: wait for other transactions that have it."""

    @abc.abstractmethod
    def lock_keys(self, session_keys: Iterable[str]) -> None:
        """Lock several keys at once, in their order."""

    @abc.abstractmethod
    def lock_session(self, session_id: str) -> None:
        """Lock the row of a session, if there is one, before it is read to be changed."""

    def serve(self, session_key: str) -> Claim | None:
        """Return who serves a conversation, whose key is locked; place it on a node if none does.

        Returns None in a database that one runtime has for itself, and if no node is known.
        """
        del session_key
        return None

    def in_order(self, batch: Sequence[Work[R]]) -> Iterable[Work[R]]:
        """Return the requests of a group commit as they shall run, one after the other.

        An engine may do several at once when they are asked for, and return their results.
        """
        return batch

    # Maintenance

    @abc.abstractmethod
    def sizes(self) -> Sizes:
        """Return how much room the database takes."""

    @abc.abstractmethod
    def damaged_pages(self) -> list[str]:
        """Return the problems of the file's structure; empty if there are none."""

    @abc.abstractmethod
    def broken_references(self) -> list[str]:
        """Return the rows that refer to rows that do not exist."""

    def new_session_id(self) -> str:
        """Return a new id: `YYYYmmdd_HHMMSS_` in UTC and eight hexadecimal digits."""
        return time.strftime("%Y%m%d_%H%M%S_", time.gmtime(self.now)) + self.hex8()


class Work(Protocol[R_co]):
    """A store function with its arguments bound, ready to run in a transaction."""

    def __call__(self, tx: Transaction, /) -> R_co: ...


Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


@attrs.frozen
class KeyedWork(Generic[R]):
    """Work whose session_key is known before it runs, for an engine that locks it first."""

    work: Work[R]
    session_key: str
    call: Call | None = None
    """The store function and its arguments."""

    def __call__(self, tx: Transaction, /) -> R:
        return self.work(tx)


def keys_of(batch: Iterable[Work[object]]) -> list[str]:
    """Return the session_keys of the `KeyedWork` of a batch, sorted. One may contain another."""
    keys: set[str] = set()
    for work in batch:
        inner = work
        while isinstance(inner, KeyedWork):
            keys.add(inner.session_key)
            inner = inner.work
    return sorted(keys)
