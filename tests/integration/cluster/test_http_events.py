"""Event streams of the web page on a node that does not serve the conversation."""

from __future__ import annotations

from random import Random

import pytest
import trio

from hermes.adapters.http.api.streams.hub import Hub
from hermes.adapters.http.api.streams.rendered.renderer import Renderer
from hermes.background import open_background
from hermes.config import Config
from hermes.testing import DeterministicCompressor
from tests.support.cluster_nodes import SECONDS, claim, cluster_of, on_cluster
from tests.support.event_clients import rendered_state, stored_state
from tests.support.event_world import KEY, Gate, World, inline

STEPS = (
    "send", "send", "hold", "release", "undo", "retry", "edit", "new", "title", "settings",
    "steer", "interrupt", "withdraw", "command", "compress", "switch", "post", "cut", "connect",
    "flood", "again", "race",
)  # fmt: skip


class NodesWorld(World):
    """One node acts and serves the conversation; the clients listen to the other one."""

    def __init__(self, cluster):
        super().__init__(None)
        self.cluster = cluster

    async def start(self, stack):
        self.gate = Gate()
        options = {
            "compressor": DeterministicCompressor(),
            "config": Config(drain_timeout=0.0, merge_messages=False),
        }
        self.runtime, self.other = await self.cluster.start(
            "a", "b", agent=self.gate.agent, **options
        )
        assert await claim(cluster_of(self.runtime), KEY)
        await self.conversation.undo()
        self.nursery = await stack.enter_async_context(open_background())
        renderer = Renderer(inline, pause=0.0, turns=self.other.api.turns_of_rows)
        self.hub = Hub(self.other, self.nursery, "process", renderer)
        for client in self.clients[1:]:
            self.connect(client)

    async def check(self):
        """Wait until all clients have the state that the owner tells."""
        for client in self.clients:
            client.cut()
            self.connect(client)
        for client in self.clients:
            state = rendered_state if client.rendered else stored_state
            with trio.move_on_after(SECONDS):
                while True:
                    expected = await state(self.runtime, KEY)
                    if client.last_id is not None and client.model.comparable() == expected:
                        break
                    await trio.sleep(0.02)
            assert client.model.comparable() == expected


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_model_of_a_client_of_another_node_equals_the_store(postgres_url, seed):
    random = Random(seed)
    async with on_cluster(postgres_url) as cluster:
        world = NodesWorld(cluster)
        await world.start(cluster.stack)
        for number in range(25):
            await world.step(random.choice(STEPS), random.choice(world.clients))
            if number % 3 == 0:
                await world.check()
        await world.check()
        await world.release()
        await world.check()
        world.hub.close()
