"""Chat completions through the stock SDK."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest
import trio

from hermes import Usage
from hermes.adapters.http.openai.chat.requests import PARAMETERS
from hermes.events import AssistantMessage, ReasoningDelta, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, Receipt, ToolCall, TurnResult
from tests.support.http import http_server
from tests.support.runtime import SECONDS

# The SDK stops reading at "[DONE]", and leaves the end of the stream to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
HI = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


async def collected(stream):
    """Return the chunks of a stream, its text and its finish reasons."""
    chunks = [chunk async for chunk in stream]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    return chunks, text, [choice.finish_reason for choice in choices]


async def test_a_completion_without_a_conversation_leaves_none(path):
    seen = []

    async def agent(turn):
        seen.append([(row.role, row.content) for row in turn.messages()])
        turn.charge(Usage(input_tokens=3, output_tokens=2, cache_read_tokens=10))
        return f"echo: {turn.text}"

    async with http_server(path, agent) as server:
        answer = await server.openai().chat.completions.create(
            model="hermes",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "1"},
                {"role": "user", "content": [{"type": "text", "text": "two"}]},
            ],
        )
        assert answer.id.startswith("chatcmpl-")
        assert len(answer.id) == len("chatcmpl-") + 32
        [choice] = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("echo: two", "stop")
        assert (answer.object, answer.model) == ("chat.completion", "hermes")
        usage = answer.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (13, 2, 15)
        assert usage.prompt_tokens_details.cached_tokens == 10
        assert seen == [[("user", "one"), ("assistant", "1"), ("user", "two")]]
        assert await server.runtime.admin.sessions() == []
        stored = await server.runtime.api.get_response(answer.id)
        assert (stored.stored, stored.reply.text) == (False, "echo: two")


async def test_system_messages_are_the_instructions_of_the_turn(path):
    seen = []

    async def agent(turn):
        seen.append(turn.options)
        return "ok"

    messages = [
        {"role": "system", "content": "Be brief."},
        *HI,
        {"role": "assistant", "content": "hello"},
        {"role": "developer", "content": [{"type": "text", "text": "Speak French."}]},
        *HI,
    ]
    async with http_server(path, agent) as server:
        await server.openai().chat.completions.create(
            model="hermes", messages=messages, temperature=0.5, max_tokens=10, seed=7
        )
    [options] = seen
    assert options.instructions == "Be brief.\n\nSpeak French."
    assert options.sampling == {"temperature": 0.5, "seed": 7}
    assert options.max_output_tokens == 10


async def test_a_stream_has_its_role_first_and_its_reason_and_usage_last(path):
    async def agent(turn):
        for piece in ("Hel", "lo"):
            turn.emit(TextDelta(piece))
        turn.charge(Usage(input_tokens=1, output_tokens=1))
        return "Hello"

    async with http_server(path, agent) as server:
        stream = await server.openai().chat.completions.create(
            model="hermes", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks, text, reasons = await collected(stream)
    assert text == "Hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 2
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_agent_s_own_tools_are_not_shown_as_calls(path):
    async def agent(turn):
        call = ToolCall("c1", "clock", "{}")
        turn.emit(ReasoningDelta("Which time?"))
        turn.emit(TextDelta("Let me look."))
        turn.emit(AssistantMessage(Message("assistant", "Let me look.", tool_calls=(call,))))
        turn.emit(ToolStarted(call))
        turn.emit(ToolFinished("c1", "noon"))
        turn.emit(TextDelta("It is noon."))
        return "It is noon."

    async with http_server(path, agent) as server:
        client = server.openai()
        plain = await client.chat.completions.create(model="hermes", messages=HI)
        stream = await client.chat.completions.create(model="hermes", messages=HI, stream=True)
        chunks, text, reasons = await collected(stream)
    assert plain.choices[0].message.tool_calls is None
    assert plain.choices[0].message.content == "It is noon."
    assert text == "Let me look.\n\nIt is noon."
    assert all(not chunk.choices[0].delta.tool_calls for chunk in chunks)
    thoughts = [chunk.choices[0].delta.model_extra.get("reasoning_content") for chunk in chunks]
    assert "".join(filter(None, thoughts)) == "Which time?"
    assert reasons[-1] == "stop"


async def test_a_text_that_begins_again_is_sent_from_where_it_differs(path):
    async def agent(turn):
        turn.emit(TextDelta("One two"))
        turn.emit(TextDelta("", restart=True))
        turn.emit(TextDelta("One "))
        turn.emit(TextDelta("two three"))
        turn.emit(TextDelta("", restart=True))
        turn.emit(TextDelta("Four"))
        return "Four"

    async with http_server(path, agent) as server:
        stream = await server.openai().chat.completions.create(
            model="hermes", messages=HI, stream=True
        )
        _, text, _ = await collected(stream)
    assert text == "One two three\n\nFour"


async def test_an_agent_that_streams_a_part_of_its_text_is_not_repeated(path):
    async def agent(turn):
        turn.emit(TextDelta("I look."))
        turn.emit(AssistantMessage(Message("assistant", "I look.")))
        turn.emit(TextDelta("echo: "))
        return f"echo: {turn.text}"

    async with http_server(path, agent) as server:
        stream = await server.openai().chat.completions.create(
            model="hermes", messages=HI, stream=True
        )
        assert (await collected(stream))[1] == "I look.\n\necho: hello"


async def test_an_agent_that_streams_nothing_is_streamed_at_its_end(path):
    async with http_server(path) as server:
        stream = await server.openai().chat.completions.create(
            model="hermes", messages=HI, stream=True
        )
        assert (await collected(stream))[1] == "echo: hello"


async def test_the_tools_of_the_client_end_the_turn(path):
    async def agent(turn):
        if turn.input[-1].role == "tool":
            return f"it said {turn.input[-1].content}"
        return TurnResult(calls=(ToolCall("c1", "look", '{"at": 1}'),))

    async with http_server(path, agent) as server:
        client = server.openai()
        first = await client.chat.completions.create(model="hermes", messages=HI, tools=[TOOL])
        [choice] = first.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls
        assert (call.id, call.function.name, call.function.arguments) == ("c1", "look", '{"at": 1}')
        result = {"role": "tool", "tool_call_id": "c1", "content": "a plum"}
        messages = [*HI, choice.message.model_dump(exclude_none=True), result]
        second = await client.chat.completions.create(
            model="hermes", messages=messages, tools=[TOOL]
        )
        assert second.choices[0].message.content == "it said a plum"
        stream = await client.chat.completions.create(
            model="hermes", messages=HI, tools=[TOOL], stream=True
        )
        chunks, _, reasons = await collected(stream)
        calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
        assert [(c.index, c.id, c.function.name) for c in calls] == [(0, "c1", "look")]
        assert reasons[-1] == "tool_calls"


async def test_a_result_that_no_call_waits_for_is_refused(path):
    async with http_server(path) as server:
        messages = [*HI, {"role": "tool", "tool_call_id": "c9", "content": "x"}]
        with pytest.raises(openai.BadRequestError, match="c9"):
            await server.openai().chat.completions.create(model="hermes", messages=messages)


async def test_a_failed_turn_is_an_error_that_is_not_tried_again(path):
    turns = []

    async def agent(turn):
        turns.append(turn.turn_id)
        return TurnResult(failed=True, error="no plums left")

    async with http_server(path, agent) as server:
        client = server.openai(max_retries=2)
        with pytest.raises(openai.InternalServerError, match="no plums left") as caught:
            await client.chat.completions.create(model="hermes", messages=HI)
        assert caught.value.response.headers["x-should-retry"] == "false"
        stream = await client.chat.completions.create(model="hermes", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="no plums left"):
            await collected(stream)
        assert len(turns) == 2


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "mp3"}}, "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"model": "gpt-4"}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [*HI, {"role": "assistant", "content": "so"}]}, "messages"),
        ({"temperature": 9}, "temperature"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(path, options, param):
    async with http_server(path) as server:
        asked = {"model": "hermes", "messages": HI, **options}
        with pytest.raises(openai.APIStatusError) as caught:
            await server.openai().chat.completions.create(**asked)
        assert caught.value.status_code in {400, 404}
        assert caught.value.param == param


async def test_values_that_ask_for_nothing_are_accepted(path):
    async with http_server(path) as server:
        answer = await server.openai().chat.completions.create(
            model="hermes", messages=HI, n=1, logprobs=False, modalities=["text"], user="ann",
            extra_body={"chat_template_kwargs": {}},
        )  # fmt: skip
        assert answer.choices[0].message.content == "echo: hello"


# Repetitions


async def test_the_same_idempotency_key_gets_the_same_completion(path):
    turns = []

    async def agent(turn):
        turns.append(turn.turn_id)
        return f"answer {len(turns)}"

    async with http_server(path, agent) as server:
        client = server.openai()
        headers = {"Idempotency-Key": "m1"}

        async def ask(**options):
            return await client.chat.completions.create(
                model="hermes", messages=HI, extra_headers=headers, **options
            )

        first, again = await ask(), await ask()
        assert (first.id, first.choices) == (again.id, again.choices)
        with pytest.raises(openai.UnprocessableEntityError, match="another request"):
            await ask(temperature=0.5)
        assert len(turns) == 1


async def test_a_retry_of_the_sdk_attaches_to_the_turn_whose_connection_was_cut(path):
    begun, go = trio.Event(), trio.Event()
    turns = []

    async def agent(turn):
        turns.append(turn.turn_id)
        begun.set()
        await go.wait()
        return "late"

    body = b'{"model": "hermes", "messages": [{"role": "user", "content": "yes"}]}'
    async with http_server(path, agent) as server:

        async def post(**headers):
            headers["content-type"] = "application/json"
            url = "/v1/chat/completions"
            return await server.http().post(url, content=body, headers=headers, timeout=60)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(post)
            await begun.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(SECONDS):
            await until_cut(server, turns[0])
        go.set()
        answer = await post(**{"x-stainless-retry-count": "1"})
        assert answer.json()["choices"][0]["message"]["content"] == "late"
        assert len(turns) == 1


async def until_cut(server, inbox_id):
    """Wait until the connection of a request is recorded as cut."""
    while True:
        found = await server.runtime.api.response_to(Receipt(inbox_id, "", "", 0, 0.0))
        if found.connection == "cut":
            return
        await trio.lowlevel.checkpoint()


# Documentation


def test_the_documentation_lists_the_parameters():
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    _, _, section = page.partition("## Chat Completions")
    for handling, words in (
        ("used", "used"), ("passed", "passed to the model"), ("ignored", "ignored"),
        ("refused", "refused by name"),
    ):  # fmt: skip
        names = ", ".join(f"`{name}`" for name, each in PARAMETERS.items() if each == handling)
        assert f"| {names} | {words}" in section
