"""Recorded turns over HTTP: what an agent was given, the bytes of its requests, and repetitions."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from urllib.parse import quote

import pytest
import trio

from hermes.agents import tool
from hermes.messages import ToolCall
from hermes.testing import ModelAnswer
from tests.support.http import http_server, new_token
from tests.support.http_models import server_with

LOOK = ModelAnswer("let me see", calls=[ToolCall("c1", "look", '{"where": "north"}')])
SECONDS = 60


@asynccontextmanager
async def looking(path, answers, seen):
    """A server whose agent may look around; `seen` notes where it did."""

    @tool
    def look(where: str) -> str:
        """Look around."""
        seen.append(where)
        return f"the sea in the {where}"

    async with server_with(path, answers, system="Be brief.", tools=[look]) as (server, model):
        yield server, server.http(timeout=SECONDS), model


def at(key, rest=""):
    return f"/api/conversations/{quote(key, safe='')}{rest}"


async def say(client, text, name="name:trip"):
    answer = await client.post(at(name, "/messages"), json={"text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_turn_shows_what_was_given_and_answered(path):
    async with looking(path, ["hi", LOOK, "blue"], []) as (_, client, model):
        await say(client, "hello")
        sent = await say(client, "what do you see?")
        listed = (await client.get(at("name:trip", "/turns"))).json()
        turn_id = sent["message_id"]
        turn = (await client.get(at("name:trip", f"/turns/{turn_id}"))).json()
        given = await client.get(at("name:trip", f"/turns/{turn_id}/calls/1/messages"))
        body = await client.get(at("name:trip", f"/turns/{turn_id}/calls/1/body"))
    assert [each["turn_id"] for each in listed["turns"]] == [turn_id, turn_id - 1]
    assert listed["next"] is None
    first, second = turn["model_calls"]
    assert (first["system"], first["model"], first["format"]) == ("Be brief.", "m", "openai")
    assert first["tools"][0]["function"]["name"] == "look"
    assert (first["earlier"], first["rows"], second["rows"]) == (2, 1, 3)
    assert [call["verdict"] for call in turn["model_calls"]] == ["same", "same"]
    assert [row["role"] for row in turn["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [(each["kind"], each["name"]) for each in turn["events"]] == [("tool", "look")]
    assert turn["input_tokens"] == listed["turns"][0]["input_tokens"] > 0
    assert turn["models"] == ["m"]
    assert [row["role"] for row in given.json()["messages"]] == [
        "user", "assistant", "user", "assistant", "tool",
    ]  # fmt: skip
    assert body.content == model.requests[-1].body
    assert body.headers["hermes-verdict"] == "same"


def damage(path, statement):
    """Change the file in another connection, as a disk or another program might."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(statement)


async def test_a_damaged_recording_hides_no_other_turn(path):
    async with looking(path, ["hi", LOOK, "blue"], []) as (_, client, _):
        first = (await say(client, "hello"))["message_id"]
        second = (await say(client, "what do you see?"))["message_id"]
        damage(path, f"UPDATE turns SET details = '{{' WHERE id = {second}")
        listed = (await client.get(at("name:trip", "/turns"))).json()["turns"]
        turn = (await client.get(at("name:trip", f"/turns/{second}"))).json()
        shown = await client.get(at("name:trip", "/history?rendered=true"))
        body = await client.get(at("name:trip", f"/turns/{second}/calls/0/body"))
    assert [(each["turn_id"], each["calls"]) for each in listed] == [(second, 0), (first, 1)]
    assert turn["error"] == "what was recorded of this turn cannot be read any more"
    assert [row["role"] for row in turn["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert len(shown.json()["messages"]) == 6
    assert body.status_code == 404


async def test_damaged_texts_of_a_recording_hide_no_call(path):
    async with looking(path, ["hi"], []) as (_, client, _):
        turn_id = (await say(client, "hello"))["message_id"]
        damage(path, "UPDATE contents SET content = '{'")
        turn = (await client.get(at("name:trip", f"/turns/{turn_id}"))).json()
    (call,) = turn["model_calls"]
    assert (call["model"], call["tools"]) == (None, [])
    assert call["verdict"] != "same"
    assert [row["text"] for row in turn["messages"]] == ["hello", "hi"]


async def test_rendered_messages_say_how_their_turns_went(path):
    @tool
    def look(where: str) -> str:
        """Look around."""
        if where == "down":
            raise ValueError("nothing to see")
        return "error is how this result begins"

    both = [ToolCall("c1", "look", '{"where": "up"}'), ToolCall("c2", "look", '{"where": "down"}')]
    again = ModelAnswer("", calls=[ToolCall("c1", "look", '{"where": "up"}')])
    answers = [ModelAnswer("wait", calls=both), "done", again, again, "yes", "no"]
    async with server_with(path, answers, tools=[look]) as (server, _):
        client = server.http(timeout=SECONDS)
        ids = [(await say(client, text))["message_id"] for text in ("hello", "twice")]
        pages = [
            (await client.get(at("name:trip", f"/history{query}"))).json()["messages"]
            for query in ("?rendered=true", "")
        ]
        state = (await client.get(at("name:trip", "/snapshot?rendered=true"))).json()
        await server.runtime.conversation(state["session_key"]).branch(before=pages[0][5]["id"])
        branch = (await client.get(at("name:trip", "/history?rendered=true"))).json()["messages"]
    rows = state["history"]["messages"]
    assert pages[0] == rows
    assert [row["turn_id"] for row in rows] == [ids[0]] * 5 + [ids[1]] * 6
    told = {row["text"]: row["failed"] for row in rows[:5] if row["role"] == "tool"}
    assert sorted(told.values()) == [False, True]
    assert told["error is how this result begins"] is False
    assert all(row["duration"] >= 0 for row in rows[2:4])
    assert all("duration" not in row for row in [*rows[:2], *rows[4:]])  # an id that is used twice
    assert [row["text"] for row in branch] == [row["text"] for row in rows[:5]]
    without = [*pages[1], *branch]  # plain rows, and copies of rows
    assert not any({"turn_id", "duration", "failed"} & row.keys() for row in without)


async def test_the_list_has_pages(path):
    async with looking(path, [], []) as (_, client, _model):
        ids = [(await say(client, f"hello {n}"))["message_id"] for n in range(5)]
        seen, query = [], {"limit": 2}
        while True:
            page = (await client.get(at("name:trip", "/turns"), params=query)).json()
            seen += [turn["turn_id"] for turn in page["turns"]]
            if page["next"] is None:
                break
            query["before"] = page["next"]
    assert seen == ids[::-1]


async def test_an_agent_without_our_client_has_messages_and_no_calls(path):
    async with http_server(path) as server:
        client = server.http()
        sent = await say(client, "hello")
        turn = (await client.get(at("name:trip", f"/turns/{sent['message_id']}"))).json()
    assert [row["text"] for row in turn["messages"]] == ["hello", "echo: hello"]
    assert (turn["model_calls"], turn["calls"], turn["cost"]) == ([], 0, None)


async def test_only_the_owner_and_operators_see_a_turn(path):
    async with looking(path, [], []) as (server, client, _):
        sent = await say(client, "hello")
        rest = f"/turns/{sent['message_id']}"
        key = (await client.get(at("name:trip"))).json()["session_key"]
        bob = await new_token(server.runtime, "bob")
        root = await new_token(server.runtime, "root", roles=("user", "operator"))
        for url in (at(key, rest), at(key, f"{rest}/calls/0/body"), at("name:trip", rest)):
            assert (await server.http(bob).get(url)).status_code == 404
        assert (await server.http(bob).post(at(key, f"{rest}/repeat"), json={})).status_code == 404
        assert (await server.http(root).get(at(key, rest))).status_code == 200


@pytest.mark.parametrize("rest", ["/turns/999", "/turns/x", "/turns/1/calls/7/body",
                                  "/turns/1/calls/x/body"])  # fmt: skip
async def test_what_does_not_exist_is_not_found(path, rest):
    async with looking(path, [], []) as (_, client, _model):
        await say(client, "hello")
        assert (await client.get(at("name:trip", rest))).status_code == 404


async def finished(client, started):
    """Wait for the repeated turn; returns its record."""
    with trio.fail_after(SECONDS):
        while True:
            rest = f"/messages/{started['turn_id']}"
            if (await client.get(at(started["conversation"], rest))).json()["state"] == "done":
                break
            await trio.sleep(0.01)
    rest = f"/turns/{started['turn_id']}"
    return (await client.get(at(started["conversation"], rest))).json()


async def test_a_turn_runs_again_in_a_branch_with_recorded_results(path):
    seen = []
    async with looking(path, ["hi", LOOK, "blue", "you are welcome", LOOK, "green"], seen) as (
        _,
        client,
        model,
    ):
        await say(client, "hello")
        sent = await say(client, "what do you see?")
        await say(client, "thanks")
        asked = await client.post(
            at("name:trip", f"/turns/{sent['message_id']}/repeat"),
            json={"text": "and now?", "model": "large", "instructions": "Speak like a pirate."},
        )
        assert asked.status_code == 201, asked.text
        turn = await finished(client, asked.json())
        listed = (await client.get("/api/conversations")).json()["conversations"]
        texts = (await client.get(at(asked.json()["conversation"], "/history"))).json()["messages"]
    assert seen == ["north"]
    assert [row["text"] for row in texts if row["text"]] == [
        "hello", "hi", "and now?", "let me see", "the sea in the north", "green",
    ]  # fmt: skip
    assert turn["repeats"] == {"conversation": "name:trip", "turn_id": sent["message_id"]}
    assert turn["models"] == ["large"]
    assert "pirate" in turn["model_calls"][0]["injected"][0]["content"]
    assert b"pirate" in model.requests[-1].body
    assert len(listed) == 2
