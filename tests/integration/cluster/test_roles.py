"""What must exist once: replies, receivers, hooks and sweeps on several nodes."""

from __future__ import annotations

import uuid

import psycopg
import pytest
import trio

from hermes import Source
from hermes.errors import NotOwner
from hermes.messages import ExpiryPolicy, Inbound
from hermes.protocols.cluster import INDEX, SWEEP
from hermes.store import open_store
from hermes.store.cluster import nodes as node_rows
from hermes.store.conversations.routes import overdue
from hermes.store.conversations.search import unindexed
from hermes.testing import MemoryAdapter, RecordingHook
from tests.support.cluster_nodes import SECONDS, cluster_of, on_cluster, until, with_lease
from tests.support.outbox import GatedAdapter
from tests.support.postgres_databases import plain

ROLE = "platform:memory"
INSERT = (
    "INSERT INTO outbox (session_key, turn_id, lane, body, created_at) VALUES "
    '(%s, 1, \'memory//c/\', \'{"platform": "memory", "text": "hi"}\', 0) RETURNING id'
)


def said(key, number):
    """A message in the chat of this key."""
    source = Source("memory", chat_id=key, user_id="u")
    return Inbound(key, f"event {number}", f"message {number}", source=source)


def all_sent(cluster):
    """Whether no reply is to be sent, from the database."""
    return not cluster.sql("SELECT 1 FROM outbox WHERE state <> 'sent'")


def texts_to(adapter, key):
    """The texts that were sent to the chat of this key, in order."""
    return [str(row.body["text"]) for row in adapter.sent if row.session_key == key]


async def test_each_reply_is_sent_once_and_in_order_by_one_node(postgres_url):
    keys = [f"key {number}" for number in range(6)]
    async with on_cluster(postgres_url) as cluster:
        adapters = {name: MemoryAdapter() for name in "ab"}
        opened = [cluster.open(name, adapters=[adapters[name]]) for name in "ab"]
        nodes = [await cluster.stack.enter_async_context(each) for each in opened]
        # One without the adapter: its replies are sent too.
        nodes.append(await cluster.stack.enter_async_context(cluster.open("c")))
        await cluster.all_know(*nodes)
        for number in range(30):
            await nodes[number % 7 % 3].submit(said(keys[number % 6], number))
            if number % 6 == 5:  # else several messages are answered by one reply
                await cluster.all_answered()
        await cluster.until(lambda: all_sent(cluster))
        sending = next(a for a in adapters.values() if a.sent)
        assert [len(a.sent) for a in adapters.values()].count(0) == 1, "one node sends"
        for key in keys:
            texts = [text.partition(": ")[2] for text in texts_to(sending, key)]
            assert texts == [f"message {number}" for number in range(30) if keys[number % 6] == key]
        assert not any(row.recovered for row in sending.sent)
        answered = {str(row.body["text"]).partition(":")[0] for row in sending.sent}
        assert len(answered) > 1, "turns ran on several nodes"


async def test_what_a_living_node_sends_is_not_recovered_by_one_that_starts(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        holder_adapter, other = GatedAdapter(), MemoryAdapter()
        [first] = await cluster.start("first", adapters=[holder_adapter])
        await first.submit(said("key", 1))
        await holder_adapter.sending.wait()
        second = await cluster.stack.enter_async_context(cluster.open("second", adapters=[other]))
        await cluster.all_know(first, second)
        assert cluster.sql("SELECT state, recovered FROM outbox") == [("sending", 0)]
        holder_adapter.gate.set()
        await cluster.until(lambda: all_sent(cluster))
        assert [row.recovered for row in holder_adapter.sent] == [False]
        assert other.sent == []


async def test_a_drain_finishes_what_is_in_flight_before_another_node_sends(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        leaving, staying = GatedAdapter(), MemoryAdapter()
        goes = await cluster.stack.enter_async_context(cluster.open("goes", adapters=[leaving]))
        await cluster.until(lambda: cluster_of(goes).holds(ROLE))
        stays = await cluster.stack.enter_async_context(cluster.open("stays", adapters=[staying]))
        await cluster.all_know(goes, stays)
        await goes.submit(said("key", 1))
        await leaving.sending.wait()
        await goes.submit(said("key", 2))
        await cluster.all_answered()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(goes.drain)
            await cluster.until(lambda: goes._supervisor.draining)
            assert cluster_of(goes).holds(ROLE)
            leaving.gate.set()
            await cluster.until(lambda: cluster_of(stays).holds(ROLE))
        await cluster.until(lambda: all_sent(cluster))
        assert (len(leaving.sent), len(staying.sent)) == (1, 1)
        assert not any(row.recovered for row in [*leaving.sent, *staying.sent])


async def test_a_node_that_has_lost_its_role_marks_nothing(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        old_adapter, adapter = GatedAdapter(), GatedAdapter()
        [first] = await cluster.start("first", adapters=[old_adapter])
        await cluster.until(lambda: cluster_of(first).holds(ROLE))
        late = first._context.store.acting(ROLE)
        await first.submit(said("key", 1))
        await old_adapter.sending.wait()
        second = await cluster.stack.enter_async_context(cluster.open("second", adapters=[adapter]))
        cluster.sql("UPDATE nodes SET dead = 1 WHERE id = %s", cluster_of(first).node)
        await adapter.sending.wait()
        assert cluster_of(second).holds(ROLE)
        before = cluster.sql("SELECT * FROM outbox")
        for mark in (late.mark_sending, late.mark_unsent, late.mark_unknown):
            with pytest.raises(NotOwner):
                await mark([1])
        with pytest.raises(NotOwner):
            await late.recover_outbox()
        assert cluster.sql("SELECT * FROM outbox") == before
        adapter.gate.set()
        await cluster.until(lambda: all_sent(cluster))
        assert (len(old_adapter.sent), len(adapter.sent)) == (0, 1)
        assert adapter.sent[0].recovered


async def test_replies_of_a_platform_that_another_node_has_are_not_those_of_the_host(postgres_url):
    """Also if that node started later."""
    async with on_cluster(postgres_url) as cluster:
        [host] = await cluster.start("host")
        adapter = MemoryAdapter()
        other = await cluster.stack.enter_async_context(cluster.open("other", adapters=[adapter]))
        await cluster.until(lambda: cluster_of(other).holds(ROLE))
        numbers = range(10)
        for number in numbers:
            await host.submit(said(f"key {number}", number))
        await cluster.until(lambda: len(adapter.sent) == len(numbers))
        assert {name for name, _ in cluster.turns} >= {"host"}


async def test_replies_of_a_platform_whose_node_has_ended_wait_for_another_one(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        [host] = await cluster.start("host")
        async with cluster.open("ends", adapters=[MemoryAdapter()]) as ends:
            await cluster.until(lambda: cluster_of(ends).holds(ROLE))
        await cluster.until(lambda: ROLE not in cluster_of(host).holders)
        await host.submit(said("key", 1))
        await host.submit(Inbound("other", "event", "of the host"))
        await cluster.until(
            lambda: (
                sorted(cluster.sql("SELECT state, session_key FROM outbox"))
                == [("pending", "key"), ("sent", "other")]
            )
        )
        adapter = MemoryAdapter()
        await cluster.stack.enter_async_context(cluster.open("next", adapters=[adapter]))
        await cluster.until(lambda: adapter.texts == ["host: message 1"])
        assert not adapter.sent[0].recovered


async def test_a_reply_is_found_without_a_hint(postgres_url):
    """Another program has written it; the holder looks now and then."""
    async with on_cluster(postgres_url) as cluster:
        adapter = MemoryAdapter()
        [node] = await cluster.start("node", adapters=[adapter])
        await cluster.until(lambda: cluster_of(node).holds(ROLE))
        cluster.sql(INSERT, "key")
        await cluster.until(lambda: adapter.texts == ["hi"])


async def test_a_row_that_is_committed_after_one_with_a_larger_id_is_sent(postgres_url):
    """Two nodes commit to one chat; the order of the ids is not that of the commits."""
    async with on_cluster(postgres_url) as cluster:
        adapter = GatedAdapter()
        [node] = await cluster.start("node", adapters=[adapter])
        [sender] = node._supervisor._dispatcher._all
        with psycopg.connect(plain(cluster.url)) as slow:
            [(early,)] = slow.execute(INSERT, ["one"]).fetchall()
            [(late,)] = cluster.sql(INSERT, "two")
            assert early < late
            await adapter.sending.wait()
            slow.commit()
        [(last,)] = cluster.sql(INSERT, "two")
        [lane] = sender.lanes.values()
        await cluster.until(lambda: lane._in_store)  # it looks, and it has sent a later one
        adapter.gate.set()
        await cluster.until(lambda: all_sent(cluster))
        assert [row.outbox_id for row in adapter.sent] == [late, early, last]


async def test_hooks_are_called_once_for_each_boundary(postgres_url):
    hooks = [RecordingHook(), RecordingHook()]
    async with on_cluster(postgres_url) as cluster:
        nodes = []
        for name, hook in zip("ab", hooks, strict=True):
            given = {"on_session_reset": [hook.named("reset")]}
            opened = cluster.open(name, hooks=given)
            nodes.append(await cluster.stack.enter_async_context(opened))
        await cluster.all_know(*nodes)
        keys = [f"key {number}" for number in range(8)]
        for number, key in enumerate(keys):
            await nodes[0].submit(said(key, number))
        await cluster.all_answered()
        serving = {cluster_of(node).node: node for node in nodes}
        for key in keys:
            node = serving.get(cluster.owner(key), nodes[0])
            await node.conversation(key).new()
        for node in nodes:
            await node.wait_hooks()
        called = [session_id for hook in hooks for _, session_id in hook.calls]
        assert len(called) == len(set(called)) == len(keys)
        assert sorted(len(hook.calls) for hook in hooks) == [0, len(keys)]
        assert not cluster.sql("SELECT 1 FROM boundaries WHERE closed_at IS NULL")


async def test_one_node_sweeps_and_one_goes_on_when_it_is_dead(postgres_url):
    """The dead one comes back as another node, and may get the role again."""
    url = with_lease(postgres_url)
    opened = [open_store(url, sweep_interval=0.1) for _ in range(2)]
    async with opened[0] as one, opened[1] as two:

        def claims(role):
            found = [store.cluster.claim_of(role) for store in (one, two)]
            return [claim for claim in found if claim is not None]

        for role in (SWEEP, INDEX):
            await until(lambda role=role: len(claims(role)) == 1)
            await expire_and_index(one)
            [old] = claims(role)
            await one.transact(lambda tx, old=old: node_rows.leave(tx, old.node))
            await until(lambda old=old, role=role: any(c.fence > old.fence for c in claims(role)))
            await expire_and_index(two)


async def expire_and_index(store):
    """Write a message, and let a session be overdue; wait until both are noticed."""
    policy = ExpiryPolicy(mode="idle", idle_minutes=1)
    number = uuid.uuid4().hex
    accepted = await store.accept(Inbound("key", number, "hello"), policy=policy)
    await store.park_inbox([accepted.receipt.inbox_id], "closed")
    await store.create_session(number, "test")
    await store.append_message(number, "user", "a heron")
    await store.transact(lambda tx: tx.run("UPDATE routes SET expires_at = 1"))
    with trio.fail_after(SECONDS):
        while await store.snapshot(unindexed) or await store.snapshot(overdue):  # noqa: ASYNC110
            await trio.sleep(0.05)


async def test_the_last_node_sends_what_it_has_no_hint_of_before_it_ends(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        adapter = MemoryAdapter()
        async with cluster.open("node", adapters=[adapter]) as node:
            await cluster.until(lambda: cluster_of(node).holds(ROLE))
            cluster.sql(INSERT, "key")
        assert all_sent(cluster)
        assert adapter.texts == ["hi"]
