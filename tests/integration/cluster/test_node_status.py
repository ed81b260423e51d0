"""`hermes status` shows the nodes of a database, wherever they run."""

from __future__ import annotations

import json
import re

import trio

from hermes.run.status import report
from tests.support.cluster_nodes import inbound, on_cluster, with_lease


async def examined(url, form="text"):
    return await trio.to_thread.run_sync(report, url, form)


async def test_the_status_shows_each_node_with_its_lease_its_conversations_and_roles(postgres_url):
    url = with_lease(postgres_url)
    async with on_cluster(postgres_url) as cluster:
        one, two = await cluster.start("one", "two")
        for number in range(10):
            await one.submit(inbound(f"k{number}", number))
        await cluster.all_answered()
        text, code = await examined(url)
        assert code == 0
        assert re.search(
            r"^Hermes is running on postgresql://\S+, but not on this machine\.$", text, re.M
        )
        lines = re.findall(
            r"^node +(\d+) \(.+\): (\d+) conversations?, lease [^;]+(?:; roles: (.+))?$", text, re.M
        )
        assert len(lines) == 2
        assert sum(int(count) for _, count, _ in lines) == 10
        roles = [role for _, _, found in lines for role in found.split(", ") if role]
        assert sorted(roles) == ["hooks", "index", "sweep"]
        found, _ = await examined(url, "json")
        nodes = {each["node"]: each for each in json.loads(found)["nodes"]}
        mine = [one._context.store.cluster.node, two._context.store.cluster.node]
        assert sorted(nodes) == sorted(mine)
        assert not any(each["draining"] for each in nodes.values())
        cluster.gates["two"] = gate = trio.Event()
        key = next(f"k{n}" for n in range(10) if cluster.owner(f"k{n}") == mine[1])
        await one.submit(inbound(key, 100))
        await cluster.until(lambda: ("two", "message 100") in cluster.turns)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.drain)
            await cluster.until(lambda: cluster.owner(key) == mine[1])
            with trio.fail_after(30):
                while "handing over" not in text:
                    text, _ = await examined(url)
            gate.set()
    text, code = await examined(url)
    assert code == 1
    assert text.startswith("Hermes is not running on postgresql://")
    assert "node " not in text
