"""Several event streams over one connection."""

from __future__ import annotations

from contextlib import asynccontextmanager

import h11
import msgspec
import pytest
import trio

from tests.support.event_clients import open_events
from tests.support.http import http_server, new_token

A, B = "/api/conversations/name:a", "/api/conversations/name:b"


@asynccontextmanager
async def reading(server, *streams, secret=None):
    body = {"streams": [{"path": path, "after": after} for path, after in streams]}
    with trio.fail_after(60):
        async with open_events(server, "/api/streams", secret=secret, body=body) as events:
            assert events.response.status_code == 200
            yield events


async def until(events, index, kind):
    """Return the data of the next frame of this kind in a stream."""
    while True:
        frame = await events.frame()
        if (frame["stream"], frame.get("event")) == (index, kind):
            return msgspec.json.decode(frame["data"])


async def say(client, path, text):
    await client.post(f"{path}/messages", json={"text": text})


async def test_frames_name_their_stream(path):
    async with http_server(path) as server:
        streams = ((f"{A}/events", None), (f"{B}/events", None), ("/api/events", None))
        async with reading(server, *streams) as events:
            frames = [await events.frame() for _ in range(6)]
            seen = {(frame["stream"], frame.get("event")) for frame in frames}
            assert seen == {(index, kind) for index in "012" for kind in ("reset", None)}
            await say(server.http(), B, "one")
            ended = await until(events, "1", "turn_ended")
            assert ended["event"]["reply"]["text"] == "echo: one"


async def test_each_stream_goes_on_after_its_own_id(path):
    async with http_server(path) as server:
        async with reading(server, (f"{A}/events", None), (f"{B}/events", None)) as events:
            last = {}
            while len(last) < 2:
                frame = await events.frame()
                if "event" not in frame:
                    last[frame["stream"]] = frame["id"]
        await say(server.http(), B, "one")
        streams = ((f"{B}/events", last["1"]), (f"{A}/events", last["0"]))
        async with reading(server, *streams) as events:
            frames = [await events.frame() for _ in range(4)]
            kinds = {(frame["stream"], frame.get("event")) for frame in frames}
            assert ("0", "message_accepted") in kinds
            assert not {("0", "reset"), ("1", "reset")} & kinds


async def test_a_stream_that_is_not_served_does_not_end_the_others(path):
    async with http_server(path) as server:
        other = server.http(await new_token(server.runtime, "bob"))
        await say(other, A, "mine")
        listed = (await other.get("/api/conversations")).json()["conversations"]
        foreign = f"/api/conversations/{listed[0]['session_key']}/events"
        streams = (
            (foreign, None), ("/api/nothing", None), ("/api/usage", None), (f"{A}/events", None),
        )  # fmt: skip
        async with reading(server, *streams) as events:
            refused = {}
            while len(refused) < 3:
                frame = await events.frame()
                if frame.get("event") == "refused":
                    refused[frame["stream"]] = msgspec.json.decode(frame["data"])["status"]
            assert refused == {"0": 404, "1": 404, "2": 404}
            await say(server.http(), A, "one")
            await until(events, "3", "turn_ended")


async def test_streams_of_streams_and_other_paths_are_refused(path):
    async with http_server(path) as server:
        client = server.http()
        for wrong in ("/api/streams", "/api/streams?x", "/v1/models", "x", "/api/a b"):
            response = await client.post("/api/streams", json={"streams": [{"path": wrong}]})
            assert response.status_code == 400, wrong
        assert (await client.post("/api/streams", json={"streams": []})).status_code == 400


async def test_the_streams_end_with_the_token_of_their_request(path):
    async with http_server(path) as server:
        secret = await new_token(server.runtime, "laptop")
        async with reading(server, (f"{A}/events", None), secret=secret) as events:
            await server.runtime.api.revoke_token("laptop")
            with pytest.raises(h11.RemoteProtocolError):
                while await events.frame() is not None:
                    pass


async def test_a_client_that_leaves_ends_all_its_streams(path):
    async with http_server(path) as server:
        metrics = server.http(await new_token(server.runtime, "prometheus", roles=("metrics",)))
        async with reading(server, (f"{A}/events", None), (f"{B}/events", None)) as events:
            await events.frame()
            assert "hermes_http_streams 4.0\n" in (await metrics.get("/metrics")).text
        with trio.fail_after(60):
            while "hermes_http_streams 1.0\n" not in (await metrics.get("/metrics")).text:
                await trio.lowlevel.checkpoint()
