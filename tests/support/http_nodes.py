"""HTTP servers of several nodes on one PostgreSQL database."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio

from hermes.adapters.http import HttpConfig, serve_http
from hermes.events import TextDelta
from tests.support.cluster_nodes import SECONDS, cluster_of, on_cluster
from tests.support.http import Server, new_token


class Agents:
    """The agents of all nodes: each says its words, and waits before the last one.

    `ran` has the name of the node of each turn that has begun.
    """

    def __init__(self, *words):
        self.words = words or ("It ", "is ", "so")
        self.ran = []
        self.said = trio.Event()
        self.go = trio.Event()

    def __call__(self, name):
        async def answer(turn):
            self.ran.append(name)
            for word in self.words[:-1]:
                turn.emit(TextDelta(word))
            self.said.set()
            await self.go.wait()
            turn.emit(TextDelta(self.words[-1]))
            return "".join(self.words)

        return answer

    @property
    def text(self):
        return "".join(self.words)


class Nodes:
    """The servers by name."""

    def __init__(self, cluster, agents):
        self.cluster = cluster
        self.agents = agents
        self.servers = {}

    async def start(self, *names, **options):
        """Start servers; they end with the test. They share the token of a user."""
        stack = self.cluster.stack
        for name in names:
            opened = self.cluster.open(name, agent=self.agents(name), **options)
            runtime = await stack.enter_async_context(opened)
            known = next(iter(self.servers.values()), None)
            secret = await new_token(runtime) if known is None else known.secret
            url = await stack.enter_async_context(serve_http(runtime, HttpConfig(port=0)))
            server = self.servers[name] = Server(runtime, url, secret)
            stack.push_async_callback(server.close_clients)
        await self.cluster.all_know(*[each.runtime for each in self.servers.values()])
        return [self.servers[name] for name in names]

    def known(self, name):
        """Return the nodes that a node knows."""
        return cluster_of(self.servers[name].runtime).nodes

    async def owner_and_other(self):
        """Return the server whose node runs the first turn, and another one."""
        with trio.fail_after(SECONDS):
            await self.agents.said.wait()
        owner = self.servers[self.agents.ran[0]]
        return owner, next(each for each in self.servers.values() if each is not owner)


@asynccontextmanager
async def http_nodes(url, *names, agents=None, **options):
    """Servers during the block."""
    async with on_cluster(url) as cluster:
        nodes = Nodes(cluster, agents or Agents())
        await nodes.start(*(names or ("a", "b")), **options)
        yield nodes
