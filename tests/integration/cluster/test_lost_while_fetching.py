"""A node loses a conversation while it fetches a message for it."""

from __future__ import annotations

import psycopg
import trio

from tests.support.cluster_nodes import inbound, on_cluster, until
from tests.support.postgres_databases import plain

WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
TAKE = "UPDATE routes SET owner = NULL, fence = nextval('fences') WHERE session_key = 'key'"
COPY = (
    "INSERT INTO inbox (platform, account, event_id, scope, session_key, session_id, epoch, body, "
    "accepted_at) SELECT platform, account, 'copy', scope, session_key, session_id, epoch, body, "
    "accepted_at FROM inbox"
)


async def test_a_runtime_goes_on_if_it_loses_a_conversation_while_it_fetches(postgres_url):
    async with on_cluster(postgres_url) as cluster:
        cluster.gates["one"] = trio.Event()
        [one] = await cluster.start("one")
        await one.submit(inbound("key", 1))
        await until(lambda: cluster.turns)
        with psycopg.connect(plain(postgres_url)) as taking:
            taking.execute("SELECT 1 FROM routes WHERE session_key = 'key' FOR UPDATE")
            cluster.sql(COPY)  # the node sees it, and cannot fetch it yet
            await until(lambda: cluster.sql(WAITING)[0][0])
            taking.execute(TAKE)
        cluster.gates["one"].set()
        assert (await one.ask("other", "hello")).text == "one: hello"
        await cluster.all_answered()
