"""psycopg as the store uses it: how to connect, and how values travel.

Every value is sent as text without a type. The server takes the type from the place of the
parameter, so that one SQL text is one prepared statement, whether a value is a number or NULL.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.postgres import adapters

from hermes.store.postgres.address import Address

Driver: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CONNECT_SECONDS: Final = 5
LOCK_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 60.0
STATEMENTS: Final = 1000
"""How many statements a connection keeps prepared."""
_SOCKET: Final[dict[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_SETTINGS: Final = {
    "jit": "off",  # compiling takes longer than any statement of the store
}


class _Text(Dumper):
    """Sends a text without a type. libpq would cut it at U+0000, which the server cannot store."""

    oid = 0

    def dump(self, obj: str) -> Buffer:
        return obj.replace("\0", "\ufffd").encode()


class _Number(Dumper):
    oid = 0

    def dump(self, obj: float) -> Buffer:
        return repr(obj).encode()


class _Flag(Dumper):
    """Sends True as 1: SQLite has no booleans, so there are none in the tables."""

    oid = 0

    def dump(self, obj: bool) -> Buffer:
        return b"1" if obj else b"0"


class _Bytes(Dumper):
    oid = 0

    def dump(self, obj: Buffer) -> Buffer:
        return b"\\x" + bytes(obj).hex().encode()


class _NumberLoader(Loader):
    """Loads what the server computes exactly, such as sums, as Python's own numbers."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return float(text) if b"." in text or b"N" in text or b"I" in text else int(text)


class _FlagLoader(Loader):
    """Loads a condition as SQLite returns it."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


def _adapters() -> AdaptersMap:
    found = AdaptersMap(adapters)
    found.register_dumper(str, _Text)
    found.register_dumper(int, _Number)
    found.register_dumper(float, _Number)
    found.register_dumper(bool, _Flag)
    found.register_dumper(bytes, _Bytes)
    found.register_loader("numeric", _NumberLoader)
    found.register_loader("bool", _FlagLoader)
    return found


class _Context:
    """What `connect` takes the adapters from."""

    adapters = _adapters()
    connection = None


def connect(address: Address, *, idle: float = IDLE_SECONDS) -> Driver:
    """Connect to the database. Raises psycopg's errors.

    The server ends a transaction in which the client does nothing for `idle` seconds.
    """
    given = _SOCKET | address.parameters
    if address.has_several_hosts:
        given.setdefault("target_session_attrs", "read-write")
    timeouts = {
        # A lock that a stopped node has is free after the time of its lease.
        "lock_timeout": f"{round(1000 * max(LOCK_SECONDS, 2 * address.lease))}ms",
        "idle_in_transaction_session_timeout": f"{round(1000 * idle)}ms",
    }
    settings = " ".join(f"-c {name}={value}" for name, value in (_SETTINGS | timeouts).items())
    given["options"] = f"{settings} {given.get('options', '')}".strip()
    given["client_encoding"] = "UTF8"
    given.setdefault("application_name", "hermes")
    given.setdefault("gssencmode", "disable")
    db = psycopg.Connection[tuple[Any, ...]].connect(
        autocommit=True,
        prepare_threshold=0,
        cursor_factory=psycopg.RawCursor,
        context=_Context(),
        **given,
    )
    db.prepared_max = STATEMENTS
    return db
