"""The provider clients and `ChatAgent` with the loopback model, over real sockets."""

from __future__ import annotations

import itertools

import httpx2
import pytest
import trio

from hermes.agents.chat import ChatAgent
from hermes.agents.providers.anthropic_messages import AnthropicMessages
from hermes.agents.providers.base import (
    AuthenticationFailed,
    Endpoint,
    OutOfQuota,
    RequestRejected,
    Secret,
    Unavailable,
)
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.agents.providers.retries import Retries
from hermes.agents.providers.sse_transport import retry_after
from hermes.agents.tools.toolbox import Toolbox, ToolOutcome
from hermes.config import Config
from hermes.errors import ContextOverflow
from hermes.events import ReasoningDelta, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, ToolCall, Usage
from hermes.testing import (
    CutOff,
    Disconnect,
    Drip,
    ErrorEvent,
    Garbage,
    HangUp,
    ModelAnswer,
    OnlyGarbage,
    Refuse,
    open_model,
    texts_of,
)
from hermes.texts import ENGLISH

KEY = "not-a-usual-key-9f8e7d6c5b4a"
SYSTEM = "You keep a lighthouse. " * 300
TOOLS = ({"name": "look", "description": "Look.", "parameters": {"type": "object"}},)
CALLS = (ToolCall("c1", "look", '{"at":"the sea"}'), ToolCall("c2", "look", "{}"))
WORK = ModelAnswer("let me see", reasoning="a look, then", calls=CALLS, chunk_size=3)
SPEECH = ModelAnswer("hello there, how are you?", chunk_size=2)
QUICK = Retries(max_attempts=3, first_delay=0.0)
RETRYING = f"\n\n{ENGLISH.retrying}\n\n"


@pytest.fixture
def workers():
    """Threads: virtual time does not work with real sockets."""
    return "threads"


@pytest.fixture(params=[OpenAIChat, AnthropicMessages])
def kind(request):
    return request.param


@pytest.fixture
async def client():
    async with httpx2.AsyncClient() as opened:
        yield opened


@pytest.fixture
def provider(kind, client):
    """Make a provider for a loopback model: `provider(model)`."""

    def make(model, **options):
        url = model.openai_url if kind is OpenAIChat else model.anthropic_url
        options = {"base_url": url, "key": Secret(KEY), "name": "lamp", **options}
        return kind(client, Endpoint(model="m", **options), SYSTEM, TOOLS)

    return make


@pytest.fixture
def chat(start, provider):
    """Open a runtime whose agents use a model: `async with chat(model) as runtime`."""

    def opened(model, *, toolbox=None, endpoint=None, **options):
        made = provider(model, **(endpoint or {}))
        options = {"retries": QUICK, **options}
        return start(build_agent=lambda _: ChatAgent(made, toolbox, **options))

    return opened


async def complete(provider, *texts):
    """Call the model with these messages; returns the completion and its deltas."""
    deltas = []
    encoded = provider.encode([Message("user", text) for text in texts])
    completion = await provider.complete(provider.body(b"", encoded, []), deltas.append)
    return completion, deltas


# One call


async def test_an_answer_is_streamed_and_returned_as_a_whole(provider):
    async with open_model([SPEECH]) as model:
        completion, deltas = await complete(provider(model), "hi")
    assert completion.message.content == SPEECH.text
    assert deltas[:2] == [TextDelta("he"), TextDelta("ll")]
    assert "".join(delta.text for delta in deltas) == SPEECH.text
    assert not completion.truncated


async def test_tool_calls_are_complete_and_keep_their_reasoning(provider, kind):
    async with open_model([WORK]) as model:
        completion, deltas = await complete(provider(model), "hi")
    message = completion.message
    assert (message.content, message.reasoning) == ("let me see", "a look, then")
    assert message.tool_calls == CALLS
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == "a look, then"
    signed = [each["thinking"] for each in message.reasoning_details]
    assert signed == (["a look, then"] if kind is AnthropicMessages else [])


async def test_an_answer_that_reached_the_token_limit_is_truncated(provider):
    async with open_model([ModelAnswer("and so", finish="length")]) as model:
        completion, _ = await complete(provider(model), "hi")
    assert (completion.message.content, completion.truncated) == ("and so", True)


async def test_all_tokens_are_accounted_for(provider, kind):
    async with open_model([SPEECH, WORK]) as model:
        made = provider(model)
        first, second = [(await complete(made, "hi"))[0].usage for _ in range(2)]
        for usage, request in zip((first, second), model.requests, strict=True):
            read, written = usage.cache_read_tokens, usage.cache_write_tokens
            assert usage.input_tokens + read + written == request.prompt_tokens
            assert read == request.cached_tokens
    assert (first.cache_read_tokens, second.cache_read_tokens) == (0, 1664)
    assert first.cache_write_tokens == (1664 if kind is AnthropicMessages else 0)
    assert first.output_tokens == 7
    if kind is OpenAIChat:
        assert second.reasoning_tokens == 3


async def test_malformed_events_between_good_ones_damage_the_answer(provider):
    async with open_model([SPEECH], [Garbage(5)]) as model:
        completion, _ = await complete(provider(model), "hi")
        assert (completion.message.content, completion.damaged) == (SPEECH.text, True)


async def test_a_slow_answer_is_an_answer(provider):
    async with open_model(["hello"], [Drip(0.001)]) as model:
        completion, _ = await complete(provider(model), "hi")
        assert completion.message.content == "hello"


FAULTS = [
    (Refuse("rate_limit", retry_after=3), Unavailable, "lamp is busy"),
    (Refuse("server_error"), Unavailable, "lamp is unavailable (500"),
    (Refuse("overloaded"), Unavailable, "lamp is unavailable (5"),
    (Refuse("bad_key"), AuthenticationFailed, "lamp rejected the API key"),
    (Refuse("no_quota"), OutOfQuota, "the account at lamp has no quota left"),
    (Refuse("payment"), OutOfQuota, "the account at lamp has no quota left"),
    (Refuse("too_long"), ContextOverflow, "lamp: "),
    (HangUp(), Unavailable, "the connection to lamp failed"),
    (Disconnect(2), Unavailable, "the connection to lamp failed"),
    (CutOff(2), Unavailable, "lamp ended the stream before"),
    (ErrorEvent(2), Unavailable, "lamp is unavailable"),
    (ErrorEvent(2, "no_quota"), OutOfQuota, "the account at lamp has no quota left"),
    (ErrorEvent(2, "too_long"), ContextOverflow, "lamp: "),
    (ErrorEvent(0, "bad_key"), AuthenticationFailed, "lamp rejected the API key"),
    (OnlyGarbage(4), Unavailable, "lamp ended the stream before"),
    (OnlyGarbage(60), Unavailable, "lamp sent malformed data"),
    (Drip(60), Unavailable, "lamp did not respond in time"),
]


@pytest.mark.parametrize(("fault", "error", "sentence"), FAULTS, ids=repr)
async def test_each_fault_has_a_message_of_one_sentence_without_the_key(
    provider, fault, error, sentence
):
    async with open_model([SPEECH], [fault]) as model:
        with pytest.raises(error) as caught:
            await complete(provider(model, read_timeout=0.2), "hi")
    text = str(caught.value)
    assert text.startswith(sentence)
    assert KEY not in text
    assert "\n" not in text
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def test_a_key_is_redacted_before_the_message_is_truncated(provider):
    # A key that is truncated before it is redacted would be shown in part.
    for before in range(240, 300, 7):
        long = KEY * 3 + "x" * before
        async with open_model([], [Refuse("bad_key")]) as model:
            with pytest.raises(AuthenticationFailed) as caught:
                await complete(provider(model, key=Secret(long)), "hi")
            assert KEY[:8] not in str(caught.value)


async def test_a_call_that_takes_too_long_times_out(provider):
    async with open_model([SPEECH], [Drip(0.05)]) as model:
        with pytest.raises(Unavailable, match=r"did not finish within 0\.2 seconds"):
            await complete(provider(model, call_timeout=0.2), "hi")


async def test_waiting_for_a_free_connection_is_not_a_timeout_of_the_provider(kind):
    async with (
        open_model(faults=[Drip(0.05)] * 3) as model,
        httpx2.AsyncClient(limits=httpx2.Limits(max_connections=1)) as client,
        trio.open_nursery() as nursery,
    ):
        url = model.openai_url if kind is OpenAIChat else model.anthropic_url
        made = kind(client, Endpoint(base_url=url, model="m", connect_timeout=0.1))
        for _ in range(3):
            nursery.start_soon(complete, made, "a question that is repeated in an answer")


async def test_a_wrong_url_is_reported_as_such(provider, kind):
    async with open_model() as model:
        with pytest.raises(RequestRejected, match="check the model name and the URL"):
            await complete(provider(model, base_url=model.url + "/elsewhere"), "hi")
    with pytest.raises(Unavailable, match="connection to lamp failed"):
        await complete(provider(model), "hi")
    words = "^the connection to lamp failed: the host herons.invalid was not found; check the URL"
    with pytest.raises(Unavailable, match=words):
        await complete(provider(model, base_url="http://herons.invalid/v1"), "hi")
    with pytest.raises(RequestRejected, match="is invalid"):
        await complete(provider(model, base_url="lamp"), "hi")


async def test_the_last_event_counts_without_a_blank_line(kind, client):
    """Some servers omit the blank line after the last event, some send carriage returns."""
    line = {
        OpenAIChat: b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}',
        AnthropicMessages: b'{"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
    }[kind]
    async with raw_server(b"data:" + line) as url:
        completion, _ = await complete(kind(client, Endpoint(base_url=url, model="m")), "hi")
        assert completion.message.finish_reason in {"stop", "end_turn"}


async def test_an_endpoint_that_does_not_stream_is_supported(provider):
    calls = [ToolCall("c1", "look", '{"at":"it"}')]
    script = [ModelAnswer("good evening", reasoning="polite", calls=calls)]
    async with open_model(script) as model:
        completion, deltas = await complete(provider(model, parameters=(("stream", False),)), "hi")
    assert deltas == [ReasoningDelta("polite"), TextDelta("good evening")]
    assert (completion.message.content, completion.message.tool_calls) == (
        "good evening",
        tuple(calls),
    )
    assert completion.usage.input_tokens > 0


async def test_header_values_are_redacted_like_the_key(kind, client):
    headers = (("x-gateway-token", "opensesame"), ("x-short", "a"))
    async with raw_server(b"opensesame is not a good word", 400) as url:
        made = kind(client, Endpoint(base_url=url, model="m", headers=headers))
        with pytest.raises(RequestRejected, match=r"\[redacted\] is not a good word"):
            await complete(made, "hi")
    assert "opensesame" not in repr(made)


@pytest.mark.parametrize("odd", ["opensesame\nplease", "opensesame…"])
@pytest.mark.parametrize("place", ["key", "headers"])
async def test_a_key_that_http_cannot_send_is_reported_but_not_shown(kind, client, odd, place):
    given = {"key": Secret(odd), "headers": (("x-gateway-token", odd),)}
    made = kind(client, Endpoint(base_url="http://127.0.0.1:9", model="m", **{place: given[place]}))
    with pytest.raises(AuthenticationFailed, match="cannot send") as refused:
        await complete(made, "hi")
    assert "opensesame" not in str(refused.value)


async def test_a_line_break_after_a_key_is_ignored(provider):
    async with open_model() as model:
        await complete(provider(model, key=Secret(f"{KEY}\n")), "hi")
    sent = model.requests[0].headers
    assert sent.get("x-api-key") == KEY or sent.get("authorization") == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [301, 400, 404, 418])
async def test_an_answer_of_another_kind_is_a_refusal(kind, client, status):
    async with raw_server(b"[" * 4000, status) as url:
        with pytest.raises(RequestRejected):
            await complete(kind(client, Endpoint(base_url=url, model="m")), "hi")


async def test_an_endless_event_is_an_error(kind, client):
    async with raw_server((b"data: " + b"more" * 500 + b"\r\n") * 10_000) as url:
        with pytest.raises(Unavailable, match="too large"):
            await complete(kind(client, Endpoint(base_url=url, model="m")), "hi")


def chunk(*calls, finish="null"):
    """An event with these chunks of tool calls."""
    delta = f'{{"tool_calls":[{",".join(calls)}]}}'
    return f'data: {{"choices":[{{"delta":{delta},"finish_reason":{finish}}}]}}\n\n'.encode()


@pytest.mark.parametrize(
    "chunks",
    [
        [
            chunk('{"id":"c1","function":{"name":"look","arguments":"{\\"a\\":"}}'),
            chunk('{"function":{"arguments":"1}"}}'),
            chunk('{"id":"c2","function":{"name":"wait","arguments":{}}}'),
        ],
        [
            chunk('{"id":"c1","function":{"name":"look","arguments":{"a":1}}}', '{"id":"c2"}'),
            chunk('{"id":"c2","function":{"name":"wait"}}'),
        ],
        [
            chunk('{"index":0,"id":"c1","function":{"name":"look","arguments":"{\\"a\\""}}'),
            chunk('{"index":1,"id":"c2","function":{"name":"wait","arguments":""}}'),
            chunk('{"index":0,"id":"c1","function":{"name":"look","arguments":":1}"}}'),
        ],
        [
            chunk('{"index":0,"id":"c1","function":{"name":"look","arguments":"{\\"a\\":1}"}}'),
            chunk('{"index":0,"id":"c2","function":{"name":"wait","arguments":"{}"}}'),
        ],
    ],
)
async def test_tool_calls_are_assembled_however_their_chunks_are_numbered(client, chunks):
    async with raw_server(b"".join([*chunks, chunk(finish='"tool_calls"')])) as url:
        completion, _ = await complete(OpenAIChat(client, Endpoint(base_url=url, model="m")), "hi")
    assert completion.message.tool_calls == (
        ToolCall("c1", "look", '{"a":1}'),
        ToolCall("c2", "wait", "{}"),
    )


async def test_calls_without_ids_and_with_the_same_number_are_distinguished(client):
    chunks = [
        chunk('{"index":0,"function":{"name":"look","arguments":"{\\"a\\":"}}'),
        chunk('{"index":0,"function":{"name":"look","arguments":"1}"}}'),
        chunk('{"index":0,"function":{"name":"look","arguments":"{}"}}', finish='"tool_calls"'),
    ]
    async with raw_server(b"".join(chunks)) as url:
        completion, _ = await complete(OpenAIChat(client, Endpoint(base_url=url, model="m")), "hi")
    assert completion.message.tool_calls == (
        ToolCall("call_0", "look", '{"a":1}'),
        ToolCall("call_1", "look", "{}"),
    )


async def test_an_answer_without_token_counts_is_recorded(client):
    hello = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}'
    async with raw_server(hello) as url:
        completion, _ = await complete(OpenAIChat(client, Endpoint(base_url=url, model="m")), "hi")
    assert completion.usage == Usage(model="m", provider="model")


@pytest.mark.parametrize("cost", [b'{"total":0.1}', b"-5.0", b"-1e300"])
async def test_an_unknown_format_of_costs_and_negative_ones_are_ignored(client, cost):
    counted = b'{"prompt_tokens":5,"completion_tokens":1,"cost":%b}' % cost
    chunks = [
        b'data: {"choices":[{"delta":{"content":"hi"}}],"usage":%b}\n\n' % counted,
        b'data: {"choices":null,"usage":%b}\n\n' % counted,
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    ]
    async with raw_server(b"".join(chunks)) as url:
        completion, _ = await complete(OpenAIChat(client, Endpoint(base_url=url, model="m")), "hi")
    assert (completion.message.content, completion.usage.input_tokens, completion.usage.cost) == (
        "hi",
        5,
        None,
    )


class raw_server:  # noqa: N801
    """A server that answers every request with these bytes."""

    def __init__(self, body, status=200):
        head = f"HTTP/1.1 {status} -\r\nlocation: /\r\nconnection: close\r\n\r\n"
        self.answer = head.encode() + body

    async def handle(self, stream):
        async with stream:
            with trio.move_on_after(5):
                read = b""
                while not read.endswith(b"]}"):  # else the connection would be reset
                    read += await stream.receive_some()
                try:
                    await stream.send_all(self.answer)
                except trio.BrokenResourceError:
                    return

    async def __aenter__(self):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.manager = trio.open_nursery()
        nursery = await self.manager.__aenter__()
        nursery.start_soon(trio.serve_listeners, self.handle, listeners)
        self.scope = nursery.cancel_scope
        return f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"

    async def __aexit__(self, *error):
        self.scope.cancel()
        return await self.manager.__aexit__(*error)


def test_retry_after_is_read_in_all_its_forms():
    assert retry_after({"retry-after": "2"}) == 2.0
    assert retry_after({"retry-after": "7", "retry-after-ms": "1500"}) == 1.5
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    for nothing in ("soon", "-1", "nan", "inf", ""):
        assert retry_after({"retry-after": nothing}) is None
    assert retry_after({}) is None


# Turns


class Looking(Toolbox):
    """A tool that answers at once, or after `first`."""

    def __init__(self, first=None):
        self.first = first

    async def run(self, call, turn):
        if self.first is not None:
            await self.first()
        return ToolOutcome(f"{call.id} sees waves")


async def events_of(runtime, text):
    """The events of one message, and its reply."""
    async with runtime.stream("k", text) as stream:
        events = [event async for event in stream]
    return events, stream.reply


def streamed_text(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_a_turn_streams_and_is_kept(chat):
    async with open_model([SPEECH]) as model, chat(model) as runtime:
        events, reply = await events_of(runtime, "hi")
        rows = await runtime.conversation("k").history()
    assert streamed_text(events) == reply.text == SPEECH.text
    assert len(events) > 5
    assert texts_of(rows) == [("user", "hi"), ("assistant", SPEECH.text)]


async def test_the_model_is_told_that_a_tool_does_not_exist(chat):
    async with open_model([WORK, "nothing there"]) as model, chat(model) as runtime:
        events, reply = await events_of(runtime, "hi")
        rows = await runtime.conversation("k").history()
    assert (reply.text, len(reply.usage)) == ("nothing there", 2)
    assert [event.call for event in events if isinstance(event, ToolStarted)] == list(CALLS)
    assert sorted(event.call_id for event in events if isinstance(event, ToolFinished)) == [
        "c1", "c2",
    ]  # fmt: skip
    assert [e.text for e in events if isinstance(e, ReasoningDelta)][:2] == ["a l", "ook"]
    assert [row.role for row in rows] == ["user", "assistant", "tool", "tool", "assistant"]
    assert rows[1].tool_calls == CALLS
    error = "There is no tool 'look'. Available tools: none."
    assert [row.content for row in rows[2:4]] == [error] * 2
    assert rows[1].reasoning == "a look, then"


async def test_the_model_gets_the_results_of_its_tools(chat, kind):
    async with open_model([WORK, "done"]) as model:
        async with chat(model, toolbox=Looking()) as runtime:
            await runtime.ask("k", "hi")
    shown = model.requests[-1].json["messages"]
    if kind is OpenAIChat:
        assert [each["role"] for each in shown] == ["system", "user", "assistant", "tool", "tool"]
        assert [each["content"] for each in shown[3:]] == ["c1 sees waves", "c2 sees waves"]
    else:
        assert [each["role"] for each in shown] == ["user", "assistant", "user"]
        assert shown[1]["content"][0]["thinking"] == "a look, then"
        assert [each["tool_use_id"] for each in shown[2]["content"]] == ["c1", "c2"]


async def test_more_is_cached_from_turn_to_turn(chat):
    answers = [ModelAnswer("wave after wave " * 60) for _ in range(5)]
    async with open_model(answers) as model, chat(model) as runtime:
        replies = [await runtime.ask("k", f"message {n} " * 30) for n in range(5)]
        prompts = [request.prompt_tokens for request in model.requests]
    cached = [reply.usage[0].cache_read_tokens for reply in replies]
    assert cached[0] == 0
    assert cached == sorted(set(cached))
    # Everything that was sent before is read from the cache, except for a partial block.
    for before, read in zip(prompts, cached[1:], strict=False):
        assert before - 128 <= read <= before


async def test_a_restart_and_a_switch_back_and_forth_keep_the_cache_warm(chat):
    answers = [ModelAnswer("wave after wave " * 60) for _ in range(9)]
    async with open_model(answers) as model:
        async with chat(model) as runtime:
            for text in ("one", "two"):
                first = await runtime.ask("k", text)
            await runtime.conversation("k").new()
            await runtime.ask("k", "elsewhere")
            await runtime.conversation("k").switch(first.session_id)
            await runtime.ask("k", "three")
        async with chat(model) as runtime:
            await runtime.ask("k", "four")
    sent = [request for request in model.requests if b"elsewhere" not in request.body]
    for before, after in itertools.pairwise(sent):
        assert after.cached_tokens >= before.prompt_tokens - 128


async def test_a_busy_provider_is_retried_after_the_delay_it_asked_for(chat):
    faults = [Refuse("rate_limit", retry_after=0.2), Refuse("overloaded", retry_after=0.1)]
    async with open_model(["hello"], faults) as model, chat(model) as runtime:
        reply = await runtime.ask("k", "hi")
        assert (reply.text, reply.status) == ("hello", "complete")
    first, second, third = [request.at for request in model.requests]
    assert second - first >= 0.2
    assert third - second >= 0.1
    assert model.requests[0].body == model.requests[2].body


async def test_a_provider_that_asks_for_too_long_a_delay_is_not_waited_for(chat):
    faults = [Refuse("rate_limit", retry_after=3600)]
    async with open_model(["hello"], faults) as model, chat(model) as runtime:
        reply = await runtime.ask("k", "hi")
        assert (reply.status, len(model.requests)) == ("failed", 1)
        assert "lamp is busy" in reply.text
        assert "no time" not in reply.text  # the deadline of the turn is not the reason
        assert (await runtime.ask("k", "hi?")).text == "hello"


BROKEN = [HangUp(), Disconnect(4), CutOff(4), ErrorEvent(4), OnlyGarbage(60), Disconnect(0)]


@pytest.mark.parametrize("fault", BROKEN, ids=repr)
async def test_an_answer_that_breaks_off_is_retried_and_nothing_is_repeated(chat, fault):
    async with open_model([SPEECH], [fault, fault]) as model, chat(model) as runtime:
        events, reply = await events_of(runtime, "hi")
        rows = await runtime.conversation("k").history()
    assert streamed_text(events) == reply.text == SPEECH.text
    assert texts_of(rows)[1:] == [("assistant", SPEECH.text)]
    assert len(model.requests) == 3


async def test_reasoning_is_not_repeated_either(chat):
    thinking = ModelAnswer("yes", reasoning="let me think", chunk_size=4)
    async with open_model([thinking], [Disconnect(2)]) as model, chat(model) as runtime:
        events, _ = await events_of(runtime, "hi")
    assert [e.text for e in events if isinstance(e, ReasoningDelta)] == ["let ", "me t"]


async def test_a_different_answer_after_a_retry_restarts_the_text(chat):
    said = iter(["hello there, sailor", "hello you and me", "hello you and me, sailor"])
    async with open_model(lambda _: ModelAnswer(next(said), chunk_size=5)) as model:
        model.fail(Disconnect(3), Disconnect(3))
        async with chat(model) as runtime:
            events, reply = await events_of(runtime, "hi")
    assert reply.text == "hello you and me, sailor"
    assert streamed_text(events) == f"hello there, sa{RETRYING}hello you and me, sailor"


async def test_of_several_attempts_that_broke_off_only_the_last_is_kept(chat):
    """The user has seen all of them, but they would confuse the model in the next turn."""
    said = iter(["hello there, sailor", "hello you, my friend", "good bye, my friend"])
    async with open_model(lambda _: ModelAnswer(next(said), chunk_size=5)) as model:
        model.fail(Disconnect(3), Disconnect(3), Disconnect(3))
        async with chat(model) as runtime:
            events, reply = await events_of(runtime, "hi")
            rows = texts_of(await runtime.conversation("k").history())
    assert reply.status == "failed"
    attempts = ["hello there, sa", "hello you, my f", "good bye, my fr"]
    assert streamed_text(events) == RETRYING.join(attempts)
    assert rows == [("user", "hi"), ("assistant", attempts[-1])]


async def test_a_model_that_never_gets_to_an_end_fails_the_turn(chat):
    async with open_model([SPEECH], [Disconnect(3)] * 3) as model, chat(model) as runtime:
        events, reply = await events_of(runtime, "hi")
        assert reply.status == "failed"
        assert "the connection to lamp failed" in reply.text
        assert streamed_text(events) == "hello "
        assert texts_of(await runtime.conversation("k").history()) == [
            ("user", "hi"),
            ("assistant", "hello "),
        ]
        assert (await runtime.ask("k", "and?")).text == SPEECH.text


@pytest.mark.parametrize(
    ("why", "sentence"), [("bad_key", "rejected the API key"), ("no_quota", "no quota left")]
)
async def test_errors_that_a_retry_cannot_fix_fail_at_once(chat, why, sentence):
    async with open_model(["hello"], [Refuse(why)]) as model, chat(model) as runtime:
        reply = await runtime.ask("k", "hi")
        assert (reply.status, len(model.requests)) == ("failed", 1)
    assert sentence in reply.text
    assert KEY not in reply.text + (reply.error or "")


async def test_a_conversation_that_is_too_long_is_reported_as_such(chat):
    async with open_model(window=1000) as model, chat(model) as runtime:
        reply = await runtime.ask("k", "hi")
    assert (reply.status, reply.text) == ("failed", ENGLISH.overflow)


@pytest.mark.parametrize("body", [b"", b'{"error":{"message":"Bad Request","code":400}}'])
async def test_a_refusal_without_a_reason_is_an_overflow_in_a_long_conversation(chat, body):
    async with open_model() as model, chat(model) as runtime:
        for number in range(26):
            await runtime.ask("k", f"hello {number}")
    async with raw_server(body, 400) as url, chat(model, endpoint={"base_url": url}) as runtime:
        assert (await runtime.ask("k", "once more")).text == ENGLISH.overflow
        assert "rejected the request (400" in (await runtime.ask("short", "hello")).text


async def test_a_failure_after_tools_keeps_what_they_did(chat, kind):
    async with open_model([WORK, "done"], [None, Refuse("bad_key")]) as model:
        async with chat(model, toolbox=Looking()) as runtime:
            assert (await runtime.ask("k", "hi")).status == "failed"
            rows = await runtime.conversation("k").history()
            assert (await runtime.ask("k", "and?")).text == "done"
    assert [row.role for row in rows] == ["user", "assistant", "tool", "tool"]
    assert bool(rows[1].reasoning_details) == (kind is AnthropicMessages)
    before, after = [stable(model.requests[place]) for place in (1, 2)]
    assert after[: len(before)] == before


async def test_an_interruption_after_tools_keeps_what_was_sent(chat):
    async with open_model([WORK, SPEECH, "done"], [None, Drip(60)]) as model:
        toolbox = Looking()
        async with chat(model, toolbox=toolbox) as runtime, trio.open_nursery() as nursery:
            replies = []

            async def first():
                replies.append(await runtime.ask("k", "hi"))

            with runtime.subscribe("k") as events:
                nursery.start_soon(first)
                left = 2
                async for envelope in events:
                    left -= isinstance(envelope.event, ToolFinished)
                    if not left:
                        break
            while len(model.requests) < 2:
                await trio.lowlevel.checkpoint()
            assert await runtime.conversation("k").interrupt()
            while not replies:
                await trio.lowlevel.checkpoint()
            assert (await runtime.ask("k", "and?")).text == "done"
    assert replies[0].status == "interrupted"
    before, after = [stable(model.requests[place]) for place in (1, 2)]
    assert after[: len(before)] == before


async def test_steered_messages_follow_the_tool_results_once(chat):
    async with open_model([WORK, "done"]) as model:
        toolbox = Looking()
        async with chat(model, toolbox=toolbox) as runtime, trio.open_nursery() as nursery:
            begun, steered = trio.Event(), trio.Event()

            async def first():
                begun.set()
                await steered.wait()

            toolbox.first = first
            nursery.start_soon(runtime.ask, "k", "hi")
            await begun.wait()
            await runtime.conversation("k").steer("hurry")
            steered.set()
        async with chat(model) as runtime:
            rows = await runtime.conversation("k").history()
    assert [row.role for row in rows] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert rows[4].content == "hurry"
    assert "hurry" in str(model.requests[-1].json["messages"][-1])


async def test_a_truncated_tool_call_is_not_run(chat):
    calls = (ToolCall("c1", "look", '{"at":"it"}'), ToolCall("c2", "look", ""))
    async with open_model([ModelAnswer(calls=calls, finish="length"), "well"]) as model:
        async with chat(model, toolbox=Looking()) as runtime:
            reply = await runtime.ask("k", "go on")
            rows = await runtime.conversation("k").history()
    assert reply.text == "well"
    assert [row.content for row in rows if row.role == "tool"] == [
        "c1 sees waves",
        "look was not run: the answer reached the token limit in the middle of this call.",
    ]


async def test_an_answer_that_reached_the_token_limit_without_text_says_so(chat):
    async with open_model([ModelAnswer("", reasoning="hm", finish="length")]) as model:
        async with chat(model) as runtime:
            reply = await runtime.ask("k", "go on")
    assert "reached the token limit" in reply.text


async def test_a_model_that_only_calls_tools_is_stopped(chat):
    async with open_model(lambda _: WORK) as model:
        async with chat(model, max_steps=3) as runtime:
            reply = await runtime.ask("k", "hi")
    assert (reply.status, len(model.requests)) == ("failed", 3)
    assert "3 times" in reply.text


async def test_a_turn_without_time_for_another_attempt_says_so(start, provider, world):
    faults = [Refuse("overloaded", retry_after=50)]
    async with open_model(["hello"], faults) as model:
        agent = ChatAgent(provider(model))
        options = {"agent": agent, "config": Config(turn_timeout=10)}
        async with start(**options) as runtime:
            reply = await runtime.ask("k", "hi")
    assert "no time is left" in reply.text


def stable(request):
    """The messages of a request, without cache breakpoints."""
    body = request.json
    return [without_breakpoints(message) for message in body["messages"]]


def without_breakpoints(value):
    if isinstance(value, dict):
        return {k: without_breakpoints(v) for k, v in value.items() if k != "cache_control"}
    return [without_breakpoints(each) for each in value] if isinstance(value, list) else value
