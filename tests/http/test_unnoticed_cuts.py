"""Retries that arrive before the server knows that the first connection was cut."""

from __future__ import annotations

import trio.testing

from tests.support.asgi_clients import Agent, Client, opened
from tests.support.raw_http import until_connections


async def test_a_retry_attaches_to_a_request_whose_cut_is_noticed_after_it_has_come(path):
    agent = Agent()
    async with opened(path, agent) as (runtime, nursery, secret, [app, _]):
        first, retry = Client(app, secret), Client(app, secret, retry=1)
        nursery.start_soon(first.run)
        await agent.started.wait()
        nursery.start_soon(retry.run)
        await trio.testing.wait_all_tasks_blocked(0.05)
        first.gone.set()
        await until_connections(runtime, "open")
        agent.open.set()
        await until_connections(runtime, "complete")
        assert retry.answer["output"][0]["content"][0]["text"] == "yes 1"
        assert agent.turns == 1


async def check_that_both_are_answered(path, *, other_app):
    """A retry beside an equal request that goes on, in the same app or in another one."""
    agent = Agent()
    async with opened(path, agent) as (runtime, nursery, secret, apps):
        first, retry = Client(apps[0], secret), Client(apps[other_app], secret, retry=1)
        nursery.start_soon(first.run)
        await agent.started.wait()
        nursery.start_soon(retry.run)
        await until_connections(runtime, "open", "open")
        agent.open.set()
        one, two = await until_connections(runtime, "complete", "complete")
        assert (first.answer["id"], retry.answer["id"]) == (one.id, two.id)


async def test_a_retry_beside_an_equal_request_that_goes_on_is_a_new_one(path, autojump_clock):
    await check_that_both_are_answered(path, other_app=False)


async def test_a_request_that_is_open_in_another_app_of_the_runtime_is_not_lost(path):
    await check_that_both_are_answered(path, other_app=True)


async def test_a_request_that_was_cut_in_another_app_of_the_runtime_is_found(path):
    agent = Agent()
    async with opened(path, agent) as (runtime, nursery, secret, [app, other]):
        first, retry = Client(app, secret), Client(other, secret, retry=1)
        nursery.start_soon(first.run)
        await agent.started.wait()
        first.gone.set()
        await until_connections(runtime, "cut")
        nursery.start_soon(retry.run)
        await until_connections(runtime, "open")
        agent.open.set()
        [stored] = await until_connections(runtime, "complete")
        assert (retry.answer["id"], agent.turns) == (stored.id, 1)
