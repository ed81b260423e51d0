"""The loopback model behaves like the providers it replaces, over real sockets."""

from __future__ import annotations

import json

import httpx2
import pytest
import trio

from hermes.messages import ToolCall
from hermes.testing import (
    CutOff,
    Disconnect,
    Drip,
    ErrorEvent,
    Garbage,
    HangUp,
    ModelAnswer,
    OnlyGarbage,
    PrefixCache,
    Refuse,
    open_model,
)

LONG = "all that was said " * 300
CALLS = (ToolCall("c1", "look", '{"at": "the sea"}'), ToolCall("c2", "wait", "{}"))
WORK = ModelAnswer("let me see", reasoning="the user wants a look", calls=CALLS, chunk_size=5)


class OpenAI:
    """Requests and answers of OpenAI's API."""

    path = "/v1/chat/completions"
    key_header = "authorization"

    def body(self, *texts, **options):
        messages = [{"role": "user", "content": text} for text in texts]
        request = {"model": "m", "messages": messages, "stream": True}
        return {**request, "stream_options": {"include_usage": True}, **options}

    def usage(self, events):
        counted = events[-1]["usage"]
        return counted["prompt_tokens"], counted["prompt_tokens_details"]["cached_tokens"]

    def text(self, events):
        deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
        return "".join(delta.get("content", "") for delta in deltas)

    def whole_text(self, answer):
        return answer["choices"][0]["message"]["content"]


class Anthropic:
    """Requests and answers of Anthropic's API."""

    path = "/v1/messages"
    key_header = "x-api-key"

    def body(self, *texts, **options):
        messages = [{"role": "user", "content": [block(text)]} for text in texts]
        messages[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
        return {
            "model": "m", "max_tokens": 9, "messages": messages, "stream": True, **options,
        }  # fmt: skip

    def usage(self, events):
        counted = events[0]["message"]["usage"]
        read = counted["cache_read_input_tokens"]
        written = counted["cache_creation_input_tokens"]
        return counted["input_tokens"] + written + read, read

    def text(self, events):
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        return "".join(delta.get("text", "") for delta in deltas)

    def whole_text(self, answer):
        return answer["content"][0]["text"]


def block(text):
    return {"type": "text", "text": text}


@pytest.fixture(params=[OpenAI, Anthropic])
def protocol(request):
    return request.param()


@pytest.fixture
async def client():
    async with httpx2.AsyncClient(timeout=10) as opened:
        yield opened


async def ask(client, model, protocol, body, **headers):
    """Send a request; returns the events of the answer."""
    response = await client.post(model.url + protocol.path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_answers_are_played_in_their_order_and_then_echoed(client, protocol):
    async with open_model(["one", ModelAnswer("two")]) as model:
        texts = [
            protocol.text(await ask(client, model, protocol, protocol.body("hello", "you")))
            for _ in range(3)
        ]
    assert texts == ["one", "two", "echo: you"]
    assert model.answered == 3


async def test_a_script_may_be_a_function_of_the_request(client, protocol):
    async with open_model(lambda request: request.text.upper()) as model:
        events = await ask(client, model, protocol, protocol.body("hello"))
        assert protocol.text(events) == "HELLO"


async def test_requests_are_recorded_as_they_were_sent(client, protocol):
    body = protocol.body("hello")
    async with open_model(keep=1) as model:
        await ask(client, model, protocol, protocol.body("earlier"))
        await ask(client, model, protocol, body, **{protocol.key_header: "k"})
    (request,) = model.requests
    assert (request.path, request.json, request.headers[protocol.key_header]) == (
        protocol.path, body, "k",
    )  # fmt: skip
    assert json.loads(request.body) == body
    assert request.prompt_tokens > 0


async def test_one_connection_serves_many_requests(client, protocol):
    async with open_model() as model:
        await ask(client, model, protocol, protocol.body("hello"))
        async with client.stream(
            "POST", model.url + protocol.path, json=protocol.body("again")
        ) as response:
            stream = response.extensions["network_stream"]
            first = stream.get_extra_info("client_addr")
            await response.aread()
        async with client.stream(
            "POST", model.url + protocol.path, json=protocol.body("again")
        ) as response:
            stream = response.extensions["network_stream"]
            assert stream.get_extra_info("client_addr") == first


async def test_a_request_that_is_not_for_a_stream_gets_one_object(client, protocol):
    async with open_model(["hello", WORK]) as model:
        url = model.url + protocol.path
        body = protocol.body("hi", stream=False)
        answer = (await client.post(url, json=body)).json()
        assert protocol.whole_text(answer) == "hello"
        work = (await client.post(url, json=body)).text
        assert "the user wants a look" in work
        assert "c2" in work


async def test_openai_streams_an_answer_in_pieces(client):
    protocol = OpenAI()
    async with open_model([WORK]) as model:
        events = await ask(client, model, protocol, protocol.body("hi"))
    *chunks, last = events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d][:2] == [
        "the u", "ser w",
    ]  # fmt: skip
    assert [d["content"] for d in deltas if d.get("content")] == ["let m", "e see"]
    pieces = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    begun = [(p["index"], p["id"], p["function"]["name"]) for p in pieces if "id" in p]
    assert begun == [(0, "c1", "look"), (1, "c2", "wait")]
    assert "".join(p["function"]["arguments"] for p in pieces if p["index"] == 0) == (
        '{"at": "the sea"}'
    )
    assert len(pieces) > 4
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "tool_calls"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6


async def test_openai_counts_in_a_stream_only_if_asked_to(client):
    protocol = OpenAI()
    async with open_model() as model:
        events = await ask(client, model, protocol, protocol.body("hi", stream_options=None))
    assert all("usage" not in event and event["choices"] for event in events)


async def test_anthropic_streams_an_answer_in_blocks(client):
    protocol = Anthropic()
    async with open_model([WORK]) as model:
        events = await ask(client, model, protocol, protocol.body("hi"))
    assert [events[0]["type"], events[1]["type"], events[-2]["type"], events[-1]["type"]] == [
        "message_start", "ping", "message_delta", "message_stop",
    ]  # fmt: skip
    begun = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    assert [each["type"] for each in begun] == ["thinking", "text", "tool_use", "tool_use"]
    assert begun[2] == {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    ended = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert ended == [0, 1, 2, 3]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert any(delta.get("signature") for delta in deltas)
    third = [e for e in events if e["type"] == "content_block_delta" and e["index"] == 2]
    assert "".join(e["delta"]["partial_json"] for e in third) == '{"at": "the sea"}'
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_prompts_are_cached(client, protocol):
    async with open_model() as model:
        counted = [
            protocol.usage(await ask(client, model, protocol, protocol.body(*texts)))
            for texts in ([LONG], [LONG, "more"], [LONG, "more", "and more"], ["else", LONG])
        ]
        cached = [request.cached_tokens for request in model.requests]
    assert cached == [read for _, read in counted] == [0, 1280, 1280, 0]
    assert [prompt for prompt, _ in counted] == [
        request.prompt_tokens for request in model.requests
    ]


async def test_each_key_has_its_own_cache(client, protocol):
    async with open_model() as model:
        for key in ("one", "two", "one"):
            await ask(client, model, protocol, protocol.body(LONG), **{protocol.key_header: key})
        assert [request.cached_tokens for request in model.requests] == [0, 0, 1280]


async def test_a_prompt_cache_key_names_a_cache(client):
    protocol = OpenAI()
    async with open_model() as model:
        for user, key in [("a", "x"), ("b", "x"), ("a", "y")]:
            body = protocol.body(LONG, prompt_cache_key=key)
            await ask(client, model, protocol, body, authorization=user)
        assert [request.cached_tokens for request in model.requests] == [0, 1280, 0]


async def test_cached_prompts_expire(client, protocol):
    async with open_model(cache=PrefixCache(ttl=0.0)) as model:
        for _ in range(2):
            await ask(client, model, protocol, protocol.body(LONG))
        assert [request.cached_tokens for request in model.requests] == [0, 0]


async def test_without_a_cache_tokens_are_still_counted(client, protocol):
    async with open_model(cache=False) as model:
        for _ in range(2):
            await ask(client, model, protocol, protocol.body(LONG))
        assert [request.cached_tokens for request in model.requests] == [0, 0]
        assert 1350 < model.requests[0].prompt_tokens < 1400


async def test_anthropic_caches_only_up_to_a_breakpoint_wherever_it_is(client):
    protocol = Anthropic()
    plain = protocol.body(LONG, LONG)
    del plain["messages"][-1]["content"][0]["cache_control"]
    first = protocol.body(LONG, LONG)
    moved = protocol.body(LONG, LONG)
    moved["messages"][0]["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    del moved["messages"][1]["content"][0]["cache_control"]
    async with open_model() as model:
        for body in (plain, plain, first, moved, first):
            await ask(client, model, protocol, body)
        assert [request.cached_tokens for request in model.requests] == [0, 0, 0, 1280, 2688]
        assert len({request.prompt_tokens for request in model.requests}) == 1


async def test_anthropic_takes_at_most_four_breakpoints(client):
    protocol = Anthropic()
    body = protocol.body(*"12345")
    for message in body["messages"]:
        message["content"][0]["cache_control"] = {"type": "ephemeral"}
    async with open_model() as model:
        response = await client.post(model.url + protocol.path, json=body)
        assert (response.status_code, "maximum of 4" in response.text) == (400, True)


async def test_a_prompt_that_is_too_long_is_refused_as_the_provider_does(client):
    async with open_model(window=1000) as model:
        openai, anthropic = [
            await client.post(model.url + each.path, json=each.body(LONG))
            for each in (OpenAI(), Anthropic())
        ]
    assert (openai.status_code, openai.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 1000 tokens" in openai.json()["error"]["message"]
    assert anthropic.status_code == 400
    assert anthropic.json()["error"]["type"] == "invalid_request_error"
    assert "prompt is too long: 1" in anthropic.json()["error"]["message"]


async def test_an_invalid_request_is_refused(client, protocol):
    async with open_model() as model:
        for body in (b"{", b"[]", b'{"model": "\xff"}', b'{"messages": []}'):
            response = await client.post(model.url + protocol.path, content=body)
            assert response.status_code == 400
            assert "error" in response.json()
        assert (await client.post(model.url + "/elsewhere", content=b"{}")).status_code == 404


REFUSALS = [
    (OpenAI, "rate_limit", 429), (OpenAI, "server_error", 500), (OpenAI, "overloaded", 503),
    (OpenAI, "bad_key", 401), (OpenAI, "no_quota", 429), (OpenAI, "payment", 402),
    (OpenAI, "too_long", 400), (Anthropic, "rate_limit", 429), (Anthropic, "server_error", 500),
    (Anthropic, "overloaded", 529), (Anthropic, "bad_key", 401), (Anthropic, "no_quota", 400),
    (Anthropic, "payment", 402), (Anthropic, "too_long", 400),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "reason", "status"), REFUSALS)
async def test_a_refusal_has_the_status_of_its_provider(client, kind, reason, status):
    protocol = kind()
    async with open_model(["hello"], [Refuse(reason, retry_after=1.5)]) as model:
        response = await client.post(model.url + protocol.path, json=protocol.body("hi"))
        assert (response.status_code, response.headers["retry-after"]) == (status, "1.5")
        assert response.json()["error"]["message"]
        assert protocol.text(await ask(client, model, protocol, protocol.body("hi"))) == "hello"


async def test_faults_apply_to_requests_in_order(client, protocol):
    async with open_model() as model:
        model.fail(None, Refuse("server_error"))
        url = model.url + protocol.path
        statuses = [
            (await client.post(url, json=protocol.body("hi"))).status_code for _ in range(3)
        ]
    assert statuses == [200, 500, 200]


@pytest.mark.parametrize("fault", [HangUp(), Disconnect(0), Disconnect(2)])
async def test_a_connection_that_ends_uses_up_nothing_of_the_script(client, protocol, fault):
    async with open_model([ModelAnswer("hello there", chunk_size=2)], [fault]) as model:
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask(client, model, protocol, protocol.body("hi"))
        events = await ask(client, model, protocol, protocol.body("hi"))
        assert protocol.text(events) == "hello there"


async def received_before(client, model, protocol):
    """What was received before the connection ended."""
    read = b""
    with pytest.raises(httpx2.RemoteProtocolError):
        async with client.stream(
            "POST", model.url + protocol.path, json=protocol.body("hi")
        ) as response:
            async for piece in response.aiter_bytes():
                read += piece
    return read


async def test_chunks_before_a_disconnection_are_received(client, protocol):
    async with open_model([ModelAnswer("hello there", chunk_size=2)], [Disconnect(3)]) as model:
        read = await received_before(client, model, protocol)
    for piece in (b'"he"', b'"ll"', b'"o "'):
        assert piece in read
    assert b'"th"' not in read


async def test_an_answer_that_is_cut_off_looks_complete(client, protocol):
    async with open_model([ModelAnswer("hello there", chunk_size=2)], [CutOff(2)]) as model:
        events = await ask(client, model, protocol, protocol.body("hi"))
        assert protocol.text(events) == "hell"
        assert "message_delta" not in [event.get("type") for event in events]


async def test_an_error_comes_after_some_pieces(client, protocol):
    async with open_model([ModelAnswer("hello there", chunk_size=2)], [ErrorEvent(1)]) as model:
        events = await ask(client, model, protocol, protocol.body("hi"))
        assert "overloaded" in json.dumps(events[-1]["error"]).lower()
        assert protocol.text(events[:-1]) == "he"


async def test_garbage_is_sent_between_valid_events(client, protocol):
    async with open_model([ModelAnswer("hello there", chunk_size=2)]) as model:
        for fault in (Garbage(2), OnlyGarbage(7)):
            model.fail(fault)
            response = await client.post(model.url + protocol.path, json=protocol.body("hi"))
            assert b'{"delta": {"cont\n\n' in response.content
            assert (b'"th"' in response.content) == isinstance(fault, Garbage)


async def test_a_slow_answer_is_sent_piece_by_piece(client, protocol, autojump_clock):
    autojump_clock.autojump_threshold = 0.02  # sockets need some real time
    async with open_model([ModelAnswer("hello", chunk_size=1)], [Drip(5)]) as model:
        pieces = []
        began = trio.current_time()
        async with client.stream(
            "POST", model.url + protocol.path, json=protocol.body("hi")
        ) as response:
            pieces = [piece async for piece in response.aiter_raw()]
        assert len(pieces) > 1
        assert trio.current_time() - began >= 35


async def test_a_client_may_leave_in_the_middle(client, protocol):
    async with open_model(["hello", "again"], [Drip(60)]) as model:
        with trio.move_on_after(0.05):
            await ask(client, model, protocol, protocol.body("hi"))
        assert protocol.text(await ask(client, model, protocol, protocol.body("hi"))) == "again"


async def test_many_clients_are_served_at_once(client, protocol):
    texts = []

    async def one(number):
        events = await ask(client, model, protocol, protocol.body(f"number {number}"))
        texts.append(protocol.text(events))

    async with open_model() as model, trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
    assert sorted(texts) == sorted(f"echo: number {number}" for number in range(50))
