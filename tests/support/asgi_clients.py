"""Requests to an ASGI app: the test says when the server learns what of the connection."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import trio

from hermes import open_runtime
from hermes.adapters.http import HttpConfig, open_app
from tests.support.http import new_token


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
    """One request. It reads its answer at once, but waits at a part that contains `stops_at`.

    It leaves after a part that contains `leaves_at`.
    """

    def __init__(
        self,
        app,
        secret,
        *,
        retry=0,
        body=None,
        path="/v1/responses",
        stops_at=None,
        leaves_at=None,
    ):
        self._app = app
        self._path = path
        self._headers = [
            (b"host", b"127.0.0.1:8420"), (b"authorization", f"Bearer {secret}".encode()),
            (b"content-type", b"application/json"),
            (b"x-stainless-retry-count", str(retry).encode()),
        ]  # fmt: skip
        self._body = [json.dumps(body or {"input": "yes"}).encode()]
        self.gone = trio.Event()
        self._leaves_at = leaves_at
        self._stops_at = stops_at
        self.stopped = trio.Event()
        """Set when the server sends that part."""
        self.goes_on = trio.Event()
        self.ended = trio.Event()
        """Set when the request has ended for the server."""
        self.received = b""

    async def run(self):
        scope = {
            "type": "http", "method": "POST", "path": self._path, "query_string": b"",
            "headers": self._headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8420),
        }  # fmt: skip
        await self._app(scope, self._receive, self._send)
        self.ended.set()

    async def _receive(self):
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        body = message.get("body", b"")
        if self._stops_at is not None and self._stops_at in body:
            self.stopped.set()
            await self.goes_on.wait()
        self.received += body
        if self._leaves_at is not None and self._leaves_at in body:
            self.gone.set()

    @property
    def answer(self):
        return json.loads(self.received)


@asynccontextmanager
async def opened(path, agent):
    """Open a runtime with two apps; yields it, a nursery, the secret of a token, and the apps."""
    async with open_runtime(path, agent=agent) as runtime, trio.open_nursery() as nursery:
        secret = await new_token(runtime)
        async with open_app(runtime, HttpConfig()) as app, open_app(runtime, HttpConfig()) as other:
            yield runtime, nursery, secret, [app, other]
