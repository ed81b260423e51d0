"""Event streams over HTTP: where they begin, what they repeat, and when they end."""

from __future__ import annotations

from urllib.parse import quote

import h11
import pytest
import trio

from hermes import Config
from hermes.adapters.http.api.streams.changes import Known
from hermes.adapters.http.api.streams.channels import MAX_ENTRIES, Channel, Numbers
from hermes.adapters.http.api.streams.state import ListEvent
from hermes.messages import ConversationSettings, ConversationView, Head, OpenMessage, StoredMessage
from tests.support.event_clients import open_events
from tests.support.held_turns import HeldAgent
from tests.support.http import http_server, new_token
from tests.support.processes import foreign

PATH = "/api/conversations/name:a"
EVENTS = f"{PATH}/events"


async def say(client, text, path=PATH):
    return await client.post(f"{path}/messages", json={"text": text})


async def test_a_stream_begins_with_the_state_and_continues_it(path):
    async with http_server(path) as server:
        client = server.http()
        await say(client, "one")
        async with open_events(server, EVENTS) as stream:
            kind, state = await stream.next()
            assert kind == "reset"
            assert [row["text"] for row in state["history"]["messages"]] == ["one", "echo: one"]
            await say(client, "two")
            ended = await stream.until("turn_ended")
            rows = ended["changes"]["history"]["messages"]
            assert [row["text"] for row in rows] == ["two", "echo: two"]
            await client.patch(PATH, json={"model": "m"})
            changed = await stream.until("changed")
            assert changed["changes"] == {"settings": {"model": "m"}}


async def test_a_client_that_comes_back_gets_what_it_has_missed(path):
    async with http_server(path) as server:
        client = server.http()
        async with open_events(server, EVENTS) as stream:
            await stream.next()
            await say(client, "one")
            await stream.until("turn_ended")
        await say(client, "two")
        async with open_events(server, EVENTS, last_id=stream.last_id) as again:
            assert (await again.next())[0] == "message_accepted"
        path = f"{EVENTS}?last_event_id={stream.last_id}"
        async with open_events(server, path) as again:
            assert (await again.next())[0] == "message_accepted"


async def test_an_id_of_another_process_or_conversation_starts_with_the_state(path):
    async with http_server(path) as server:
        async with open_events(server, EVENTS) as stream:
            await stream.next()
        process, name, attempt, number = stream.last_id.split(".")
        wrong = (
            f"other.{name}.{attempt}.{number}", f"{process}.other.{attempt}.{number}",
            f"{process}.{name}.{attempt}.999999", f"{process}.{name}.{attempt}.-1",
            f"{process}.{name}.{attempt}.٣", f"{process}.{name}.x.{number}",
            f"{process}.{name}.{number}", f"{process}.{name}", "x",
        )  # fmt: skip
        for last_id in wrong:
            path = f"{EVENTS}?last_event_id={quote(last_id)}"
            async with open_events(server, path) as stream:
                assert (await stream.next())[0] == "reset"


async def test_the_text_so_far_is_in_the_state(path):
    held = HeldAgent()
    async with http_server(path, held) as server:
        client = server.http()
        await client.post(f"{PATH}/messages", json={"text": "a", "background": True})
        await held.wait_started()
        state = (await client.get(f"{PATH}/snapshot")).json()
        assert state["turn"]["inbox_ids"] == [message["inbox_id"] for message in state["waiting"]]
        held.release()


@pytest.mark.parametrize("events", [EVENTS, f"{EVENTS}?rendered=true"])
async def test_the_ids_of_events_name_the_attempt_of_the_turn(path, events):
    held = HeldAgent()
    async with http_server(path, held, runtime_config=Config(drain_timeout=0.01)) as server:
        await server.http().post(f"{PATH}/messages", json={"text": "a", "background": True})
        await held.wait_started()
        async with open_events(server, events) as stream:
            await stream.next()
            assert stream.last_id.split(".")[2] == "1"
    foreign(path, "UPDATE inbox SET attempts = 1")  # as if the process had been killed
    async with http_server(path, held, secret=server.secret) as server:
        async with open_events(server, events) as stream:
            await stream.next()
            held.release(1)
            await stream.until("turn_ended")
            assert stream.last_id.split(".")[2] == "2"


async def test_the_list_shows_conversations_of_the_caller_only(path):
    async with http_server(path) as server:
        client = server.http()
        bob = server.http(await new_token(server.runtime, "bob"))
        secret = await new_token(server.runtime, "op", roles=("operator",))
        await say(client, "one")
        async with (
            open_events(server, "/api/events") as mine,
            open_events(server, "/api/events", secret=secret) as all_of,
        ):
            assert len((await mine.until("reset"))["conversations"]) == 1
            await all_of.until("reset")
            await say(bob, "other")
            await say(client, "two")
            key = (await client.get(PATH)).json()["session_key"]
            assert (await mine.until("conversation"))["session_key"] == key
            seen = set()
            while len(seen) < 2:
                seen.add((await all_of.until("conversation"))["session_key"])


async def test_a_change_of_another_process_reaches_the_stream(path):
    async with http_server(path) as server:
        client = server.http()
        await say(client, "one")
        async with open_events(server, EVENTS) as stream:
            await stream.next()
            await server.runtime.conversation((await client.get(PATH)).json()["session_key"]).undo()
            changed = await stream.until("changed")
            assert changed["changes"]["history"]["messages"] == []


async def test_streams_end_with_the_server(path):
    async with http_server(path) as server:
        manager = open_events(server, EVENTS)
        stream = await manager.__aenter__()
        await stream.next()
    assert await stream.next() is None
    await manager.__aexit__(None, None, None)


async def test_a_stream_ends_when_its_token_is_revoked(path):
    async with http_server(path) as server:
        secret = await new_token(server.runtime, "laptop")
        async with open_events(server, EVENTS, secret=secret) as stream:
            await stream.next()
            await server.runtime.api.revoke_token("laptop")
            with trio.fail_after(30), pytest.raises(h11.RemoteProtocolError):
                await stream.next()


# Channels and changes


def test_a_channel_keeps_its_latest_events():
    async def main():
        channel = Channel("a", Numbers("p"))
        first = channel.event_id(channel.numbers.last)
        assert channel.position(first) is not None
        for _ in range(MAX_ENTRIES + 1):
            channel.emit("x", "k", ListEvent(session_key="k", conversation=None, turn_id=None))
        assert channel.position(first) is None
        assert channel.position(channel.event_id(channel.numbers.last)) == channel.numbers.last
        assert len(channel.after(0)) == MAX_ENTRIES

    trio.run(main)


def view(ids, *, earlier=False, waiting=(), rewrites=0, appended=False):
    return ConversationView(
        session_key="k",
        head=Head("s", len(ids), 1, rewrites),
        rows=tuple(
            [StoredMessage(id=each, role="user", content="", timestamp=0.0) for each in ids]
        ),
        appended=appended,
        earlier=earlier,
        title=None,
        settings=ConversationSettings(),
        archived=False,
        waiting=tuple(
            [OpenMessage(inbox_id=n, text="", platform="", accepted_at=0.0) for n in waiting]
        ),
        approvals=(),
        stamp=None,
    )


def test_a_page_that_begins_after_what_is_known_replaces_it():
    known = Known.of(view([1, 2]), None)
    history = known.update(view([8, 9], earlier=True)).history
    assert history.replace
    known = Known.of(view([1, 2]), None)
    history = known.update(view([2, 3], earlier=True)).history
    assert ([row.id for row in history.messages], history.replace) == ([3], False)


def test_a_message_that_was_closed_without_an_event_waits_no_more():
    known = Known.of(view([1], waiting=[7]), None)
    assert known.update(view([1])).waiting == []


async def test_a_head_request_of_a_stream_ends(path):
    agent = HeldAgent()
    async with http_server(path, agent) as server:
        client = server.http(timeout=30)
        body = {"model": "hermes", "input": "hi", "background": True}
        response = (await client.post("/v1/responses", json=body)).json()
        for url in (EVENTS, "/api/events", f"/v1/responses/{response['id']}?stream=true"):
            answer = await client.head(url)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
        metrics = server.http(await new_token(server.runtime, "prometheus", roles=("metrics",)))
        assert "hermes_http_streams 1.0\n" in (await metrics.get("/metrics")).text  # its own
        agent.release()
