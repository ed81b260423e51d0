"""The trace context of a request reaches its turn."""

from __future__ import annotations

import pytest

from hermes.events import TurnStarted
from tests.support.http import http_server

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(("sent", "stored"), [(PARENT, PARENT), ("00-abc", None), (None, None)])
async def test_the_traceparent_is_in_the_metadata_of_the_turn(path, sent, stored):
    seen = []

    def receive(envelope):
        if isinstance(envelope.event, TurnStarted):
            seen.append(envelope.event.metadata.get("traceparent"))

    headers = {} if sent is None else {"traceparent": sent}
    async with http_server(path) as server:
        server.runtime.subscribe(callback=receive)
        client = server.http()
        await client.post("/v1/responses", json={"input": "hello"}, headers=headers)
        url = "/api/conversations/name%3Ax/messages"
        await client.post(url, json={"text": "hello"}, headers=headers)
    assert seen == [stored, stored]
