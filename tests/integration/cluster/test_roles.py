"""What must exist once: replies, receivers, hooks and sweeps on several nodes."""

from __future__ import annotations

import trio

from hermes import Source
from hermes.messages import Inbound
from hermes.testing import MemoryAdapter, RecordingHook
from tests.support.cluster_nodes import cluster_of, on_cluster

ROLE = "platform:memory"


def said(key, number):
    """A message in the chat of this key."""
    source = Source("memory", chat_id=key, user_id="u")
    return Inbound(key, f"event {number}", f"message {number}", source=source)


def holder(cluster, role=ROLE):
    """The node that has a role, from the database; None if nobody does."""
    found = cluster.sql("SELECT owner FROM roles WHERE name = %s", role)
    return found[0][0] if found else None


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
        await cluster.until(lambda: not cluster.sql("SELECT 1 FROM outbox WHERE state <> 'sent'"))
        sending = next(a for a in adapters.values() if a.sent)
        assert [len(a.sent) for a in adapters.values()].count(0) == 1, "one node sends"
        for key in keys:
            texts = [text.partition(": ")[2] for text in texts_to(sending, key)]
            assert texts == [f"message {number}" for number in range(30) if keys[number % 6] == key]
        assert not any(row.recovered for row in sending.sent)
        answered = {str(row.body["text"]).partition(":")[0] for row in sending.sent}
        assert len(answered) > 1, "turns ran on several nodes"
