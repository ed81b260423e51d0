"""The live view as its page keeps it: a snapshot, and every change since."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio

from tests.support.event_clients import open_events
from tests.support.http import new_token
from tests.support.runtime import SECONDS

EVENTS = "/api/live/events"
KEYED = {"actors": "session_key", "lanes": "lane"}


class LiveModel:
    """What a listener knows; `sizes` are the numbers of actors in each event."""

    def __init__(self, events):
        self.events = events
        self.state = {"actors": {}, "lanes": {}}
        self.kinds = []
        self.sizes = []

    async def next(self):
        """Take the next event."""
        kind, data = await self.events.next()
        self.kinds.append(kind)
        self.sizes.append(len(data.get("actors", ())))
        self.apply(kind, data)

    def apply(self, kind, data):
        if kind == "reset":
            self.state = {**data}
            for name, key in KEYED.items():
                self.state[name] = {each[key]: each for each in data[name]}
            return
        for name, value in data.items():
            if name in KEYED:
                self.state[name] |= {each[KEYED[name]]: each for each in value}
            elif name.endswith("_gone"):
                for key in value:
                    del self.state[name.removesuffix("_gone")][key]
            else:
                self.state[name] = value

    async def until(self, condition):
        """Take events until a condition of the state is met."""
        with trio.fail_after(SECONDS):
            while not condition(self.state):
                await self.next()


@asynccontextmanager
async def live_view(server, *, secret=None, last_id=None):
    """Listen as an operator, with the snapshot taken."""
    secret = secret or await operator(server)
    async with open_events(server, EVENTS, secret=secret, last_id=last_id) as events:
        model = LiveModel(events)
        await model.next()
        yield model


async def operator(server, name="op"):
    """Return the secret of a new token of an operator."""
    return await new_token(server.runtime, name, roles=("operator",))


async def hold_conversations(runtime, count, *, prefix="live"):
    """Have one turn in each of so many conversations, so that their actors are in memory."""
    limit = trio.CapacityLimiter(100)

    async def ask(number):
        async with limit:
            await runtime.ask(f"{prefix}:{number}", "hello")

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, number)
