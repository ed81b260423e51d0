"""Budgets on several nodes: the costs of turns that run elsewhere."""

from __future__ import annotations

from hermes.actors.budget import InFlightUsage
from hermes.messages import CostTotals, Source, Usage
from hermes.session_keys import payer_of
from hermes.store import open_store
from tests.support.cluster_nodes import until, with_lease

ANN, BOB = Source("p", user_id="ann"), Source("p", user_id="bob")


def calls(cost):
    return [Usage("turn", "model", cost=cost)]


async def test_the_running_turns_of_other_nodes_count_after_a_heartbeat(postgres_url):
    url = with_lease(postgres_url)
    async with open_store(url) as one, open_store(url) as two:
        here, there = InFlightUsage(one.cluster), InFlightUsage(two.cluster)
        charged = calls(1.0)
        there.begin(7, ANN, charged)
        there.begin(8, BOB, calls(4.0))
        here.begin(7, ANN, calls(0.5))
        totals = CostTotals(10.0, 20.0, 30.0, payer_of("p", "ann"))
        expected = CostTotals(10.5, 21.5, 35.5, totals.payer)
        await until(lambda: here.add_to(totals, 7) == expected)
        charged += calls(2.0)
        await until(lambda: here.add_to(totals).day == 37.5)
        there.end(7)
        there.end(8)
        await until(lambda: here.add_to(totals).day == 30.5)
