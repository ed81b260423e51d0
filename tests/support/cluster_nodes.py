"""Runtimes that share one PostgreSQL database."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import trio

from hermes import open_runtime
from hermes.messages import Inbound
from hermes.store.conversations import routes
from tests.support.postgres_databases import plain

LEASE = 1.0
SECONDS = 30
"""How long a test waits before it fails."""


def with_lease(url, seconds=LEASE):
    """Return the URL for nodes with short leases, which refuse requests soon in an outage."""
    return f"{url}{'&' if '?' in url else '?'}lease={seconds}&wait=1"


def cluster_of(runtime):
    """The other nodes, as a runtime sees them."""
    return runtime._context.store.cluster


async def claim(cluster, key):
    """Let a node serve a conversation, which is created if it does not exist; returns its claim."""
    await cluster._store.transact(lambda tx: routes.ensure_route(tx, key))
    return await cluster.claim(key)


async def until(condition, seconds=SECONDS):
    """Wait until a condition holds."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.02)


class Cluster:
    """Opens runtimes on one database, and reads what they have written.

    Each answers with its name. An agent waits while its node is in `held`.
    """

    def __init__(self, url, stack):
        self.url = url
        self.stack = stack
        self.closed = []
        """The name of a node for each agent that was closed, with the key."""
        self.turns = []
        """The name of a node and the text, for each turn that has begun."""
        self.gates = {}

    def agent(self, name):
        async def answer(turn):
            self.turns.append((name, turn.text))
            if name in self.gates:
                await self.gates[name].wait()
            return f"{name}: {turn.text}"

        return answer

    def open(self, name, **options):
        """Return a runtime to be opened."""
        options.setdefault("agent", self.agent(name))
        return open_runtime(with_lease(self.url), **options)

    async def start(self, *names, **options):
        """Open runtimes that know each other; they end with the test."""
        found = [await self.stack.enter_async_context(self.open(n, **options)) for n in names]
        await self.all_know(*found)
        return found

    async def all_know(self, *runtimes):
        """Wait until each runtime knows exactly these nodes."""
        wanted = {cluster_of(each).node for each in runtimes}
        await self.until(lambda: all(set(cluster_of(r).nodes) == wanted for r in runtimes))

    def sql(self, statement, *values):
        with psycopg.connect(plain(self.url), autocommit=True) as db:
            cursor = db.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    async def until(self, condition, seconds=SECONDS):
        """Wait until a condition holds, which may take some heartbeats."""
        await until(condition, seconds)

    def owner(self, key):
        """Return who serves a conversation, if anybody does."""
        found = self.sql("SELECT owner FROM routes WHERE session_key = %s", key)
        return found[0][0] if found else None

    def unanswered(self):
        [(count,)] = self.sql("SELECT count(*) FROM inbox WHERE state = 'open'")
        return count

    async def all_answered(self, seconds=SECONDS):
        await self.until(lambda: self.unanswered() == 0, seconds)

    def history(self, key, *roles):
        """Return the texts of a conversation, of all roles or of some."""
        found = self.sql(
            "SELECT m.content FROM messages m JOIN sessions s ON s.no = m.id >> 32 "
            "JOIN routes r ON r.session_id = s.id WHERE r.session_key = %s AND m.role = ANY(%s) "
            "ORDER BY m.id",
            key,
            list(roles or ("user", "assistant")),
        )
        return [content for (content,) in found]


def inbound(key, number):
    """A message; each number is another one."""
    return Inbound(key, f"event {number}", f"message {number}")


@asynccontextmanager
async def on_cluster(url):
    """Open a `Cluster` for a test; its runtimes end with the block."""
    async with AsyncExitStack() as stack:
        yield Cluster(url, stack)
