"""Conversations through the stock SDK."""

from __future__ import annotations

import openai
import pytest
import trio

from hermes.adapters.http.credentials import Caller
from hermes.events import TextDelta
from hermes.messages import ApiRequest, Inbound, Source
from hermes.store import SessionStore
from tests.support.http import echo, http_server, new_token


async def test_an_empty_conversation_survives_a_restart(path):
    async with http_server(path) as server:
        client, secret = server.openai(), server.secret
        created = await client.conversations.create(metadata={"topic": "birds"})
        assert created.metadata == {"topic": "birds"}
    async with http_server(path, secret=secret) as server:
        client = server.openai()
        assert await client.conversations.retrieve(created.id) == created
        updated = await client.conversations.update(created.id, metadata={"topic": "cats"})
        assert updated.metadata == {"topic": "cats"}
        assert updated.created_at == created.created_at
        answer = await client.responses.create(model="hermes", input="hi", conversation=created.id)
        assert answer.conversation.id == created.id


async def test_a_conversation_that_a_response_has_begun_has_its_time(path):
    async with http_server(path) as server:
        client = server.openai()
        answer = await client.responses.create(model="hermes", input="hi")
        found = await client.conversations.retrieve(answer.conversation.id)
        assert 0 <= found.created_at - answer.created_at <= 5
        changed = await client.conversations.update(found.id, metadata={"topic": "birds"})
        assert changed.created_at == found.created_at


async def test_a_conversation_is_created_without_a_body_but_not_with_system_messages(path):
    async with http_server(path) as server:
        http = server.http()
        assert (await http.post("/v1/conversations")).json()["object"] == "conversation"
        body = {"items": [{"role": "system", "content": "Be brief."}]}
        refused = await http.post("/v1/conversations", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "items")
        assert "instructions" in refused.json()["error"]["message"]


async def test_the_items_of_a_conversation(path):
    seen = []

    async def agent(turn):
        seen.append([message.content for message in turn.messages()])
        return f"to {turn.text}"

    async with http_server(path, agent) as server:
        client = server.openai()
        conversation = await client.conversations.create(
            items=[{"type": "message", "role": "user", "content": "My name is Ann."}]
        )
        added = await client.conversations.items.create(
            conversation.id, items=[{"type": "message", "role": "assistant", "content": "Hello!"}]
        )
        await client.responses.create(model="hermes", input="1", conversation=conversation.id)
        assert seen == [["My name is Ann.", "Hello!", "1"]]
        items = client.conversations.items
        listed = [item async for item in items.list(conversation.id, order="asc")]
        texts = [item.content[0].text for item in listed]
        assert texts == ["My name is Ann.", "Hello!", "1", "to 1"]
        assert [item.role for item in listed] == ["user", "assistant", "user", "assistant"]
        assert listed[1] == added.data[0]
        newest = await items.list(conversation.id, limit=1)
        assert newest.data == [listed[-1]]
        assert newest.has_more
        pages = [item async for item in items.list(conversation.id, limit=1)]
        assert pages == listed[::-1]
        assert await items.retrieve(listed[2].id, conversation_id=conversation.id) == listed[2]
        with pytest.raises(openai.NotFoundError):
            await items.retrieve("msg_0", conversation_id=conversation.id)
        with pytest.raises(openai.BadRequestError, match="cannot be deleted"):
            await items.delete(listed[2].id, conversation_id=conversation.id)
        with pytest.raises(openai.BadRequestError, match="limit"):
            await items.list(conversation.id, limit=1000)


async def test_a_deleted_conversation_takes_its_responses_along(path):
    started, turns = trio.Event(), []

    async def agent(turn):
        turns.append(turn.text)
        if turn.text == "wait":
            turn.emit(TextDelta("I am"))
            started.set()
            await trio.sleep_forever()
        return "done"

    async with http_server(path, agent) as server:
        client = server.openai()
        conversation = (await client.conversations.create()).id
        create = client.responses.create
        first = await create(model="hermes", input="1", conversation=conversation)
        running = await create(
            model="hermes", input="wait", conversation=conversation, background=True
        )
        await started.wait()
        waiting = await create(
            model="hermes", input="3", conversation=conversation, background=True
        )
        deleted = await client.conversations.delete(conversation)
        assert deleted.deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(conversation)
        for response in (first, running, waiting):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(response.id)
        assert turns == ["1", "wait"]


async def test_a_conversation_belongs_to_its_token(path):
    async with http_server(path) as server:
        conversation = await server.openai().conversations.create()
        stranger = server.openai(await new_token(server.runtime, "bob"))
        for call in (
            stranger.conversations.retrieve, stranger.conversations.delete,
            stranger.conversations.items.list,
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                await call(conversation.id)
        with pytest.raises(openai.NotFoundError):
            await stranger.responses.create(model="hermes", input="?", conversation=conversation.id)


async def test_a_deleted_conversation_leaves_no_response_that_was_withdrawn(path):
    async with http_server(path, echo) as server:
        client = server.openai()
        conversation = await client.conversations.create()
        [token] = await server.runtime.api.list_tokens()
        key = Caller(token).key(conversation.id)
        request = ApiRequest(
            id="resp_1", credential=token.id, path="/v1/responses", digest="", process="p"
        )
        with SessionStore(path) as store:  # no turn has begun when it is withdrawn
            source = Source("http", conversation.id)
            accepted = store.accept(Inbound(key, "e", "birds", source, request=request))
            assert store.withdraw(key, accepted.receipt.inbox_id)
        assert (await client.responses.retrieve("resp_1")).status == "cancelled"
        await client.conversations.delete(conversation.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_1")


async def test_the_input_of_a_response(path):
    started, go = trio.Event(), trio.Event()

    async def agent(turn):
        started.set()
        await go.wait()
        return "done"

    async with http_server(path, agent) as server:
        client = server.openai()
        waiting = await client.responses.create(model="hermes", input="what?", background=True)
        await started.wait()
        early = [item async for item in client.responses.input_items.list(waiting.id)]
        go.set()
        async for _ in await client.responses.retrieve(waiting.id, stream=True):
            pass
        late = [item async for item in client.responses.input_items.list(waiting.id)]
        assert early == late
        assert [item.content[0].text for item in late] == ["what?"]


async def test_a_running_response_is_steered(path):
    started, taken = trio.Event(), []

    async def agent(turn):
        turn.emit(TextDelta("I look at birds. "))
        started.set()
        while not taken:
            taken.extend(message.content for message in turn.steered())
            await trio.lowlevel.checkpoint()
        turn.emit(TextDelta("And at cats."))
        return "And at cats."

    async with http_server(path, agent) as server:
        client = server.openai()
        running = await client.responses.create(model="hermes", input="birds", background=True)
        await started.wait()
        url = f"/v1/responses/{running.id}/steer"
        steered = await server.http().post(url, json={"input": "cats, too"})
        assert steered.status_code == 200
        shown = steered.json()
        assert (shown["id"], shown["status"]) == (running.id, "in_progress")
        async for event in await client.responses.retrieve(running.id, stream=True):
            final = event
        assert taken == ["cats, too"]
        assert final.response.output[-1].content[0].text == "And at cats."
        own = await client.responses.retrieve(shown["steering_response_id"])
        assert (own.status, own.output_text) == ("completed", final.response.output_text)
        for each, said in ((running.id, "birds"), (own.id, "cats, too")):
            [item] = [item async for item in client.responses.input_items.list(each)]
            assert item.content[0].text == said
        refused = await server.http().post(url, json={"input": "and dogs"})
        assert refused.status_code == 409


async def test_messages_that_are_stored_together_are_the_input_of_their_own_responses(path):
    started, go, said = trio.Event(), trio.Event(), {}

    async def agent(turn):
        started.set()
        await go.wait()
        assert len(turn.steered()) == 8
        return "yes"

    async with http_server(path, agent) as server:
        client, http = server.openai(), server.http()
        running = await client.responses.create(model="hermes", input="birds", background=True)
        await started.wait()

        async def steer(text):
            steered = await http.post(f"/v1/responses/{running.id}/steer", json={"input": text})
            said[steered.json()["steering_response_id"]] = text

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(steer, f"cat {number}")
        go.set()
        async for _ in await client.responses.retrieve(running.id, stream=True):
            pass
        for each, text in said.items():
            items = [item async for item in client.responses.input_items.list(each)]
            assert [item.content[0].text for item in items] == [text]


async def test_a_message_that_the_steered_turn_does_not_take_has_a_response(path):
    started, go, texts = trio.Event(), trio.Event(), []

    async def agent(turn):
        texts.append(turn.text)
        started.set()
        await go.wait()
        return f"about {turn.text}"

    async with http_server(path, agent) as server:
        client, http = server.openai(), server.http()
        running = await client.responses.create(model="hermes", input="birds", background=True)
        await started.wait()
        url, key = f"/v1/responses/{running.id}/steer", {"Idempotency-Key": "k"}
        steered = await http.post(url, json={"input": "cats"}, headers=key)
        steering = steered.json()["steering_response_id"]
        assert (await client.responses.retrieve(steering)).status == "queued"
        go.set()
        async for event in await client.responses.retrieve(steering, stream=True):
            final = event
        assert final.response.output_text == "about cats"
        assert final.response.conversation.id == running.conversation.id
        items = [each async for each in client.responses.input_items.list(steering)]
        assert [item.content[0].text for item in items] == ["cats"]
        again = await http.post(url, json={"input": "cats"}, headers=key)
        assert (again.status_code, again.json()["steering_response_id"]) == (200, steering)
        refused = await http.post(url, json={"input": "dogs"}, headers=key)
        assert refused.status_code == 422
        assert texts == ["birds", "cats"]
