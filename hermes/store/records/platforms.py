"""The platforms that have an adapter, on any node, or had one: their replies wait for one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hermes.store.records import key_value
from hermes.store.transaction import Transaction

SERVED = "outbox:platforms"


def served_platforms(tx: Transaction) -> list[str]:
    """Return the platforms that have an adapter, or had one."""
    stored = key_value.get_meta(tx, SERVED)
    return [] if stored is None else msgspec.json.decode(stored, type=list[str])


def serve_platforms(tx: Transaction, platforms: Sequence[str]) -> list[str]:
    """Record that these platforms have an adapter, and return all that have one or had one."""
    tx.lock_key(SERVED)
    earlier = served_platforms(tx)
    served = sorted({*earlier, *platforms})
    if served != earlier:
        key_value.set_meta(tx, SERVED, msgspec.json.encode(served).decode())
    return served
