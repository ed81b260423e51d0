"""The API of Hermes: conversations, messages, verbs, approvals, usage and status."""

from __future__ import annotations

import os
from urllib.parse import quote

import pytest
import trio

from hermes import AccessPolicy, PlatformRules
from hermes.actors.event_bus import MAX_BUFFERED
from hermes.events import ApprovalAsked, Notice
from hermes.messages import Usage
from hermes.store.actor import MAX_WAITING
from hermes.testing import inspect
from tests.support.held_turns import HeldAgent
from tests.support.http import http_server, new_token

NAME = "name:trip to Rome/Lazio: 100%"


def at(name=NAME, rest=""):
    return f"/api/conversations/{quote(name, safe='')}{rest}"


async def say(client, text, name=NAME, *, key=None, **fields):
    headers = {} if key is None else {"Idempotency-Key": key}
    response = await client.post(
        at(name, "/messages"), json={"text": text, **fields}, headers=headers
    )
    assert response.status_code == 200, response.text
    return response.json()


async def texts(client, name=NAME, **query):
    response = await client.get(at(name, "/history"), params=query)
    return [row["text"] for row in response.json()["messages"]]


async def test_a_conversation_is_created_named_archived_and_deleted(path):
    async with http_server(path) as server:
        client = server.http()
        created = (await client.post("/api/conversations", json={"id": NAME, "title": "T"})).json()
        assert (created["id"], created["title"]) == (NAME, "T")
        await say(client, "hello")
        by_key = (await client.get(at(created["session_key"]))).json()
        assert (by_key["id"], by_key["preview"], by_key["message_count"]) == (NAME, "hello", 2)
        changed = await client.patch(at(), json={"title": "U", "archived": True, "model": "m"})
        assert changed.json()["title"] == "U"
        assert changed.json()["settings"] == {"model": "m"}
        listed = (await client.get("/api/conversations")).json()["conversations"]
        assert listed == []
        archived = await client.get("/api/conversations", params={"archived": True})
        assert [each["id"] for each in archived.json()["conversations"]] == [NAME]
        await client.patch(at(), json={"archived": False})
        assert (await client.delete(at())).json() == {"messages": 2}
        assert (await client.delete(at())).json() == {"messages": 0}
        assert (await client.get(at())).status_code == 404


async def test_the_list_has_pages_and_is_searched_by_title(path):
    async with http_server(path) as server:
        client = server.http()
        for number in range(5):
            await client.post("/api/conversations", json={"title": f"Title {number}"})
        seen, query = [], {"limit": 2}
        while True:
            page = (await client.get("/api/conversations", params=query)).json()
            seen += [each["title"] for each in page["conversations"]]
            if page["next"] is None:
                break
            query["before"] = page["next"]
        assert sorted(seen) == [f"Title {number}" for number in range(5)]
        found = await client.get("/api/conversations", params={"q": "title 3"})
        assert [each["title"] for each in found.json()["conversations"]] == ["Title 3"]
        assert (await client.get("/api/conversations?before=x")).status_code == 400


async def test_a_message_with_an_idempotency_key_is_answered_once(path):
    async with http_server(path) as server:
        client = server.http()
        first, second = await say(client, "hello", key="one"), await say(client, "hello", key="one")
        assert first == second
        assert first["reply"]["text"] == "echo: hello"
        other = await client.post(
            at(rest="/messages"), json={"text": "other"}, headers={"Idempotency-Key": "one"}
        )
        assert other.status_code == 422
        assert await texts(client) == ["hello", "echo: hello"]


async def test_a_message_in_the_background_is_found_again(path):
    held = HeldAgent()
    async with http_server(path, held) as server:
        client = server.http()
        sent = await client.post(at(rest="/messages"), json={"text": "a", "background": True})
        assert sent.status_code == 202
        await held.wait_started()
        waiting = await client.post(at(rest="/messages"), json={"text": "b", "background": True})
        place = at(rest=f"/messages/{waiting.json()['message_id']}")
        assert (await client.get(place)).json()["state"] == "open"
        assert (await client.delete(place)).json() == {"withdrawn": True}
        assert (await client.get(place)).json()["reply"]["status"] == "withdrawn"
        assert (await client.post(at(rest="/interrupt"))).json() == {"interrupted": True}
        assert (await client.get(at("name:other", "/messages/1"))).status_code == 404


@pytest.mark.parametrize("first", [True, False])
async def test_an_edit_that_is_sent_again_is_done_once(path, first):
    """Without an Idempotency-Key; also if only the branch was made, by a process that died."""
    async with http_server(path) as server:
        client = server.http()
        for text in ("one", "two"):
            original = (await say(client, text))["session_id"]
        rows = (await client.get(at(rest="/history"))).json()["messages"]
        edited = rows[0 if first else 2]["id"]
        if not first:
            await client.post(at(rest="/branch"), json={"before": edited})

        async def edit(text):
            return await client.post(at(rest="/edit"), json={"message": edited, "text": text})

        sent = await edit("2")
        assert sent.status_code == 200, sent.text
        kept = [] if first else ["one", "echo: one"]
        assert await texts(client) == [*kept, "2", "echo: 2"]
        again = await edit("2")
        assert again.json() == sent.json()
        assert await texts(client) == [*kept, "2", "echo: 2"]
        assert (await edit("3")).status_code == 400  # it is not in the branch
        sessions = (await client.get(at(rest="/sessions"))).json()["sessions"]
        assert len(sessions) == 2
        await client.post(at(rest="/switch"), json={"target": original})
        other = await edit("2")
        assert other.json()["message_id"] != sent.json()["message_id"]
        assert await texts(client) == [*kept, "2", "echo: 2"]


async def test_edits_at_the_same_time_are_one(path):
    async with http_server(path) as server:
        client, answers = server.http(), []
        await say(client, "one")
        [row, _] = (await client.get(at(rest="/history"))).json()["messages"]

        async def edit():
            body = {"message": row["id"], "text": "2"}
            answers.append(await client.post(at(rest="/edit"), json=body))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(edit)
        assert {each.status_code for each in answers} == {200}
        assert len({each.json()["message_id"] for each in answers}) == 1
        assert await texts(client) == ["2", "echo: 2"]


async def test_an_edit_continues_in_a_branch(path):
    async with http_server(path) as server:
        client = server.http()
        await say(client, "one")
        await say(client, "two")
        rows = (await client.get(at(rest="/history"))).json()["messages"]
        edited = await client.post(
            at(rest="/edit"), json={"message": rows[2]["id"], "text": "2"},
            headers={"Idempotency-Key": "edit"},
        )  # fmt: skip
        assert edited.status_code == 200
        expected = ["one", "echo: one", "2", "echo: 2"]
        assert await texts(client) == expected
        again = await client.post(
            at(rest="/edit"), json={"message": rows[2]["id"], "text": "2"},
            headers={"Idempotency-Key": "edit"},
        )  # fmt: skip
        assert again.json() == edited.json()
        assert await texts(client) == expected
        sessions = (await client.get(at(rest="/sessions"))).json()["sessions"]
        original = next(each for each in sessions if each["session"]["kind"] == "new")
        kept = await texts(client, session_id=original["session"]["id"])
        assert kept == ["one", "echo: one", "two", "echo: two"]
        unknown = await client.post(at(rest="/edit"), json={"message": 1, "text": "x"})
        assert unknown.status_code == 400


async def test_verbs_change_the_session_once(path):
    async with http_server(path) as server:
        client = server.http()
        await say(client, "one")
        await say(client, "two")
        rows = (await client.get(at(rest="/history"))).json()["messages"]
        undone = await client.post(at(rest="/undo"), json={"last": rows[-1]["id"]})
        assert undone.json()["removed"] == 2
        repeated = await client.post(at(rest="/undo"), json={"last": rows[-1]["id"]})
        assert repeated.status_code == 409
        assert (await client.post(at(rest="/retry"), json={})).json()["reply"][
            "status"
        ] == "complete"
        session_id = undone.json()["session_id"]
        body = {"session_id": session_id, "title": "next"}
        assert (await client.post(at(rest="/new"), json=body)).json()["changed"]
        assert (await client.post(at(rest="/new"), json=body)).status_code == 409
        back = await client.post(at(rest="/switch"), json={"target": session_id})
        assert back.json()["session_id"] == session_id
        copied = await client.post(at(rest="/branch"), json={"to": "name:copy"})
        assert copied.json()["changed"]
        assert await texts(client, "name:copy") == await texts(client) == ["one", "echo: one"]
        assert (await client.post(at(rest="/compress"), json={})).status_code == 200
        assert (await client.post(at(rest="/close"), json={})).json()["changed"]


async def test_a_search_finds_only_what_belongs_to_the_caller(path):
    async with http_server(path) as server:
        other = await new_token(server.runtime, "bob")
        patterns = await new_token(server.runtime, "eve", keys=("agent:main:http:dm:an?:name*",))
        await say(server.http(), "the heron waits")
        await say(server.http(other), "a heron flies")
        for secret, count in ((server.secret, 1), (other, 1), (patterns, 1)):
            found = (await server.http(secret).get("/api/search?q=heron")).json()["hits"]
            assert len([hit for hit in found if hit["role"] == "user"]) == count
        operator = server.http(await new_token(server.runtime, "op", roles=("operator",)))
        found = (await operator.get("/api/search?q=heron")).json()["hits"]
        assert len([hit for hit in found if hit["role"] == "user"]) == 2


async def test_another_tenant_finds_nothing(path):
    async with http_server(path) as server:
        sent = await say(server.http(), "secret words")
        key = sent["session_key"]
        bob = server.http(await new_token(server.runtime, "bob"))
        for name in (key, quote(key), "agent:main:http:dm:ann:", f"{key}x"):
            assert (await bob.get(at(name))).status_code == 404
            assert (await bob.get(at(name, "/events"))).status_code == 404
            assert (await bob.post(at(name, "/undo"), json={})).status_code == 404
        assert (await bob.get("/api/conversations")).json()["conversations"] == []
        assert (await bob.get(at(rest="/history"))).json()["messages"] == []
        assert (await bob.get(at(rest=f"/messages/{sent['message_id']}"))).status_code == 404
        operator = server.http(await new_token(server.runtime, "op", roles=("operator",)))
        assert await texts(operator, key) == ["secret words", "echo: secret words"]


async def test_a_file_of_another_conversation_cannot_be_sent(path):
    async with http_server(path) as server:
        part = {"data": "aGVsbG8=", "name": "a.txt"}
        await say(server.http(), "look", parts=[part])
        rows = (await server.http().get(at(rest="/history"))).json()["messages"]
        stolen = {"text": "look", "parts": [{"file": rows[0]["parts"][0]["file"]}]}
        bob = server.http(await new_token(server.runtime, "bob"))
        refused = await bob.post(at(rest="/messages"), json=stolen)
        assert refused.status_code == 404


async def test_usage_is_listed_by_turn(path):
    async def agent(turn):
        turn.charge(Usage(model="m", input_tokens=3, output_tokens=2, cost=0.5))
        return "answer"

    async with http_server(path, agent) as server:
        client = server.http()
        sent = await say(client, "one")
        await say(client, "two")
        used = (await client.get(at(rest="/usage"))).json()
        assert [turn["input_tokens"] for turn in used["turns"]] == [3, 3]
        assert used["turns"][1]["turn_id"] == sent["message_id"]
        assert used["cost"] == 1.0
        assert (await client.get("/api/usage")).json() == {"caller": 1.0, "everybody": None}


async def test_operators_see_the_state_of_the_runtime(path):
    held = HeldAgent()
    async with http_server(path, held) as server:
        await server.http().post(at(rest="/messages"), json={"text": "a", "background": True})
        await held.wait_started()
        client = server.http(await new_token(server.runtime, "op", roles=("operator",)))
        state = (await client.get("/api/status")).json()
        [actor] = state["actors"]
        assert actor["turn_id"] == 1
        assert actor["turn_seconds"] >= 0
        assert (actor["has_agent"], actor["last_build"]) == (True, "cold")
        assert state["statistics"]["running"] == 1
        assert state["states"] == {"running": 1, "quarantined": 0}
        assert (await server.http().get("/api/status")).status_code == 403
        status = (await server.http().get(at(rest="/status"))).json()
        assert status["busy"]
        await server.http().post(at(rest="/interrupt"))


async def test_the_status_has_sizes_levels_and_losses(path):
    async def agent(turn):
        turn.charge(Usage(model="m", input_tokens=6, cache_read_tokens=2))
        if turn.text == "fail":
            raise ValueError
        return "ok"

    access = AccessPolicy(rules={"http": PlatformRules(pairing=False)})
    async with http_server(path, agent, access=access) as server:
        user = server.http()
        for text in ("a", "b", "fail"):
            await say(user, text)
        client = server.http(await new_token(server.runtime, "op", roles=("operator",)))
        assert (await user.post(at(rest="/messages"), json={"text": "/pair"})).status_code == 403
        slow = server.runtime.subscribe()
        for _ in range(MAX_BUFFERED + 3):
            inspect(server.runtime).context.bus.publish("k", None, Notice("n"))
        state = (await client.get("/api/status")).json()
        assert slow.lost == state["events"]["lost"] == 3
        assert state["events"]["published"] > MAX_BUFFERED > state["events"]["subscribers"] > 1
        store = state["store"]
        assert (store["queue"], store["queue_limit"]) == (0, MAX_WAITING)
        assert store["database_bytes"] > 4096
        assert store["wal_bytes"] == path.with_name(f"{path.name}-wal").stat().st_size > 0
        assert store["disk_free_bytes"] > 0 <= store["free_bytes"]
        assert (store["sessions"], store["conversations"]) == ({"open": 1, "ended": 0}, 1)
        assert store["unindexed"] >= 0
        cache = state["cache"]
        assert (cache["hits"], cache["misses"], cache["rebuilds"]) == (2, 1, {"cold": 1})
        assert cache["hit_rate"] == 2 / 3
        assert cache["cached_token_share"] == 0.25
        admission = state["admission"]
        assert (admission["senders"], admission["refused"]) == (1, 1)
        [level] = admission["lowest"]
        assert (level["platform"], level["left"] < admission["burst"]) == ("http", True)
        [model] = state["host"]["models"]
        assert (model["model"], model["calls"], model["failures"]) == ("m", 3, 1)
        assert model["last_error"] == "ValueError"
        assert state["host"]["pid"] == os.getpid()
        assert state["http"]["requests"] == 1


async def ask_first(turn):
    """Ask for an approval, and say what was decided."""
    if not turn.decided_calls:
        approval = await turn.records.ask_approval(
            turn.session_key, "order", '{"bird":"heron"}', delivery="host"
        )
        turn.emit(ApprovalAsked(approval))
        return "asked"
    return f"decided {turn.decided_calls}"


async def test_a_tool_call_is_decided_once(path):
    async with http_server(path, ask_first) as server:
        client = server.http()
        await say(client, "order a heron")
        [approval] = (await client.get(at(rest="/approvals"))).json()["approvals"]
        number = approval["approval_id"]
        bob = server.http(await new_token(server.runtime, "bob"))
        place = at(rest=f"/approvals/{number}")
        assert (await bob.post(place, json={"approve": True})).status_code == 404
        for _ in range(2):
            decided = await client.post(place, json={"approve": True, "always": True})
            assert decided.json()["state"] == "approved"
        refused = await client.post(place, json={"approve": False})
        assert refused.status_code == 409
        assert (await client.get(at(rest="/approvals"))).json() == {"approvals": []}
        assert (await client.get(at(rest="/tools"))).json() == {"tools": ["order"]}
        for revoked in (True, False):
            response = await client.delete(at(rest="/tools/order"))
            assert response.json() == {"revoked": revoked}
        assert (
            await client.post(at(rest="/approvals/99"), json={"approve": True})
        ).status_code == 404


async def test_waiting_calls_are_listed_across_conversations(path):
    """Everybody sees those of its own; an operator, and a token with a pattern, those of others."""
    async with http_server(path, ask_first) as server:
        ann, bob = server.http(), server.http(await new_token(server.runtime, "bob"))
        for client, name in ((ann, "a"), (bob, "b"), (ann, "c"), (bob, "d")):
            await say(client, "order a heron", f"name:{name}")
        operator = server.http(await new_token(server.runtime, "op", roles=("operator",)))
        keys = ("agent:main:http:dm:*:name%3Ad",)
        narrow = server.http(await new_token(server.runtime, "narrow", keys=keys))

        async def listed(client, **query):
            page = (await client.get("/api/approvals", params=query)).json()
            return [each["asked_of"][-1] for each in page["approvals"]], page["next"]

        assert await listed(ann) == (["a", "c"], None)
        assert await listed(bob) == (["b", "d"], None)
        assert await listed(operator) == (["a", "b", "c", "d"], None)
        assert await listed(narrow) == (["d"], None)
        assert (await listed(narrow, limit=1))[0] == ["d"]
        first, following = await listed(operator, limit=3)
        assert first == ["a", "b", "c"]
        assert await listed(operator, limit=3, after=following) == (["d"], None)
        [oldest, _] = (await ann.get("/api/approvals")).json()["approvals"]
        place = f"/approvals/{oldest['approval_id']}"
        await ann.post(at(oldest["asked_of"], place), json={"approve": False})
        assert await listed(operator) == (["b", "c", "d"], None)


async def test_an_edit_or_branch_before_a_message_needs_that_message(path):
    async with http_server(path) as server:
        client = server.http()
        url = "/api/conversations/name:empty"
        edited = await client.post(f"{url}/edit", json={"message": 1, "text": "x"})
        branched = await client.post(f"{url}/branch", json={"before": 1, "to": "name:copy"})
        assert (edited.status_code, branched.status_code) == (400, 400)
        assert (await client.get(f"{url}/history")).json()["messages"] == []
