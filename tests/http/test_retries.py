"""Requests that repeat earlier ones: idempotency keys, and the retries of the stock SDK."""

from __future__ import annotations

import pytest
import trio

from hermes import Config
from hermes.events import TextDelta
from tests.support.http import http_server, new_token
from tests.support.raw_http import (
    connect,
    post,
    read_events,
    request_bytes,
    stored_responses,
    until_connections,
)

YES = {"input": "yes"}


class Agent:
    """Answers when it is told to, with the number of the turn."""

    def __init__(self):
        self.turns = 0
        self.started = trio.Event()
        self.open = trio.Event()

    async def __call__(self, turn):
        self.turns += 1
        number = self.turns
        turn.emit(TextDelta(turn.text))
        self.started.set()
        await self.open.wait()
        return f"{turn.text} {number}"


def text_of(body):
    return body["output"][0]["content"][0]["text"]


async def cut(server, body, agent):
    """Send a request, and close the connection while its turn runs."""
    async with connect(server) as connection:
        await connection.send_all(request_bytes(server, body))
        await agent.started.wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_gets_the_response_whose_connection_was_cut(path, stream):
    agent, body = Agent(), {**YES, "stream": stream}
    async with http_server(path, agent) as server:
        await cut(server, body, agent)
        [first] = await until_connections(server.runtime, "cut")
        async with connect(server) as connection:
            await connection.send_all(request_bytes(server, body, retry=1))
            await until_connections(server.runtime, "open")
            agent.open.set()
            received = b""
            while first.id.encode() not in received:
                received += await connection.receive_some()
            await until_connections(server.runtime, "complete")
        assert agent.turns == 1
        # The response was written in full: the next retry is a new request.
        status, again = await post(server, YES, retry=1)
        assert (status, text_of(again)) == (200, "yes 2")


async def test_yes_twice_with_the_second_lost_before_it_was_accepted(path):
    agent = Agent()
    agent.open.set()
    async with http_server(path, agent) as server:
        _, first = await post(server, YES)
        async with connect(server) as connection:  # lost before its body had arrived
            await connection.send_all(request_bytes(server, YES)[:-3])
        status, second = await post(server, YES, retry=1)
        assert (status, text_of(first), text_of(second)) == (200, "yes 1", "yes 2")
        assert first["id"] != second["id"]
        assert len(await stored_responses(server.runtime)) == 2


async def test_two_equal_requests_at_once_both_cut_and_both_retried(path):
    agent, answers = Agent(), []

    async def retry(server):
        answers.append(await post(server, YES, retry=1))

    async with http_server(path, agent) as server:
        async with connect(server) as one, connect(server) as two:
            for connection in (one, two):
                await connection.send_all(request_bytes(server, YES))
            await until_connections(server.runtime, "open", "open")
        await until_connections(server.runtime, "cut", "cut")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(retry, server)
            nursery.start_soon(retry, server)
            await until_connections(server.runtime, "open", "open")
            agent.open.set()
        stored = await until_connections(server.runtime, "complete", "complete")
        assert sorted(body["id"] for _, body in answers) == sorted(each.id for each in stored)
        assert sorted(text_of(body) for _, body in answers) == ["yes 1", "yes 2"]
        assert agent.turns == 2


async def test_a_retry_of_another_token_or_another_body_is_a_new_request(path):
    agent = Agent()
    async with http_server(path, agent) as server:
        await cut(server, YES, agent)
        await until_connections(server.runtime, "cut")
        agent.open.set()
        _, other = await post(server, {"input": "no"}, retry=1)
        assert text_of(other) == "no 2"
        bob = type(server)(server.runtime, server.url, await new_token(server.runtime, "bob"))
        _, other = await post(bob, YES, retry=1)
        assert text_of(other) == "yes 3"


async def test_a_request_without_a_retry_count_is_a_new_one(path):
    agent = Agent()
    async with http_server(path, agent) as server:
        await cut(server, YES, agent)
        await until_connections(server.runtime, "cut")
        agent.open.set()
        _, new = await post(server, YES)
        assert text_of(new) == "yes 2"


async def test_an_idempotency_key_stands_for_one_turn(path):
    agent, answers = Agent(), []

    async def ask(server, body):
        answers.append(await post(server, body, key="k1"))

    async with http_server(path, agent) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, server, YES)
            await agent.started.wait()
            agent.open.set()
        await ask(server, YES)
        assert [(status, text_of(body)) for status, body in answers] == [(200, "yes 1")] * 4
        assert len({body["id"] for _, body in answers}) == 1
        status, refused = await post(server, {"input": "no"}, key="k1")
        assert (status, refused["error"]["code"]) == (422, "idempotency_key_reused")
        assert agent.turns == 1
        bob = type(server)(server.runtime, server.url, await new_token(server.runtime, "bob"))
        _, other = await post(bob, YES, key="k1")
        assert text_of(other) == "yes 2"
        status, refused = await post(server, YES, key="x" * 300)
        assert status == 400


async def test_a_deleted_response_frees_no_idempotency_key(path):
    agent = Agent()
    agent.open.set()
    async with http_server(path, agent) as server:
        _, answer = await post(server, YES, key="k1")
        await server.http().delete(f"/v1/responses/{answer['id']}")
        status, refused = await post(server, YES, key="k1")
        assert (status, refused["error"]["code"]) == (409, "conflict")
        assert agent.turns == 1


async def stop_beside(path, agent, body, read):
    """Stop a server whose drain does not wait for the turn of a client.

    Returns the id of its response, what the client has read, and the token.
    """
    received = []

    async def ask(server):
        async with connect(server) as connection:
            await connection.send_all(request_bytes(server, body))
            received.append(await read(connection))

    stopped = Config(drain_timeout=0.0)
    async with trio.open_nursery() as nursery:
        async with http_server(path, agent, runtime_config=stopped) as server:
            nursery.start_soon(ask, server)
            await agent.started.wait()
            [first] = await stored_responses(server.runtime)
    return first.id, received[0], server.secret


async def read_all(connection):
    """Read until the server closes the connection."""
    return b"".join([data async for data in connection])


async def test_a_request_without_an_answer_when_the_server_stops_can_be_retried(path):
    agent = Agent()
    response_id, received, secret = await stop_beside(path, agent, YES, read_all)
    assert received.startswith(b"HTTP/1.1 503 ")
    head = received.lower()
    assert b"\r\nretry-after: 1\r\n" in head
    assert b"\r\nx-should-retry: true\r\n" in head
    assert b'"code":"draining"' in head
    agent.open.set()
    async with http_server(path, agent, secret=secret) as server:
        status, answer = await post(server, YES, retry=1)
        assert (status, answer["id"], text_of(answer)) == (200, response_id, "yes 2")
        assert len(await stored_responses(server.runtime)) == 1


async def test_a_stream_without_an_end_when_the_server_stops_is_cut(path):
    agent, body = Agent(), {**YES, "stream": True}
    response_id, received, secret = await stop_beside(path, agent, body, read_all)
    assert response_id.encode() in received
    assert not received.endswith(b"0\r\n\r\n")  # so that the client sees that it is incomplete
    agent.open.set()
    async with http_server(path, agent, secret=secret) as server:
        async with connect(server) as connection:
            await connection.send_all(request_bytes(server, body, retry=1))
            events = await read_events(connection, "response.completed")
        assert events[0]["response"]["id"] == response_id
        assert len(await stored_responses(server.runtime)) == 1
