"""An agent searches its conversation through the turn, wherever it runs."""

from __future__ import annotations

import pytest

from hermes.agents.bridges import blocking_agent
from hermes.embed.agent import ReplyAgent
from tests.support.turns import running_turn

QUERY = {"role": "user", "limit": 5}


def answer(hits):
    return " | ".join(sorted(hit.snippet for hit in hits))


@pytest.fixture(params=["trio", "thread", "asyncio"])
def searching(request, bridge):
    """A builder of agents that answer with what they find."""

    async def search(turn):
        return answer(await turn.search("bees", **QUERY))

    if request.param == "trio":
        return lambda _: ReplyAgent(search)
    if request.param == "thread":
        return blocking_agent(lambda turn: answer(turn.search("bees", **QUERY)))
    return bridge(search)


async def test_earlier_sessions_are_searched_and_other_conversations_are_not(start, searching):
    async with start(build_agent=searching) as runtime:
        await runtime.ask("anna", "the bees are in the garden")
        await runtime.ask("anna", "/new")
        await runtime.ask("berta", "the bees are in the attic")
        reply = await runtime.ask("anna", "where are they")
        assert reply.text == "the >>>bees<<< are in the garden"
        assert "bees" not in (await runtime.ask("carla", "where are they")).text


async def test_a_turn_without_a_store_finds_nothing():
    assert await running_turn().search("bees") == ()
