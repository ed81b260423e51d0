"""Sweeps on PostgreSQL, whose clock is not that of the process."""

from __future__ import annotations

from hermes.messages import Inbound
from hermes.store import open_store


async def test_sweeps_of_several_nodes_keep_the_receipts_of_today(postgres_url):
    inbound = Inbound("k", "e1", "hello")
    async with open_store(postgres_url) as store:
        first = await store.accept(inbound)
        await store.withdraw("k", first.receipt.inbox_id)
        await store.sweep_once()
    async with open_store(postgres_url) as store:
        await store.sweep_once()
        again = await store.accept(inbound)
    assert again.duplicate
    assert again.receipt == first.receipt
