"""Costs so far, including provider calls of turns that are still running."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hermes.messages import CostTotals, Source, Usage
from hermes.protocols import Store
from hermes.session_keys import payer_of


class InFlightUsage:
    """Provider calls of running turns, which the ledger contains only after the commit."""

    def __init__(self) -> None:
        self._charged: dict[int, tuple[Source, Sequence[Usage]]] = {}

    def begin(self, turn_id: int, source: Source, charged: Sequence[Usage]) -> None:
        """Register a turn; `charged` is its own list, which grows."""
        self._charged[turn_id] = source, charged

    def end(self, turn_id: int) -> None:
        """Remove a turn: it is in the ledger, or never will be."""
        self._charged.pop(turn_id, None)

    def add_to(self, totals: CostTotals, turn_id: int | None = None) -> CostTotals:
        """Return the totals with the running turns added; `turn_id` is the asking turn."""
        costs = {
            name: (payer_of(source.platform, source.user_id), sum(u.cost or 0.0 for u in charged))
            for name, (source, charged) in self._charged.items()
        }
        own = costs[turn_id][1] if turn_id in costs else 0.0
        return CostTotals(
            totals.session + own,
            totals.principal + sum(cost for payer, cost in costs.values() if payer == totals.payer),
            totals.day + sum(cost for _, cost in costs.values()),
            totals.payer,
        )


async def session_costs(store: Store, session_id: str) -> CostTotals:
    """Return the costs of a session's conversation, and of its payer and everybody today."""
    session = await store.get_session(session_id)
    if session is None:
        return CostTotals()
    totals = await store.spent(session_id, session.source, session.user_id)
    return replace(totals, payer=payer_of(session.source, session.user_id))


def with_calls(totals: CostTotals, calls: Sequence[Usage]) -> CostTotals:
    """Return the totals with more calls of the same payer."""
    more = sum(call.cost or 0.0 for call in calls)
    return CostTotals(
        totals.session + more, totals.principal + more, totals.day + more, totals.payer
    )


def in_background(calls: Sequence[Usage]) -> Sequence[Usage]:
    """Return the calls of a turn in the background, with that purpose."""
    return [replace(use, purpose="background") if use.purpose == "turn" else use for use in calls]
