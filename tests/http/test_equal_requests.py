"""Equal requests at once, early cuts, and a busy store: a retry never gets the wrong response."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from hermes import Config
from hermes.actors.runtime import open_actors
from hermes.adapters.http import HttpConfig, open_app, serve_http
from hermes.embed.agent import builder_for, default_spec
from hermes.errors import StoreBusy
from hermes.store import open_store
from tests.support.asgi_clients import Agent, Client, opened
from tests.support.http import Server, new_token
from tests.support.raw_http import connect, post, request_bytes, stored_responses, until_connections
from tests.support.store_proxy import HoldFirst, Proxy

YES = {"input": "yes"}
OTHER = "another process"
CHAT = {"messages": [{"role": "user", "content": "yes"}]}
STOP = b'"finish_reason":"stop"'
KINDS = {
    "plain": {"body": YES, "stops_at": b'"status":"completed"'},
    "stream": {"body": {**YES, "stream": True}, "stops_at": b"response.completed"},
    "chat": {"path": "/v1/chat/completions", "body": CHAT, "stops_at": STOP},
    "chat stream": {
        "path": "/v1/chat/completions", "body": {**CHAT, "stream": True}, "stops_at": STOP
    },
}  # fmt: skip


@asynccontextmanager
async def proxied_runtime(path, agent, **verbs):
    """Open a runtime with a store some of whose verbs are replaced."""
    config = Config()
    async with (
        open_store(path) as store,
        open_actors(
            Proxy(store, **verbs), build=builder_for(agent, None, config),
            agent_spec=default_spec, config=config,
        ) as runtime,
    ):  # fmt: skip
        yield runtime


@asynccontextmanager
async def proxied_server(path, agent, **verbs):
    """Serve HTTP with such a runtime."""
    async with (
        proxied_runtime(path, agent, **verbs) as runtime,
        serve_http(runtime, HttpConfig(port=0)) as url,
    ):
        yield Server(runtime, url, await new_token(runtime))


async def until_one_stops(clients):
    """Wait until one of the clients waits at the end of its answer, and all else is done."""
    while not any(each.stopped.is_set() for each in clients):
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked(0.05)


async def attach_after_death(runtime):
    """Return the response that a retry gets if the process is killed now."""
    [one, *_] = await stored_responses(runtime)
    return await runtime.api.attach(one.credential, one.path, one.digest, OTHER)


@pytest.mark.parametrize("kind", KINDS)
async def test_equal_requests_are_answered_one_after_the_other(path, kind):
    """If the process is killed while the first answer is written, a retry gets the other one."""
    agent = Agent()
    async with opened(path, agent) as (runtime, nursery, secret, [app, _]):
        clients = [Client(app, secret, **KINDS[kind]) for _ in range(2)]
        for client in clients:
            nursery.start_soon(client.run)
        await until_connections(runtime, "open", "open")
        agent.open.set()
        await until_one_stops(clients)
        [first] = [each for each in clients if each.stopped.is_set()]
        [second] = [each for each in clients if not each.stopped.is_set()]
        found = await attach_after_death(runtime)
        first.goes_on.set()
        await first.ended.wait()
        await second.stopped.wait()
        second.goes_on.set()
        await second.ended.wait()
        assert found.id.encode() in second.received
        assert found.id.encode() not in first.received


async def test_a_client_that_does_not_read_delays_no_other_request_and_equal_ones_not_for_long(
    path,
):
    agent = Agent()
    async with opened(path, agent) as (runtime, nursery, secret, [app, _]):
        slow = [Client(app, secret, **KINDS["plain"]) for _ in range(5)]
        for client in slow:
            nursery.start_soon(client.run)
        await until_connections(runtime, *["open"] * 5)
        reader, other = Client(app, secret), Client(app, secret, body={"input": "no"})
        nursery.start_soon(reader.run)
        await until_connections(runtime, *["open"] * 6)
        agent.open.set()
        await until_one_stops(slow)
        nursery.start_soon(other.run)
        with trio.fail_after(20):
            await other.ended.wait()
            await reader.ended.wait()
        assert reader.answer["status"] == other.answer["status"] == "completed"
        found = await attach_after_death(runtime)
        assert found.id != reader.answer["id"]
        for client in slow:
            client.goes_on.set()


async def test_a_client_that_leaves_while_its_message_is_stored_was_not_answered(path):
    agent, hold = Agent(), HoldFirst()
    async with proxied_server(path, agent, accept_request=hold) as server:
        async with connect(server) as connection:
            await connection.send_all(request_bytes(server, YES))
            await hold.entered.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        agent.open.set()
        hold.release.set()
        [first] = await until_connections(server.runtime, "cut")
        status, answer = await post(server, YES, retry=1)
        assert (status, answer["id"], agent.turns) == (200, first.id, 1)


@pytest.mark.parametrize("kind", ["stream", "chat stream"])
async def test_a_client_that_leaves_after_the_last_event_of_a_stream_was_answered(path, kind):
    agent, options = Agent(), dict(KINDS[kind])
    options["leaves_at"] = options.pop("stops_at")
    async with opened(path, agent) as (runtime, nursery, secret, [app, _]):
        client = Client(app, secret, **options)
        nursery.start_soon(client.run)
        agent.open.set()
        await until_connections(runtime, "complete")


class Busy:
    """A replaced verb that fails once, when it is told to: another process uses the store."""

    def __init__(self):
        self.entered, self.release = trio.Event(), trio.Event()

    async def __call__(self, real, *args, **kwargs):
        if not self.entered.is_set():
            self.entered.set()
            await self.release.wait()
            raise StoreBusy("the store is busy")
        return await real(*args, **kwargs)


@pytest.mark.parametrize("early", [False, True])
async def test_a_retry_beside_a_busy_store_attaches_to_the_request_that_was_cut(path, early):
    """The end of the connection cannot be recorded at once; the retry may come before or after."""
    agent, busy = Agent(), Busy()
    answers = []

    async def retry(server):
        answers.append(await post(server, YES, retry=1))

    async with proxied_server(path, agent, end_connection=busy) as server:
        async with connect(server) as connection:
            await connection.send_all(request_bytes(server, YES))
            await agent.started.wait()
        await busy.entered.wait()
        async with trio.open_nursery() as nursery:
            if early:
                nursery.start_soon(retry, server)
                await trio.testing.wait_all_tasks_blocked(0.05)
            busy.release.set()
            if not early:
                await trio.testing.wait_all_tasks_blocked(0.05)
                nursery.start_soon(retry, server)
            await trio.testing.wait_all_tasks_blocked(0.05)
            agent.open.set()
        [stored] = await until_connections(server.runtime, "complete")
        assert [(status, body["id"]) for status, body in answers] == [(200, stored.id)]
        assert agent.turns == 1


async def test_a_retry_waits_for_an_end_that_takes_longer_than_it_would_wait(path, mock_clock):
    """It has found nothing when the record of the end fails, and its time is up."""
    agent, busy, hold = Agent(), Busy(), HoldFirst()
    mock_clock.rate = 1.0  # a clock like any other, until it jumps
    async with (
        proxied_runtime(path, agent, end_connection=busy, attach_response=hold) as runtime,
        open_app(runtime, HttpConfig()) as app,
        trio.open_nursery() as nursery,
    ):
        secret = await new_token(runtime)
        first, retry = Client(app, secret), Client(app, secret, retry=1)
        nursery.start_soon(first.run)
        await agent.started.wait()
        first.gone.set()
        await busy.entered.wait()
        nursery.start_soon(retry.run)
        await hold.entered.wait()
        busy.release.set()
        await first.ended.wait()
        mock_clock.jump(10)
        hold.release.set()
        agent.open.set()
        await retry.ended.wait()
        stored = await stored_responses(runtime)
    assert [retry.answer["id"]] == [each.id for each in stored]
    assert agent.turns == 1
