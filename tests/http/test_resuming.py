"""Streams that go on after a crash, and after their frames are no longer in memory."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import apsw
import httpx2
import pytest
import trio
import trio.testing

from hermes import Config, open_runtime
from hermes.adapters.http import HttpConfig, serve_http
from hermes.adapters.http.turns.logs import TurnLogs
from hermes.adapters.http.turns.recording import Recorder
from hermes.events import Envelope, TextDelta, TurnEnded, TurnStarted
from hermes.messages import Reply, StoredResponse
from tests.support.http import Server, http_server, new_token
from tests.support.raw_http import connect, read_events, request_bytes, stored_responses


class Agent:
    """Says a word, and goes on when it is told to."""

    def __init__(self, words):
        self.words = words
        self.said = trio.Event()
        self.go = trio.Event()

    async def __call__(self, turn):
        turn.emit(TextDelta(self.words[0]))
        self.said.set()
        await self.go.wait()
        for word in self.words[1:]:
            turn.emit(TextDelta(word))
        return "".join(self.words)


async def seen_by(client, response_id, **options):
    stream = await client.responses.retrieve(response_id, stream=True, **options)
    return [event async for event in stream]


async def stop_in_the_middle(path):
    """A process that ends while a client reads; returns what the client saw."""
    agent, stopped = Agent(["It was"]), Config(drain_timeout=0.0)
    async with http_server(path, agent, runtime_config=stopped) as server:
        async with connect(server) as stream:
            await stream.send_all(request_bytes(server, {"input": "?", "stream": True}))
            return await read_events(stream, "response.output_text.delta"), server.secret


@pytest.mark.parametrize("crashed", [False, True])
async def test_after_a_restart_the_lost_items_are_incomplete(path, crashed):
    seen, secret = await stop_in_the_middle(path)
    if crashed:
        count_an_attempt(path)
    response_id, after = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    agent = Agent(["It ", "is"])
    async with http_server(path, agent, secret=secret) as server:
        client = server.openai()
        stream = await client.responses.retrieve(response_id, stream=True, starting_after=after)
        agent.go.set()
        rest = [event async for event in stream]
        numbers = [event.sequence_number for event in rest]
        assert numbers == list(range(1_000_000, 1_000_000 + len(rest)))
        assert rest[0].type == "response.created"
        final = rest[-1].response
        assert [(item.status, item.content[0].text) for item in final.output] == [
            ("incomplete", ""), ("completed", "It is"),
        ]  # fmt: skip
        assert final.output[0].id == seen[-1]["item_id"]
        assert await client.responses.retrieve(response_id) == final
        async with client.responses.stream(response_id=response_id) as helper:
            assert (await helper.get_final_response()).output_text == "It is"
    async with http_server(path, agent, secret=secret) as server:
        client = server.openai()
        assert await client.responses.retrieve(response_id) == final
        again = await seen_by(client, response_id, starting_after=after)
        assert again[0].sequence_number == 1_000_000_000
        assert again[-1].response == final


async def test_a_new_item_is_recorded_at_once(path, mock_clock):
    agent = Agent(["It was"])
    async with http_server(path, agent) as server:
        async with connect(server) as stream:
            await stream.send_all(request_bytes(server, {"input": "?", "stream": True}))
            [*_, delta] = await read_events(stream, "response.output_text.delta")
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.1)
            items = ()
            while not items:
                [stored] = await stored_responses(server.runtime)
                items = stored.items
            assert items[1]["item"]["id"] == delta["item_id"]
            agent.go.set()


def count_an_attempt(path):
    """Count the attempt, as it is if the process is killed. A stop is no reason to give up."""
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE inbox SET attempts = 1 WHERE state = 'open'")
    connection.close()


async def test_a_client_that_is_too_slow_for_memory_gets_the_response_from_the_store(path):
    agent = Agent(["x" * 1000] * 50)
    async with http_server(path, agent, config=HttpConfig(port=0, max_replay=10_000)) as server:
        client = server.openai()
        waiting = await client.responses.create(model="hermes", input="?", background=True)
        await agent.said.wait()
        early = await client.responses.retrieve(waiting.id, stream=True)
        agent.go.set()
        rest = [event async for event in early]
        assert rest[0].sequence_number == 0
        assert rest[-1].type == "response.completed"
        events = await seen_by(client, waiting.id, starting_after=1)
        assert events[0].sequence_number == 1_000_000_000
        assert events[-1].response == rest[-1].response


def test_the_logs_of_ended_turns_are_bounded():
    logs = TurnLogs(kept=1000, kept_bytes=10_000)
    reply = Reply(text="", session_id="s", turn_id=1)
    for turn_id in range(100):
        for event in (TurnStarted(turn_id, "s", None), TextDelta("x" * 100), TurnEnded(reply)):
            logs.receive(Envelope(1, "agent:main:http:dm:a:b", turn_id, event))
    kept = [turn_id for turn_id in range(100) if logs.find(turn_id)]
    assert kept == list(range(100 - len(kept), 100))
    assert 0 < len(kept) < 20


class Received:
    """A listener that keeps what it receives."""

    size = 0

    def __init__(self):
        self.events = []

    def receive(self, event):
        self.events.append(event)


def test_an_end_that_the_store_tells_first_is_received_once():
    """It is stored before it is announced, and a look at the store may come between."""
    logs, key = TurnLogs(), "agent:main:http:dm:a:b"
    reply = Reply(text="", session_id="s", turn_id=1)
    stored = StoredResponse(
        id="resp_1", credential="c", session_key=key, session_id="s", inbox_id=1, path="/",
        digest="d", idempotency_key=None, echo={}, stored=True, created_at=0.0, connection="open",
        reply=reply,
    )  # fmt: skip
    listener = logs.log(1).listener = Received()
    assert logs.awaited() == [1]
    logs.settle(1, stored)
    logs.receive(Envelope(1, key, 1, TurnEnded(reply, (1,))))
    assert listener.events == [TurnEnded(reply, (1,))]
    assert logs.log(1).events == [TurnEnded(reply, (1,))]


async def test_a_server_that_starts_during_a_turn_has_what_was_said_before(path):
    """The runtime goes on between two servers, such as apps that a host mounts."""
    agent = Agent(["It ", "is"])
    async with open_runtime(path, agent=agent) as runtime:
        secret = await new_token(runtime)
        async with serve_http(runtime, HttpConfig(port=0)) as url:
            body = {"model": "hermes", "input": "?", "background": True}
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}) as client:
                created = (await client.post(f"{url}/v1/responses", json=body)).json()
                await agent.said.wait()
        async with serve_http(runtime, HttpConfig(port=0)) as url:
            server = Server(runtime, url, secret)
            stream = await server.openai().responses.retrieve(created["id"], stream=True)
            agent.go.set()
            events = [event async for event in stream]
            await server.close_clients()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["It ", "is"]
    assert events[-1].response.output_text == "It is"


class Ending:
    """A response that runs; another one ends just before it is recorded."""

    def __init__(self, name):
        self.response = SimpleNamespace(id=name)
        self.written, self.begun_at, self.end_other = [], 0.0, None

    @property
    def seen(self):
        self.end_other()
        return [{"block": 0}]


async def test_a_response_that_has_ended_is_not_recorded_any_more():
    """Otherwise what clients have seen would replace what was lost."""
    recorded = []

    async def record_items(response_id, items):
        recorded.append(response_id)

    recorder = Recorder(SimpleNamespace(record_items=record_items))
    first, second = Ending("a"), Ending("b")
    for running, other in ((first, second), (second, first)):
        running.end_other = partial(recorder.remove, other)
        recorder.add(running)
    with trio.move_on_after(0.2):
        await recorder.run()
    assert len(recorded) == 1
