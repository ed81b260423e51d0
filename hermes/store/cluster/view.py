"""What an operator sees of a cluster."""

from __future__ import annotations

from typing import Final

from hermes.messages import Claim, ClusterView
from hermes.store.cluster import nodes, roles
from hermes.store.transaction import Transaction

SHOWN: Final = 1000
"""How many conversations are listed at most."""
_LATEST: Final = (
    "SELECT r.session_key, r.owner, r.fence FROM routes r JOIN nodes n ON n.id = r.owner "
    "WHERE n.dead = 0 ORDER BY r.fence DESC LIMIT ?"
)
_COUNTS: Final = "SELECT owner, count(*) FROM routes WHERE owner IS NOT NULL GROUP BY owner"


def cluster_view(tx: Transaction, shown: int = SHOWN) -> ClusterView:
    """Return the nodes, their roles and their conversations; those claimed last come first."""
    return ClusterView(
        nodes=tuple(nodes.live(tx).values()),
        roles=tuple(roles.holders(tx)),
        claims=tuple(Claim(*row) for row in tx.all(_LATEST, shown)),
        owned=dict(tx.all(_COUNTS)),
    )
