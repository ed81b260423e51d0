"""Retries that arrive before the server knows that the first connection was cut."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import trio
import trio.testing

from hermes import open_runtime
from hermes.adapters.http import HttpConfig, open_app
from tests.support.http import new_token
from tests.support.raw_http import until_connections


class Agent:
    """Answers when it is told to, with the number of the turn."""

    def __init__(self):
        self.turns = 0
        self.started = trio.Event()
        self.open = trio.Event()

    async def __call__(self, turn):
        self.turns += 1
        number = self.turns
        self.started.set()
        await self.open.wait()
        return f"{turn.text} {number}"


class Client:
    """A request to an ASGI app; the test says when the server learns that the client has left."""

    def __init__(self, app, secret, *, retry=0):
        self._app = app
        self._headers = [
            (b"host", b"127.0.0.1:8420"), (b"authorization", f"Bearer {secret}".encode()),
            (b"content-type", b"application/json"),
            (b"x-stainless-retry-count", str(retry).encode()),
        ]  # fmt: skip
        self._body = [json.dumps({"input": "yes"}).encode()]
        self.gone = trio.Event()
        self.received = b""

    async def run(self):
        scope = {
            "type": "http", "method": "POST", "path": "/v1/responses", "query_string": b"",
            "headers": self._headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8420),
        }  # fmt: skip
        await self._app(scope, self._receive, self._send)

    async def _receive(self):
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.received += message.get("body", b"")

    @property
    def answer(self):
        return json.loads(self.received)


@asynccontextmanager
async def opened(path, agent):
    async with open_runtime(path, agent=agent) as runtime, trio.open_nursery() as nursery:
        secret = await new_token(runtime)
        async with open_app(runtime, HttpConfig()) as app, open_app(runtime, HttpConfig()) as other:
            yield runtime, nursery, secret, [app, other]


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
