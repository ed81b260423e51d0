"""Comments of silent streams, on a virtual clock: the app is called without a socket."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from hermes.adapters.http.app import open_app
from tests.support.held_turns import HeldAgent
from tests.support.http import new_token

COMMENT = b": keep-alive\n\n"
STREAMS = {
    "responses": ("POST", "/v1/responses", {"model": "hermes", "input": "a", "stream": True}),
    "completions": (
        "POST",
        "/v1/chat/completions",
        {"model": "hermes", "messages": [{"role": "user", "content": "a"}], "stream": True},
    ),
    "a conversation": ("GET", "/api/conversations/name:a/events", None),
    "all conversations": ("GET", "/api/events", None),
}


class Client:
    """Calls the app with one request; notes when each piece of the answer was sent."""

    def __init__(self, secret, method, path, body):
        content = b"" if body is None else json.dumps(body).encode()
        headers = {
            b"host": b"127.0.0.1:8420", b"authorization": f"Bearer {secret}".encode(),
            b"content-type": b"application/json", b"content-length": str(len(content)).encode(),
        }  # fmt: skip
        self.scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": list(headers.items()), "http_version": "1.1",
            "scheme": "http", "server": ("127.0.0.1", 8420), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        self._messages = [{"type": "http.request", "body": content, "more_body": False}]
        self.sent = []

    async def receive(self):
        if self._messages:
            return self._messages.pop()
        return await trio.sleep_forever()

    async def send(self, message):
        await trio.lowlevel.checkpoint()
        if message.get("body"):
            self.sent.append((trio.current_time(), message["body"]))

    def comments(self):
        return [at for at, body in self.sent if body == COMMENT]


@pytest.mark.parametrize("name", STREAMS)
async def test_a_silent_stream_sends_a_comment_every_15_seconds(start, name, autojump_clock):
    async with (
        start(build_agent=lambda _: HeldAgent()) as runtime,
        open_app(runtime) as app,
        trio.open_nursery() as nursery,
    ):
        client = Client(await new_token(runtime), *STREAMS[name])
        nursery.start_soon(app, client.scope, client.receive, client.send)
        await trio.sleep(100)
        began = max(at for at, body in client.sent if body != COMMENT)
        assert client.comments() == pytest.approx([began + 15 * n for n in range(1, 7)], abs=0.1)
        nursery.cancel_scope.cancel()
