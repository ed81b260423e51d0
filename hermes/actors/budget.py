"""What a conversation has cost so far, for those who may spend no more."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hermes.messages import CostTotals, Source, Usage
from hermes.protocols import Store
from hermes.session_keys import payer_of


class InFlightUsage:
    """What running turns were charged with, which the ledger does not know before they end."""

    def __init__(self) -> None:
        self._charged: dict[int, tuple[str, Sequence[Usage]]] = {}

    def begin(self, turn_id: int, source: Source, charged: Sequence[Usage]) -> None:
        """A turn begins; `charged` is its own list, which grows."""
        self._charged[turn_id] = payer_of(source.platform, source.user_id), charged

    def end(self, turn_id: int) -> None:
        """The turn is in the ledger, or will never be."""
        self._charged.pop(turn_id, None)

    def added(self, spent: CostTotals, turn_id: int | None = None) -> CostTotals:
        """What was spent, with what is not booked yet; `turn_id` is the asking turn's own."""
        costs = {
            name: (payer, sum(usage.cost or 0.0 for usage in charged))
            for name, (payer, charged) in self._charged.items()
        }
        own = costs[turn_id][1] if turn_id in costs else 0.0
        return CostTotals(
            spent.session + own,
            spent.principal + sum(cost for payer, cost in costs.values() if payer == spent.payer),
            spent.day + sum(cost for _, cost in costs.values()),
            spent.payer,
        )


async def spent_by(store: Store, session_id: str) -> CostTotals:
    """The cost of a session's conversation, and of the day of the one it belongs to."""
    session = await store.get_session(session_id)
    if session is None:
        return CostTotals()
    spent = await store.spent(session_id, session.source, session.user_id)
    return replace(spent, payer=payer_of(session.source, session.user_id))


def with_calls(spent: CostTotals, calls: Sequence[Usage]) -> CostTotals:
    """What was spent, and these calls by the same payer."""
    more = sum(call.cost or 0.0 for call in calls)
    return CostTotals(spent.session + more, spent.principal + more, spent.day + more, spent.payer)
