"""Costs so far, including provider calls of turns that are still running."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hermes.messages import CostTotals, Source, Usage
from hermes.protocols import Store
from hermes.protocols.cluster import Membership
from hermes.session_keys import payer_of

COSTS = "costs"
"""What nodes tell each other: the costs of their running turns, by payer."""


class InFlightUsage:
    """Provider calls of running turns, which the ledger contains only after the commit.

    Those of other nodes are known from their last heartbeat. So a budget can be exceeded by what
    they spend between two heartbeats.
    """

    def __init__(self, cluster: Membership) -> None:
        self._charged: dict[int, tuple[Source, Sequence[Usage]]] = {}
        self._cluster = cluster
        cluster.tell(COSTS, self.costs)

    def begin(self, turn_id: int, source: Source, charged: Sequence[Usage]) -> None:
        """Register a turn; `charged` is its own list, which grows."""
        self._charged[turn_id] = source, charged

    def end(self, turn_id: int) -> None:
        """Remove a turn: it is in the ledger, or never will be."""
        self._charged.pop(turn_id, None)

    def costs(self) -> dict[str, float]:
        """Return the costs of the turns that run here, by payer. Any thread may call this."""
        costs: dict[str, float] = {}
        for source, charged in list(self._charged.values()):
            payer = payer_of(source.platform, source.user_id)
            costs[payer] = costs.get(payer, 0.0) + _cost(charged)
        return costs

    def add_to(self, totals: CostTotals, turn_id: int | None = None) -> CostTotals:
        """Return the totals with the running turns added; `turn_id` is the asking turn."""
        own = self._charged.get(turn_id) if turn_id is not None else None
        others = [
            info.facts.get(COSTS, {})
            for node, info in self._cluster.nodes.items()
            if node != self._cluster.node
        ]
        costs = [self.costs(), *others]
        return CostTotals(
            totals.session + (0.0 if own is None else _cost(own[1])),
            totals.principal + sum(each.get(totals.payer, 0.0) for each in costs),
            totals.day + sum(sum(each.values()) for each in costs),
            totals.payer,
        )


def _cost(calls: Sequence[Usage]) -> float:
    return sum(call.cost or 0.0 for call in calls)


async def session_costs(store: Store, session_id: str) -> CostTotals:
    """Return the costs of a session's conversation, and of its payer and everybody today."""
    session = await store.get_session(session_id)
    if session is None:
        return CostTotals()
    totals = await store.spent(session_id, session.source, session.user_id)
    return replace(totals, payer=payer_of(session.source, session.user_id))


def with_calls(totals: CostTotals, calls: Sequence[Usage]) -> CostTotals:
    """Return the totals with more calls of the same payer."""
    more = _cost(calls)
    return CostTotals(
        totals.session + more, totals.principal + more, totals.day + more, totals.payer
    )


def in_background(calls: Sequence[Usage]) -> Sequence[Usage]:
    """Return the calls of a turn in the background, with that purpose."""
    return [replace(use, purpose="background") if use.purpose == "turn" else use for use in calls]
