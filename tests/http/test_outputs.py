"""What a response says about tools that were used, white space, and limits of tokens."""

from __future__ import annotations

import pytest

from hermes.agents import tool
from hermes.events import TextDelta
from hermes.messages import ToolCall
from hermes.testing import ModelAnswer
from tests.support.http import http_server
from tests.support.http_models import CALL, WEATHER, server_with


@tool
async def look(where: str) -> str:
    """Look somewhere."""
    return f"a bird in {where}"


async def created(client, *, stream, **options):
    """Create a response, plain or as a stream."""
    response = await client.responses.create(model="hermes", stream=stream, **options)
    if not stream:
        return response
    return [event async for event in response][-1].response


def shape(response):
    return [(item.type, getattr(item, "call_id", None), item.status) for item in response.output]


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_of_the_agent_are_shown_without_a_stored_conversation(path, stream):
    call = ToolCall("c1", "look", '{"where":"Rome"}')
    answers = [ModelAnswer("I look.", calls=[call]), "A bird."]
    async with server_with(path, answers, tools=[look]) as (server, _):
        response = await created(server.openai(), stream=stream, input="?", store=False)
        assert shape(response) == [
            ("message", None, "completed"), ("function_call", "c1", "completed"),
            ("function_call_output", "c1", "completed"), ("message", None, "completed"),
        ]  # fmt: skip
        assert response.output[2].output == "a bird in Rome"
        assert response.output_text == "I look.A bird."


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_of_the_client_are_called_without_a_stored_conversation(path, stream):
    answers = [ModelAnswer("I ask.", calls=[CALL])]
    async with server_with(path, answers) as (server, _):
        response = await created(
            server.openai(), stream=stream, input="?", store=False, tools=[WEATHER]
        )
        assert [item.type for item in response.output] == ["message", "function_call"]
        assert response.output[1].name == "get_weather"


@pytest.mark.parametrize("said", ["Hello.\n", "\n\nHello.", " Hello. "])
@pytest.mark.parametrize("store", [False, True])
async def test_white_space_around_an_answer_does_not_repeat_it(path, said, store):
    async def agent(turn):
        turn.emit(TextDelta(said))
        return "Hello."

    async with http_server(path, agent) as server:
        response = await created(server.openai(), stream=True, input="?", store=store)
        assert response.output_text == "Hello."
        assert shape(response) == [("message", None, "completed")]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_of_tokens_that_is_reached_before_the_answer(path, stream):
    answers = [ModelAnswer("", reasoning="Hm.", finish="length")]
    async with server_with(path, answers) as (server, _):
        response = await created(server.openai(), stream=stream, input="?", max_output_tokens=5)
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_completion_whose_limit_of_tokens_is_reached_before_the_answer(path):
    answers = [ModelAnswer("", reasoning="Hm.", finish="length")]
    async with server_with(path, answers) as (server, _):
        completion = await server.openai().chat.completions.create(
            model="hermes", messages=[{"role": "user", "content": "?"}], max_tokens=5
        )
        assert completion.choices[0].finish_reason == "length"


async def test_an_item_has_the_same_id_in_its_response_and_its_conversation(path):
    calls = [ToolCall("c1", "look", '{"where":"Rome"}'), ToolCall("c2", "look", '{"where":"Oslo"}')]
    asks = ModelAnswer("I ask.", reasoning="Hm.", calls=[CALL, calls[0]])
    answers = [ModelAnswer("I look.", reasoning="Hm.", calls=calls), "Birds.", asks, "Sun."]
    async with server_with(path, answers, tools=[look]) as (server, _):
        client = server.openai()
        first = await client.responses.create(model="hermes", input="Birds?", tools=[WEATHER])
        follow = {"model": "hermes", "conversation": first.conversation.id, "tools": [WEATHER]}
        second = await client.responses.create(input="And weather?", **follow)
        call = second.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        third = await client.responses.create(input=[result], **follow)
        items = client.conversations.items
        listed = {item.id: item async for item in items.list(first.conversation.id, limit=100)}
        expected = []
        for response in (first, second, third):
            given = client.responses.input_items.list(response.id, order="asc")
            expected += [item.id async for item in given]
            expected += [item.id for item in response.output]
        assert sorted(listed) == sorted(expected)
        for item in [*first.output, *second.output, *third.output]:
            other = await items.retrieve(item.id, conversation_id=first.conversation.id)
            assert other.to_dict() == listed[item.id].to_dict()
            assert (other.type, other.status) == (item.type, item.status)
            assert getattr(other, "content", None) == getattr(item, "content", None)
            assert getattr(other, "call_id", None) == getattr(item, "call_id", None)


async def test_the_ids_of_a_conversation_differ_if_its_model_uses_the_id_of_a_call_again(path):
    again = ModelAnswer(calls=[ToolCall("c1", "look", '{"where":"Rome"}')])
    async with server_with(path, [again, again, "Birds."], tools=[look]) as (server, _):
        client = server.openai()
        response = await client.responses.create(model="hermes", input="Birds?")
        listed = client.conversations.items.list(response.conversation.id, limit=100)
        ids = [item.id async for item in listed]
        assert len(set(ids)) == len(ids) == 1 + len(response.output)
