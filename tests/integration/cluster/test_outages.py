"""Nodes that lose the database, one of them or all."""

from __future__ import annotations

import trio

from hermes import open_runtime
from tests.support.cluster_nodes import LEASE, cluster_of, inbound, on_cluster, with_lease
from tests.support.cutting_proxy import CuttingProxy

KEY = "key"


async def test_a_node_that_lost_the_database_begins_nothing_and_comes_back(postgres_server):
    with CuttingProxy(postgres_server.port) as proxy:
        async with on_cluster(postgres_server.url) as cluster:
            lone = await cluster.stack.enter_async_context(
                open_runtime(with_lease(proxy.url("postgres")), agent=cluster.agent("lone"))
            )
            await lone.submit(inbound(KEY, 1))
            await cluster.all_answered()
            other = await cluster.stack.enter_async_context(cluster.open("other"))
            await cluster.all_know(lone, other)
            before = cluster_of(lone).node
            proxy.refuse(True)
            await cluster.until(lambda: cluster.owner(KEY) == before)
            await other.submit(inbound(KEY, 2))
            await cluster.all_answered()
            assert cluster.history(KEY)[-1] == "other: message 2"
            with trio.move_on_after(LEASE / 4) as waiting:
                await cluster_of(lone).until_trusted()
            assert waiting.cancelled_caught
            proxy.refuse(False)
            await cluster.until(lambda: cluster_of(lone).node != before)
            await cluster_of(lone).until_trusted()
            await lone.submit(inbound(KEY, 3))
            await cluster.all_answered()
            assert cluster.history(KEY)[-1] == "other: message 3"
            assert [text for _, text in cluster.turns] == ["message 1", "message 2", "message 3"]


async def test_after_an_outage_of_the_database_every_node_is_still_the_same(postgres_server):
    async with on_cluster(postgres_server.url) as cluster:
        nodes = await cluster.start("a", "b")
        ids = [cluster_of(each).node for each in nodes]
        for number, runtime in enumerate(nodes):
            await runtime.submit(inbound(f"key {number}", number))
        await cluster.all_answered()
        await trio.to_thread.run_sync(postgres_server.stop, "immediate")
        leases = [cluster_of(each)._beat.lease for each in nodes]
        await cluster.until(lambda: not any(lease.valid for lease in leases))
        await trio.to_thread.run_sync(postgres_server.start)
        for runtime in nodes:
            await cluster_of(runtime).until_trusted()
        for number, runtime in enumerate(nodes):
            await runtime.submit(inbound(f"key {number}", 10 + number))
        await cluster.all_answered()
        await cluster.all_know(*nodes)
        assert [cluster_of(each).node for each in nodes] == ids
        assert [len(cluster.history(f"key {number}")) for number in range(2)] == [4, 4]
