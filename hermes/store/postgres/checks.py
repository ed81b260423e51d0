"""What a server must be before the store uses it."""

from __future__ import annotations

from typing import Final

from hermes.errors import StoreRefused, StoreUnavailable
from hermes.store.postgres.address import Address
from hermes.store.postgres.driver import Driver

OLDEST: Final = 15
_FACTS: Final = (
    "SELECT current_setting('server_version_num')::int / 10000, current_setting('server_encoding'),"
    " pg_is_in_recovery(), current_setting('fsync'), current_setting('synchronous_commit'),"
    " current_setting('synchronous_standby_names'), extract(epoch FROM clock_timestamp())"
)
_ACCEPT: Final = (
    "to accept that, add accept_data_loss=yes to the URL of the database, as in "
    "postgresql://HOST/DATABASE?accept_data_loss=yes"
)


def require_usable(db: Driver, address: Address, oldest: int = OLDEST) -> float:
    """Raise `StoreRefused` if this server cannot keep what it acknowledges, or is too old.

    Returns its time. Raises `StoreUnavailable` for a standby, which may become the primary.
    """
    [(version, encoding, standby, *durability, now)] = db.execute(_FACTS).fetchall()
    if version < oldest:
        raise StoreRefused(
            f"{address.label} is PostgreSQL {version}; Hermes needs version {oldest} or later"
        )
    if encoding != "UTF8":
        raise StoreRefused(
            f"{address.label} has the encoding {encoding}; create the database with UTF8"
        )
    if standby:
        raise StoreUnavailable(
            f"{address.label} is a standby and cannot be written; name the primary, or all servers"
        )
    if not address.accept_data_loss:
        _require_durable(address, *durability)
    return float(now)


def _require_durable(address: Address, fsync: str, synchronous: str, standbys: str) -> None:
    for name, value in (("fsync", fsync), ("synchronous_commit", synchronous)):
        if value == "off":
            raise StoreRefused(
                f"{address.label} has {name} = off, so that acknowledged messages can be lost; "
                f"turn it on, or, {_ACCEPT}"
            )
    if address.has_several_hosts and (not standbys or synchronous == "local"):
        raise StoreRefused(
            f"{address.label} has several servers without synchronous replication, so that a "
            "failover can lose acknowledged messages; set synchronous_standby_names and "
            f"synchronous_commit, or, {_ACCEPT}"
        )
