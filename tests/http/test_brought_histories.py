"""Earlier messages that a request brings, and branches: stored with its message, or not at all."""

from __future__ import annotations

import trio

from hermes import Config, ExpiryPolicy
from tests.support.http import http_server

EARLIER = [{"role": "user", "content": "I am Ann."}, {"role": "assistant", "content": "Hello Ann!"}]
OUTPUT = {"type": "function_call_output", "call_id": "nobody", "output": "42"}
QUESTION = {"role": "user", "content": "Who am I?"}


async def texts_in(client, conversation):
    items = await client.conversations.items.list(conversation, order="asc")
    return [item.content[0].text async for item in items]


async def test_a_request_that_is_refused_adds_nothing(path, sql):
    async with http_server(path) as server:
        client = server.openai()
        conversation = (await client.conversations.create()).id
        body = {"conversation": conversation, "input": [*EARLIER, OUTPUT]}
        refused = await server.http().post("/v1/responses", json=body)
        assert refused.status_code == 400
        assert await texts_in(client, conversation) == []
        refused = await server.http().post("/v1/responses", json={"input": [*EARLIER, OUTPUT]})
        assert refused.status_code == 400
    assert sql("SELECT count(*) FROM sessions") == [[0]]


async def test_equal_requests_with_a_key_bring_their_history_once(path, sql):
    answers = []

    async def ask(server, body):
        headers = {"Idempotency-Key": "k"}
        answer = await server.http().post("/v1/responses", json=body, headers=headers)
        answers.append(answer.json()["id"])

    async with http_server(path) as server:
        client = server.openai()
        conversation = (await client.conversations.create()).id
        body = {"conversation": conversation, "input": [*EARLIER, QUESTION]}
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, server, body)
        assert len(set(answers)) == 1
        said = ["I am Ann.", "Hello Ann!", "Who am I?", "echo: Who am I?"]
        assert await texts_in(client, conversation) == said
    assert sql("SELECT count(*) FROM sessions") == [[1]]


async def test_a_history_cannot_come_between_a_message_and_its_answer(path):
    started, go = trio.Event(), trio.Event()

    async def agent(turn):
        started.set()
        await go.wait()
        return f"echo: {turn.text}"

    async with http_server(path, agent) as server:
        client = server.openai()
        first = await client.responses.create(model="hermes", input="hello", background=True)
        await started.wait()
        body = {"conversation": first.conversation.id, "input": [*EARLIER, QUESTION]}
        refused = await server.http().post("/v1/responses", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        go.set()
        async for _ in await client.responses.retrieve(first.id, stream=True):
            pass
        assert (await server.http().post("/v1/responses", json=body)).status_code == 200
        said = ["hello", "echo: hello", "I am Ann.", "Hello Ann!", "Who am I?", "echo: Who am I?"]
        assert await texts_in(client, first.conversation.id) == said


async def test_a_request_that_is_refused_or_repeated_opens_no_branch(path, sql):
    async with http_server(path) as server:
        client, http = server.openai(), server.http()
        first = await client.responses.create(model="hermes", input="1")
        follows = {"previous_response_id": first.id}
        await client.responses.create(model="hermes", input="2", **follows)
        assert sql("SELECT count(*) FROM sessions") == [[1]]
        body = {"input": [OUTPUT], **follows}
        assert (await http.post("/v1/responses", json=body)).status_code == 400
        assert sql("SELECT count(*) FROM sessions") == [[1]]

        async def repeat(body):
            headers = {"Idempotency-Key": "k"}
            await http.post("/v1/responses", json=body, headers=headers)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(repeat, {"input": "3", **follows})
        assert sql("SELECT count(*) FROM sessions") == [[2]]


async def test_a_response_is_continued_however_long_ago_it_was(path):
    seen = []

    async def agent(turn):
        seen.append([message.content for message in turn.messages()])
        return "ok"

    config = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=1e-6))
    async with http_server(path, agent, runtime_config=config) as server:
        client, headers = server.openai(), {"X-Hermes-Conversation": "c"}
        first = await client.responses.create(model="hermes", input="1")
        await client.responses.create(model="hermes", input="2", previous_response_id=first.id)
        said = [{"role": "user", "content": "1"}]
        for text in ("ok", "2"):
            body = {"model": "hermes", "messages": said, "extra_headers": headers}
            await client.chat.completions.create(**body)
            said += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": text}]
    assert seen == [["1"], ["1", "ok", "2"], ["1"], ["1", "ok", "ok"]]
