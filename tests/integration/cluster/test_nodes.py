"""Several runtimes on one PostgreSQL database, in one process."""

from __future__ import annotations

import trio

from hermes.messages import RUNTIME_HOLDER
from hermes.store.cluster import nodes
from tests.support.cluster_nodes import claim, cluster_of, inbound, on_cluster

KEYS = [f"key {number}" for number in range(6)]


async def test_a_message_that_any_node_accepts_is_answered_once(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        nodes = await cluster.start("a", "b", "c")
        expected = {key: [] for key in KEYS}
        for number in range(30):
            key = KEYS[number % len(KEYS)]
            await nodes[number % 7 % 3].submit(inbound(key, number))
            expected[key].append(f"message {number}")
        await cluster.all_answered()
        for key, texts in expected.items():
            assert cluster.history(key, "user") == texts
            answers = [text.partition(":")[0] for text in cluster.history(key, "assistant")]
            assert len(set(answers)) == 1  # one node has served it
        assert len(cluster.turns) == len({text for _, text in cluster.turns})
        assert len({name for name, _ in cluster.turns}) > 1


async def test_a_node_that_joins_late_gets_conversations(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        [first] = await cluster.start("a")
        for number, key in enumerate(KEYS):
            await first.submit(inbound(key, number))
        await cluster.all_answered()
        late = await cluster.stack.enter_async_context(cluster.open("b"))
        await cluster.all_know(first, late)
        number = len(KEYS)
        with trio.fail_after(30):
            while cluster_of(late).node not in [cluster.owner(key) for key in KEYS]:
                await first.submit(inbound(KEYS[number % len(KEYS)], number))
                await cluster.all_answered()
                number += 1
                await trio.sleep(0.05)
        assert [len(cluster.history(key)) % 2 for key in KEYS] == [0] * len(KEYS)


async def test_a_drain_hands_conversations_over_without_waiting_for_a_lease(postgres_url):
    finalized = []
    hooks = {"on_session_finalize": [finalized.append]}
    async with on_cluster(postgres_url) as cluster:
        [stays] = await cluster.start("stays", hooks=hooks)
        async with cluster.open("goes", hooks=hooks) as goes:
            await cluster.all_know(stays, goes)
            for number, key in enumerate(KEYS):
                await goes.submit(inbound(key, number))
            await cluster.all_answered()
            leaving = cluster_of(goes).node
            mine = [key for key in KEYS if cluster.owner(key) == leaving]
            assert mine
        assert all(cluster.owner(key) != leaving for key in mine)
        for number, key in enumerate(KEYS):
            await stays.submit(inbound(key, 100 + number))
        await cluster.all_answered(0.9)  # less than a lease
        assert finalized == []
        assert all(len(cluster.history(key)) == 4 for key in KEYS)


async def test_a_turn_of_a_node_that_drains_ends_before_another_node_goes_on(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        [stays] = await cluster.start("stays")
        async with cluster.open("goes") as goes:
            await cluster.all_know(stays, goes)
            key = KEYS[0]
            await claim(cluster_of(goes), key)
            gate = cluster.gates["goes"] = trio.Event()
            await goes.submit(inbound(key, 1))
            await cluster.until(lambda: cluster.turns)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(goes.drain)
                await cluster.until(lambda: cluster_of(stays).nodes[cluster_of(goes).node].draining)
                await stays.submit(inbound(key, 2))
                gate.set()
        await cluster.all_answered()
        goes_first = ["message 1", "goes: message 1", "message 2", "stays: message 2"]
        assert cluster.history(key) == goes_first


async def test_what_is_idle_on_a_node_that_drains_is_answered_elsewhere_at_once(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        [stays] = await cluster.start("stays")
        async with cluster.open("goes") as goes:
            await cluster.all_know(stays, goes)
            busy, idle, quiet = KEYS[:3]
            for key in KEYS[:3]:
                await claim(cluster_of(goes), key)
            await goes.submit(inbound(idle, 1))
            await cluster.all_answered()
            gate = cluster.gates["goes"] = trio.Event()
            await goes.submit(inbound(busy, 2))
            await cluster.until(lambda: ("goes", "message 2") in cluster.turns)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(goes.drain)
                await cluster.until(lambda: cluster_of(stays).nodes[cluster_of(goes).node].draining)
                for number, key in enumerate([idle, quiet], 3):
                    await stays.submit(inbound(key, number))
                await cluster.until(lambda: cluster.unanswered() == 1)  # the turn still runs
                assert cluster.history(idle)[-1] == "stays: message 3"
                assert cluster.history(quiet)[-1] == "stays: message 4"
                gate.set()
        assert cluster.history(busy)[-1] == "goes: message 2"


async def test_a_cached_agent_is_closed_once_when_its_conversation_is_handed_over(postgres_url):
    closed = []

    class Agent:
        def __init__(self, name):
            self.name = name

        async def run(self, turn):
            return f"{self.name}: {turn.text}"

        async def aclose(self):
            closed.append(self.name)

    async with on_cluster(postgres_url) as cluster:
        [stays] = await cluster.start("stays", agent=None, build_agent=lambda _: Agent("stays"))
        async with cluster.open("goes", agent=None, build_agent=lambda _: Agent("goes")) as goes:
            await cluster.all_know(stays, goes)
            await claim(cluster_of(goes), KEYS[0])
            await goes.submit(inbound(KEYS[0], 1))
            await cluster.all_answered()
            assert closed == []
        assert closed == ["goes"]
        await stays.submit(inbound(KEYS[0], 2))
        await cluster.all_answered()
        assert cluster.history(KEYS[0])[-1] == "stays: message 2"
        assert closed == ["goes"]


async def test_a_node_that_joins_leaves_the_leases_of_living_nodes_alone(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        [first] = await cluster.start("first")
        store, node = first._context.store, cluster_of(first).node
        await first.submit(inbound(KEYS[0], 1))
        await cluster.all_answered()
        holder = f"{RUNTIME_HOLDER}{node}:compression"
        assert await store.acquire_lease("session", holder) is not None
        async with cluster.open("second") as second:
            await cluster.all_know(first, second)
            assert await store.get_compression_lock_holder("session") == holder
        await store.transact(lambda tx: nodes.leave(tx, node))
        async with cluster.open("third"):
            assert await store.get_compression_lock_holder("session") is None
