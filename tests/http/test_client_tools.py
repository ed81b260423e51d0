"""Tools, approvals and sampling through the stock SDK."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
import trio

from hermes import Config, ToolCall
from hermes.adapters.http.openai.turn_errors import CODES
from hermes.agents import Endpoint, Secret, chat_agents, tool
from hermes.testing import ModelAnswer, Refuse, inspect, open_model
from tests.support.http import http_server

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function", "name": "weather", "description": "The weather", "parameters": SCHEMA,
    "strict": True,
}  # fmt: skip
CALLS = ModelAnswer(calls=[ToolCall("call_rome", "weather", '{"city":"Rome"}')])
RAN = []


@tool(approval=True)
async def run(command: str) -> str:
    """Run a command."""
    RAN.append(command)
    return f"ran {command}"


@asynccontextmanager
async def server_of(path, model):
    endpoint = Endpoint(base_url=model.openai_url, model="m", key=Secret("k"))
    async with (
        chat_agents(endpoint, tools=[run]) as agents,
        http_server(path, None, build_agent=agents.build, agent_spec=agents.agent_spec) as server,
    ):
        yield server


async def test_a_call_is_answered_by_the_next_response(path):
    async with open_model([CALLS, "It is sunny."]) as model, server_of(path, model) as server:
        client = server.openai()
        first = await client.responses.create(
            model="hermes", input="Weather in Rome?", tools=[WEATHER], tool_choice="required"
        )
        [call] = first.output
        assert (call.type, call.call_id, call.name) == ("function_call", "call_rome", "weather")
        assert (first.status, json.loads(call.arguments)) == ("completed", {"city": "Rome"})
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        second = await client.responses.create(
            model="hermes", previous_response_id=first.id, input=[output], tools=[WEATHER]
        )
        assert second.output_text == "It is sunny."
        with pytest.raises(openai.BadRequestError, match="call_rome"):
            await client.responses.create(
                model="hermes", previous_response_id=second.id, input=[output]
            )
    assert model.requests[0].json["tool_choice"] == "required"


async def test_a_client_may_send_the_whole_history(path):
    """As the documentation of OpenAI does it: the output of a response becomes input."""
    async with open_model([CALLS, "It is sunny."]) as model, server_of(path, model) as server:
        client = server.openai()
        history = [{"role": "user", "content": "Weather in Rome?"}]
        first = await client.responses.create(model="hermes", input=history, tools=[WEATHER])
        history += first.output
        history.append(
            {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}
        )
        second = await client.responses.create(model="hermes", input=history, tools=[WEATHER])
        assert second.output_text == "It is sunny."
    roles = [message["role"] for message in model.requests[1].json["messages"]]
    assert roles == ["user", "assistant", "tool"]


@pytest.mark.parametrize("store", [True, False])
async def test_a_streamed_call_has_its_arguments(path, store):
    async with open_model([CALLS]) as model, server_of(path, model) as server:
        async with server.openai().responses.stream(
            model="hermes", input="Weather?", tools=[WEATHER], store=store
        ) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["function_call"]
    assert [kind for kind in kinds if "function_call" in kind or "item" in kind] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{**WEATHER, "name": "run"}]}, None),
        ({"temperature": 3}, "temperature"),
    ],
)
async def test_what_cannot_be_done_is_refused_before_the_turn(path, options, param):
    async with open_model() as model, server_of(path, model) as server:
        with pytest.raises(openai.BadRequestError) as refused:
            await server.openai().responses.create(model="hermes", input="hi", **options)
        assert refused.value.param == param
    assert not model.requests


async def test_sampling_and_instructions_reach_the_model(path):
    async with open_model() as model, server_of(path, model) as server:
        await server.openai().responses.create(
            model="hermes", input="hi", instructions="Be brief.", temperature=0.5,
            max_output_tokens=20, reasoning={"effort": "low"},
            text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        )  # fmt: skip
    body = model.requests[0].json
    assert (body["temperature"], body["max_tokens"], body["reasoning_effort"]) == (0.5, 20, "low")
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert body["messages"][-1] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("headers", [{}, {"X-Hermes-Conversation": "trip"}])
async def test_chat_completions_have_the_same_tools(path, headers):
    function = {name: WEATHER[name] for name in ("name", "description", "parameters", "strict")}
    tools = [{"type": "function", "function": function}]
    async with open_model([CALLS, "It is sunny."]) as model, server_of(path, model) as server:
        chat = server.openai().chat.completions
        messages = [{"role": "user", "content": "Weather in Rome?"}]
        first = await chat.create(
            model="hermes", messages=messages, tools=tools, extra_headers=headers
        )
        [choice] = first.choices
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls
        assert (call.id, call.function.name) == ("call_rome", "weather")
        messages.append(choice.message)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
        second = await chat.create(
            model="hermes", messages=messages, tools=tools, seed=7, extra_headers=headers
        )
        assert second.choices[0].message.content == "It is sunny."
    roles = [message["role"] for message in model.requests[1].json["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert model.requests[1].json["seed"] == 7


async def test_an_error_of_the_model_is_an_error_of_a_chat_completion(path):
    async with open_model(faults=[Refuse("too_long")] * 9) as model:
        async with server_of(path, model) as server:
            with pytest.raises(openai.BadRequestError) as refused:
                await server.openai().chat.completions.create(
                    model="hermes", messages=[{"role": "user", "content": "hi"}]
                )
    assert refused.value.code == "context_length_exceeded"
    assert "/compact" not in refused.value.message


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Refuse("too_long"), "context_length_exceeded"), (Refuse("no_quota"), "insufficient_quota")],
)
async def test_an_error_of_the_model_has_a_code(path, fault, code):
    async with open_model(faults=[fault] * 9) as model, server_of(path, model) as server:
        response = await server.openai().responses.create(model="hermes", input="hi")
        assert (response.status, response.error.code) == ("failed", code)
        assert response.error.message.startswith("The ")
        assert "Use /" not in response.error.message  # there are no commands


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Refuse("rate_limit", retry_after=3600), 429, "rate_limit_exceeded"),
        (Refuse("overloaded", retry_after=3600), 503, "server_error"),
        (Refuse("bad_key"), 502, "server_error"),
    ],
)
async def test_an_error_of_the_model_has_a_status_in_chat_completions(path, fault, status, code):
    async with open_model(faults=[fault]) as model, server_of(path, model) as server:
        with pytest.raises(openai.APIStatusError) as failed:
            await server.openai(max_retries=2).chat.completions.create(
                model="hermes", messages=[{"role": "user", "content": "hi"}]
            )
    assert (failed.value.status_code, failed.value.code) == (status, code)
    assert failed.value.type == ("rate_limit_error" if status == 429 else "server_error")
    assert "key" not in failed.value.message
    assert len(model.requests) == 1


async def test_a_turn_that_takes_too_long_is_a_timeout(path):
    async def agent(turn):
        await trio.sleep_forever()

    config = Config(turn_timeout=0.01)
    async with http_server(path, agent, runtime_config=config) as server:
        with pytest.raises(openai.InternalServerError) as failed:
            await server.openai().chat.completions.create(
                model="hermes", messages=[{"role": "user", "content": "hi"}]
            )
    assert (failed.value.status_code, failed.value.code) == (504, "timeout")


def test_the_documentation_lists_the_codes():
    text = (Path(__file__).parents[2] / "docs/http.md").read_text()
    rows = [f"| `{kind}` | {status} | `{code}` |" for kind, (status, code) in CODES.items()]
    assert "\n".join(rows) in text


# The SDK stops reading at "[DONE]", and leaves the end of the stream to the garbage collector.
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_chat_completion_decides_about_a_call(path, stream, decision):
    async def ask(messages, **metadata):
        made = await chat.create(
            model="hermes", messages=messages, stream=stream,
            metadata={"conversation": "c", **metadata},
        )  # fmt: skip
        if not stream:
            message = made.choices[0].message
            return message.content, getattr(message, "approvals", [])
        deltas = [chunk.choices[0].delta async for chunk in made]
        shown = [approval for delta in deltas for approval in getattr(delta, "approvals", ())]
        return "".join(delta.content or "" for delta in deltas), shown

    def said(role, text):
        return {"role": role, "content": text}

    asks = ModelAnswer(calls=[ToolCall("c", "run", '{"command":"ls"}')])
    answers = [asks, "May I?", "Done.", "Bye."]
    RAN.clear()
    async with open_model(answers) as model, server_of(path, model) as server:
        chat, messages = server.openai().chat.completions, [said("user", "list my files")]
        answer, [approval] = await ask(messages)
        assert (approval["name"], approval["arguments"]) == ("run", '{"command":"ls"}')
        messages += [said("assistant", answer), said("user", "well")]
        answer, none = await ask(messages, **{decision: approval["id"]})
        assert (answer, none) == ("Done.", [])
        messages += [said("assistant", answer), said("user", "thanks")]
        assert await ask(messages) == ("Bye.", [])
        assert len(await server.runtime.api.conversations()) == 1  # no branch
        with pytest.raises(openai.BadRequestError):
            await ask(messages, **{decision: "x"})
        with pytest.raises(openai.BadRequestError):
            await ask([*messages, said("assistant", "Bye."), said("user", "?")], approve="1")
    ran = ["ls"] if decision == "approve" else []
    assert ran == RAN


async def test_an_approval_is_asked_and_given_through_the_api(path, sql):
    asks = ModelAnswer(calls=[ToolCall("c", "run", '{"command":"ls"}')])
    RAN.clear()
    async with open_model([asks, "May I?", "Done."]) as model, server_of(path, model) as server:
        client = server.openai()
        first = await client.responses.create(model="hermes", input="list my files")
        await inspect(server.runtime).context.questions.flush()
        assert sql("SELECT shown_after FROM approvals") != [[None]]
        question = first.output[-1]
        assert (question.type, question.server_label) == ("mcp_approval_request", "hermes")
        assert (question.name, json.loads(question.arguments)) == ("run", {"command": "ls"})
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": question.id,
            "approve": True,
        }
        second = await client.responses.create(
            model="hermes", previous_response_id=first.id, input=[answer]
        )
        assert second.output_text == "Done."
        with pytest.raises(openai.BadRequestError, match="was approved before"):
            await client.responses.create(
                model="hermes", previous_response_id=second.id, input=[answer]
            )
    assert RAN == ["ls"]


@pytest.mark.parametrize("stream", [True, False])
async def test_without_a_conversation_no_decision_is_asked_for(path, stream):
    """Nobody could answer: the next request belongs to no conversation, too."""
    asks = ModelAnswer(calls=[ToolCall("c", "run", '{"command":"ls"}')])
    async with open_model([asks, "Sorry."]) as model, server_of(path, model) as server:
        body = {"input": "list my files", "store": False, "stream": stream}
        answer = await server.http().post("/v1/responses", json=body)
    assert "Sorry." in answer.text
    assert "mcp_approval_request" not in answer.text


async def test_a_waiting_call_survives_an_export(path, tmp_path):
    """It is a row of the transcript. What does not survive is the id of its response."""
    output = {"type": "function_call_output", "call_id": "call_rome", "output": "sunny"}
    async with open_model([CALLS]) as model, server_of(path, model) as server:
        client = server.openai()
        conversation = (await client.conversations.create()).id
        first = await client.responses.create(
            model="hermes", input="Weather in Rome?", tools=[WEATHER], conversation=conversation
        )
        view = (await server.http().get(f"/api/conversations/{conversation}")).json()
        store = inspect(server.runtime).store
        lines = [line async for line in store.export_lines(view["session_id"])]
    async with (
        open_model(["It is sunny."]) as model,
        server_of(tmp_path / "imported.db", model) as server,
    ):
        await inspect(server.runtime).store.import_sessions(lines)
        client, url = server.openai(), f"/api/conversations/{conversation}"
        switched = await server.http().post(f"{url}/switch", json={"target": view["session_id"]})
        assert switched.status_code == 200, switched.text
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(
                model="hermes", previous_response_id=first.id, input=[output]
            )
        second = await client.responses.create(
            model="hermes", conversation=conversation, input=[output], tools=[WEATHER]
        )
        assert second.output_text == "It is sunny."
    roles = [message["role"] for message in model.requests[0].json["messages"]]
    assert roles[-3:] == ["user", "assistant", "tool"]
