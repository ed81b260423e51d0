"""The cases of the Open Responses compliance suite, restated.

The suite checks each response and event with a schema. Here that is done with the types of the
stock SDK, which the SDK itself does not enforce, and with those that Open Responses adds.
"""

from __future__ import annotations

import base64
import json

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from hermes.agents import tool
from hermes.messages import ToolCall
from hermes.testing import ModelAnswer
from tests.support.http_models import CALL, WEATHER, server_with

REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty",
    "top_logprobs", "temperature", "reasoning", "user", "usage", "max_output_tokens",
    "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier",
    "prompt_cache_key",
}  # fmt: skip
NUMBER = (int, float)
TYPES = {
    "id": str, "created_at": int, "completed_at": int, "model": str, "tools": list,
    "truncation": str, "parallel_tool_calls": bool, "text": dict, "top_p": NUMBER,
    "presence_penalty": NUMBER, "frequency_penalty": NUMBER, "top_logprobs": int,
    "temperature": NUMBER, "store": bool, "background": bool, "service_tier": str,
}  # fmt: skip
"""What must not be null, with its type."""
EVENT = TypeAdapter(ResponseStreamEvent)
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


async def post(server, **body):
    answer = await server.http().post("/v1/responses", json={"model": "hermes", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(response):
    """The response has all keys and at least one item."""
    assert response.keys() >= REQUIRED
    Response.model_validate(response)
    for name, kind in TYPES.items():
        assert isinstance(response[name], kind), name
    for item in response["output"]:
        assert item["id"]
        assert item["status"] == "completed"
        for part in item.get("content") or ():
            assert (part["annotations"], part["logprobs"]) == ([], [])
    assert (response["object"], response["status"]) == ("response", "completed")
    assert response["completed_at"] >= response["created_at"]
    assert response["output"]
    assert len({item["id"] for item in response["output"]}) == len(response["output"])
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def texts(request):
    return [message["content"] for message in request.json["messages"]]


async def test_plain_text(path):
    async with server_with(path, ["Hello!"]) as (server, _):
        response = await post(server, input=[{"type": "message", "role": "user", "content": "Hi"}])
        check(response)
        assert response["output"][0]["content"][0]["text"] == "Hello!"


async def test_streaming(path):
    async with server_with(path, ["Hello there, you."]) as (server, _):
        body = {"model": "hermes", "input": "Hi", "stream": True}
        async with server.http().stream("POST", "/v1/responses", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            frames = [line async for line in answer.aiter_lines()]
        events = [json.loads(line[6:]) for line in frames if line.startswith("data: ")]
        names = [line[7:] for line in frames if line.startswith("event: ")]
        assert names == [event["type"] for event in events]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        for event in events:
            EVENT.validate_python(event)
        check(events[-1]["response"])
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "Hello there, you."
        order = list(dict.fromkeys(name for name in names if name != "response.queued"))
        assert order == [
            "response.created", "response.in_progress", "response.output_item.added",
            "response.content_part.added", "response.output_text.delta",
            "response.output_text.done", "response.content_part.done",
            "response.output_item.done", "response.completed",
        ]  # fmt: skip


async def test_a_system_message(path):
    async with server_with(path, ["Arr."]) as (server, model):
        turns = [
            {"type": "message", "role": "system", "content": "You are a pirate."},
            {"type": "message", "role": "user", "content": "Say hello."},
        ]
        check(await post(server, input=turns))
        assert any("You are a pirate." in str(text) for text in texts(model.requests[0]))


async def test_a_function_tool_is_called_and_its_output_returned(path):
    answers = [ModelAnswer(calls=[CALL]), "It is sunny."]
    async with server_with(path, answers) as (server, model):
        client = server.openai()
        choice = {"type": "function", "name": "get_weather"}
        first = await client.responses.create(
            model="hermes", input="Rome?", tools=[WEATHER], tool_choice=choice
        )
        assert first.tool_choice.name == "get_weather"
        [call] = first.output
        assert (call.type, call.name) == ("function_call", "get_weather")
        assert json.loads(call.arguments) == {"city": "Rome"}
        assert first.tools[0].name == "get_weather"
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        second = await client.responses.create(
            model="hermes", input=[output], tools=[WEATHER], previous_response_id=first.id
        )
        assert second.output_text == "It is sunny."
        assert texts(model.requests[1])[-1] == "sunny"
        with pytest.raises(openai.BadRequestError, match="waits for its output"):
            await client.responses.create(
                model="hermes", input=[output], previous_response_id=second.id
            )


async def test_a_function_tool_without_a_stored_conversation(path):
    answers = [ModelAnswer(calls=[CALL]), "It is sunny.", "It is still sunny."]
    async with server_with(path, answers) as (server, model):
        client = server.openai()
        turns = [{"role": "user", "content": "Rome?"}]
        first = await client.responses.create(
            model="hermes", input=turns, tools=[WEATHER], store=False
        )
        turns += [item.to_dict() for item in first.output]
        call_id = first.output[0].call_id
        turns += [{"type": "function_call_output", "call_id": call_id, "output": "sunny"}]
        for store in (False, True):
            second = await client.responses.create(
                model="hermes", input=turns, tools=[WEATHER], store=store
            )
            assert second.output_text.endswith("sunny.")
            roles = [message["role"] for message in model.requests[-1].json["messages"]]
            assert [role for role in roles if role != "system"] == ["user", "assistant", "tool"]


async def test_a_function_tool_is_called_in_a_stream(path):
    async with server_with(path, [ModelAnswer(calls=[CALL])]) as (server, _):
        stream = await server.openai().responses.create(
            model="hermes", input="Rome?", tools=[WEATHER], stream=True
        )
        events = [event async for event in stream]
        for event in events:
            EVENT.validate_python(event.to_dict())
        names = [event.type for event in events]
        assert names[names.index("response.output_item.added") :] == [
            "response.output_item.added", "response.function_call_arguments.delta",
            "response.function_call_arguments.done", "response.output_item.done",
            "response.completed",
        ]  # fmt: skip
        assert json.loads(events[-3].arguments) == {"city": "Rome"}


async def test_an_image_as_a_data_url(path):
    async with server_with(path, ["A pixel."]) as (server, model):
        url = f"data:image/png;base64,{PIXEL}"
        content = [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": url, "detail": "auto"},
        ]
        response = await post(server, input=[{"role": "user", "content": content}])
        check(response)
        assert [file.media_type for file in model.requests[0].files] == ["image/png"]
        items = await server.http().get(f"/v1/responses/{response['id']}/input_items")
        kinds = [part["type"] for part in items.json()["data"][0]["content"]]
        assert kinds == ["input_text", "input_image"]


async def test_a_file_as_a_data_url(path):
    async with server_with(path, ["A title."]) as (server, model):
        data = base64.b64encode(b"%PDF-1.1\n%%EOF").decode()
        content = [
            {"type": "input_text", "text": "Which title has it?"},
            {
                "type": "input_file",
                "filename": "a.pdf",
                "file_data": f"data:application/pdf;base64,{data}",
            },
        ]
        check(await post(server, input=[{"type": "message", "role": "user", "content": content}]))
        assert [file.media_type for file in model.requests[0].files] == ["application/pdf"]


@pytest.mark.parametrize("kind", ["file_search", "web_search"])
async def test_tools_that_run_at_a_provider_are_refused_by_name(path, kind):
    """These cases of the suite are optional."""
    async with server_with(path, []) as (server, _):
        with pytest.raises(openai.BadRequestError, match=kind):
            await server.openai().responses.create(
                model="hermes", input="Search.", tools=[{"type": kind}], tool_choice={"type": kind}
            )


async def test_several_turns_in_the_input(path):
    async with server_with(path, ["Your name is Ann."]) as (server, model):
        turns = [
            {"type": "message", "role": "user", "content": "My name is Ann."},
            {"type": "message", "role": "assistant", "content": "Hello Ann."},
            {"type": "message", "role": "user", "content": "What is my name?"},
        ]
        check(await post(server, input=turns))
        said = [turn["content"] for turn in turns]
        assert texts(model.requests[0])[-3:-1] == said[:2]
        assert "What is my name?" in str(texts(model.requests[0])[-1])


async def test_a_previous_response(path):
    async with server_with(path, ["Hello Ann.", "Ann."]) as (server, model):
        first = await post(server, input="My name is Ann.")
        second = await post(server, input="My name?", previous_response_id=first["id"])
        check(second)
        assert second["previous_response_id"] == first["id"]
        assert "Hello Ann." in texts(model.requests[1])


async def test_a_call_of_the_agents_own_tool_needs_an_approval(path):
    sent = []

    @tool(approval=True)
    async def send_mail(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    mail = ToolCall("call_1", "send_mail", '{"to":"bob"}')
    answers = [ModelAnswer(calls=[mail]), "I wait.", ModelAnswer(calls=[mail]), "Sent."]
    async with server_with(path, answers, tools=[send_mail]) as (server, _):
        client = server.openai()
        first = await client.responses.create(model="hermes", input="Mail Bob.")
        [question] = [item for item in first.output if item.type == "mcp_approval_request"]
        assert (question.name, json.loads(question.arguments)) == ("send_mail", {"to": "bob"})
        assert await client.responses.retrieve(first.id) == first
        decision = {
            "type": "mcp_approval_response", "approval_request_id": question.id, "approve": True,
        }  # fmt: skip
        second = await client.responses.create(
            model="hermes", input=[decision], previous_response_id=first.id
        )
        assert (second.output_text, sent) == ("Sent.", ["bob"])
        with pytest.raises(openai.BadRequestError, match="approved before"):
            await client.responses.create(
                model="hermes", input=[decision], previous_response_id=second.id
            )
