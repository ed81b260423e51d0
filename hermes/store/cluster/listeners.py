"""Which nodes have listeners for which conversations.

Nodes tell each other by hints. What is stored here is for those that have missed one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from hermes.messages import Claim
from hermes.store.transaction import Transaction

_OWNERS: Final = (
    "SELECT r.session_key, r.owner, r.fence FROM routes r JOIN nodes n ON n.id = r.owner "
    "WHERE n.dead = 0 AND r.session_key IN (SELECT json_array_elements_text(CAST(? AS json)))"
)
_FORGET: Final = (
    "DELETE FROM listeners WHERE node = ? "
    "AND session_key NOT IN (SELECT json_array_elements_text(CAST(? AS json)))"
)
_STORE: Final = (
    "INSERT INTO listeners (node, session_key) "
    "SELECT CAST(? AS bigint), k FROM json_array_elements_text(CAST(? AS json)) k "
    "ON CONFLICT (session_key, node) DO NOTHING"
)
_OTHERS: Final = (
    "SELECT l.node, l.session_key FROM listeners l JOIN nodes n ON n.id = l.node "
    "WHERE n.dead = 0 AND l.node <> ?"
)


def owners_of(tx: Transaction, session_keys: Sequence[str]) -> dict[str, Claim]:
    """Return which living nodes serve these conversations, without those that none serves."""
    return {row[0]: Claim(*row) for row in tx.all(_OWNERS, _json(session_keys))}


def set_listened(tx: Transaction, node: int, session_keys: Collection[str]) -> None:
    """Store for which conversations a node has listeners, instead of those before."""
    keys = _json(session_keys)
    tx.run(_FORGET, node, keys)
    tx.run(_STORE, node, keys)


def listened(tx: Transaction, node: int) -> list[tuple[int, str]]:
    """Return the conversations for which other living nodes have listeners, with the nodes."""
    return [(row[0], row[1]) for row in tx.all(_OTHERS, node)]


def _json(texts: Collection[str]) -> str:
    return msgspec.json.encode([*texts]).decode()
