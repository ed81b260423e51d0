"""Random turns, edits, undos, reconnects and restarts: a client's model equals the store."""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio
from hypothesis import HealthCheck, example, given, strategies as st

from tests.support.event_world import STEPS, Killed, World
from tests.support.examples import examples


async def play(path, steps):
    world = World(path)
    steps = [*steps]
    while steps:
        part = []
        while steps and steps[0][0] not in {"restart", "kill"}:
            part.append(steps.pop(0))
        ending = steps.pop(0)[0] if steps else "restart"
        try:
            async with AsyncExitStack() as stack:
                await world.start(stack)
                for name, number in part:
                    await world.step(name, world.clients[number])
                    if number:
                        await world.check()
                await world.check()
                if ending == "kill":
                    raise Killed  # noqa: TRY301 - ends the block
                if ending == "restart":
                    world.hub.close()
        except* Killed:
            pass
        world.receipts.clear()


@examples(60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), max_size=10))
@example([("send", 1), ("undo", 1), ("send", 1), ("retry", 1), ("edit", 1)])
@example([("hold", 1), ("steer", 1), ("cut", 0), ("release", 1), ("delete", 1)])
@example([("hold", 1), ("send", 0), ("kill", 0), ("title", 1), ("send", 1)])
@example([("stop_reading", 0), ("flood", 0), ("go_on", 0), ("compress", 1), ("switch", 1)])
@example([("again", 2), ("cut", 2), ("connect", 2), ("release", 2)])
@example([("race", 0), ("race", 1), ("restart", 0), ("race", 1), ("flood", 1)])
@example([("race", 1), ("kill", 0), ("flood", 0), ("race", 0), ("delete", 1), ("send", 1)])
def test_a_clients_model_equals_the_store(tmp_path_factory, steps):
    trio.run(play, tmp_path_factory.mktemp("walk") / "state.db", steps)
