"""Responses through the stock SDK."""

from __future__ import annotations

import openai
import pytest
import trio

from hermes.events import ReasoningDelta, TextDelta, ToolFinished, ToolStarted
from hermes.messages import ToolCall, TurnResult, Usage
from hermes.protocols import Summary
from tests.support.http import http_server, new_token
from tests.support.raw_http import (
    connect,
    read_events,
    request_of_stream,
    until_connections,
)


async def busy(turn):
    """Think, call a tool, and answer."""
    turn.emit(ReasoningDelta("hmm"))
    turn.emit(TextDelta("let me see"))
    turn.emit(ToolStarted(ToolCall("c1", "look", '{"at": 1}')))
    turn.emit(ToolFinished("c1", "a bird"))
    for word in ("It is ", "a bird", "."):
        turn.emit(TextDelta(word))
        await trio.lowlevel.checkpoint()
    turn.charge(Usage(input_tokens=10, output_tokens=5, cache_read_tokens=7, reasoning_tokens=2))
    return "It is a bird."


class Gate:
    """An agent that waits between two words, and counts its turns."""

    def __init__(self):
        self.started = trio.Event()
        self.open = trio.Event()
        self.seen = []

    async def __call__(self, turn):
        self.seen.append([message.content for message in turn.messages()])
        turn.emit(TextDelta("one "))
        self.started.set()
        await self.open.wait()
        turn.emit(TextDelta("two"))
        return "one two"


async def test_a_response_is_stored_with_its_message(path):
    async with http_server(path) as server:
        answer = await server.openai().responses.create(model="hermes", input="hello")
        assert answer.output_text == "echo: hello"
        assert (answer.status, answer.model, answer.store) == ("completed", "hermes", True)
        stored = await server.runtime.api.get_response(answer.id)
        assert stored.reply.text == "echo: hello"
        await until_connections(server.runtime, "complete")


async def test_a_request_without_a_token_is_refused(path):
    async with http_server(path) as server:
        with pytest.raises(openai.AuthenticationError):
            await server.openai("wrong").models.list()


async def test_a_stream_ends_with_the_stored_response(path):
    async with http_server(path, busy) as server:
        client = server.openai()
        stream = await client.responses.create(model="hermes", input="what?", stream=True)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
        final = events[-1].response
        kinds = [item.type for item in final.output]
        assert kinds == [
            "reasoning", "message", "function_call", "function_call_output", "message",
        ]  # fmt: skip
        assert await client.responses.retrieve(final.id) == final
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert deltas == ["let me see", "It is ", "a bird", "."]


async def test_usage_counts_cached_tokens_as_input(path):
    async with http_server(path, busy) as server:
        answer = await server.openai().responses.create(model="hermes", input="what?")
        usage = answer.usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (17, 5, 22)
        assert usage.input_tokens_details.cached_tokens == 7
        assert usage.output_tokens_details.reasoning_tokens == 2


async def test_the_stream_helper_of_the_sdk(path):
    async with http_server(path, busy) as server:
        async with server.openai().responses.stream(model="hermes", input="?") as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        assert final.output[-1].content[0].text == "It is a bird."


async def test_a_response_in_the_background_is_resumed_and_retrieved(path):
    gate = Gate()
    async with http_server(path, gate) as server:
        client = server.openai()
        waiting = await client.responses.create(model="hermes", input="?", background=True)
        assert waiting.status in {"queued", "in_progress"}
        await gate.started.wait()
        assert (await client.responses.retrieve(waiting.id)).status == "in_progress"
        async with connect(server) as stream:
            url = f"/v1/responses/{waiting.id}?stream=true"
            await stream.send_all(request_of_stream(server, url))
            first = await read_events(stream, "response.output_text.delta")
        [item] = (await client.responses.retrieve(waiting.id)).output
        assert (item.status, item.content[0].text) == ("in_progress", "one ")
        gate.open.set()
        after = first[-1]["sequence_number"]
        rest = [
            event
            async for event in await client.responses.retrieve(
                waiting.id, stream=True, starting_after=after
            )
        ]
        numbers = [event["sequence_number"] for event in first]
        numbers += [event.sequence_number for event in rest]
        assert numbers == list(range(len(numbers)))
        assert rest[0].delta == "two"
        assert rest[-1].response == await client.responses.retrieve(waiting.id)


async def test_any_number_of_clients_get_the_same_stream(path):
    gate = Gate()
    streams = []

    async def read(client, response_id):
        stream = await client.responses.retrieve(response_id, stream=True)
        streams.append([event.to_json() async for event in stream])

    async with http_server(path, gate) as server:
        client = server.openai()
        waiting = await client.responses.create(model="hermes", input="?", background=True)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read, client, waiting.id)
            await gate.started.wait()
            await client.responses.retrieve(waiting.id)
            gate.open.set()
        await read(client, waiting.id)
    assert streams[1:] == streams[:1] * 3


async def test_a_response_that_nobody_saw_is_streamed_from_the_store(path):
    async with http_server(path, busy) as server:
        client = server.openai()
        answer = await client.responses.create(model="hermes", input="?")
        stream = await client.responses.retrieve(answer.id, stream=True)
        events = [event async for event in stream]
        first = events[0].sequence_number
        assert first == 1_000_000_000
        assert [event.sequence_number for event in events] == [
            first + n for n in range(len(events))
        ]
        assert events[-1].response == answer
        resumed = await client.responses.retrieve(answer.id, stream=True, starting_after=first + 3)
        assert [event async for event in resumed] == events[4:]
        # A client that saw the stream of an earlier process gets the whole response.
        for wrong in ("--1", "x", "9" * 5000):
            query = {"stream": "true", "starting_after": wrong}
            refused = await server.http().get(f"/v1/responses/{answer.id}", params=query)
            assert refused.json()["error"]["param"] == "starting_after"
        again = await client.responses.retrieve(answer.id, stream=True, starting_after=3)
        assert [event async for event in again] == events


async def test_cancel_interrupts_a_turn_and_withdraws_a_waiting_message(path):
    gate = Gate()
    async with http_server(path, gate) as server:
        client = server.openai()
        running = await client.responses.create(model="hermes", input="1", background=True)
        await gate.started.wait()
        waiting = await client.responses.create(
            model="hermes", input="2", background=True, previous_response_id=running.id
        )
        assert waiting.status == "queued"
        assert (await client.responses.cancel(waiting.id)).status == "cancelled"
        cancelled = await client.responses.cancel(running.id)
        assert cancelled.status == "cancelled"
        assert cancelled.output[0].status == "incomplete"
        assert cancelled.output_text == "one "
        assert await client.responses.cancel(running.id) == cancelled
        assert len(gate.seen) == 1


async def test_a_deleted_response_is_gone_and_others_are_unknown(path):
    async with http_server(path) as server:
        client = server.openai()
        answer = await client.responses.create(model="hermes", input="1")
        stranger = server.openai(await new_token(server.runtime, "bob"))
        for call in (stranger.responses.retrieve, stranger.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(answer.id)
        with pytest.raises(openai.NotFoundError):
            await stranger.responses.create(
                model="hermes", input="2", previous_response_id=answer.id
            )
        await client.responses.delete(answer.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(answer.id)


async def test_the_next_response_continues_the_conversation(path):
    seen = []

    async def agent(turn):
        seen.append([message.content for message in turn.messages()])
        return f"to {turn.text}"

    async with http_server(path, agent) as server:
        client = server.openai()
        first = await client.responses.create(model="hermes", input="1")
        second = await client.responses.create(
            model="hermes", input="2", previous_response_id=first.id
        )
        assert second.previous_response_id == first.id
        assert seen[-1] == ["1", "to 1", "2"]
        assert first.conversation == second.conversation
        await client.responses.create(model="hermes", input="3", conversation=first.conversation.id)
        assert seen[-1] == ["1", "to 1", "2", "to 2", "3"]
        branch = await client.responses.create(
            model="hermes", input="4", previous_response_id=first.id
        )
        assert seen[-1] == ["1", "to 1", "4"]
        assert branch.conversation != first.conversation
        await client.responses.create(model="hermes", input="5", previous_response_id=branch.id)
        assert seen[-1] == ["1", "to 1", "4", "to 4", "5"]
        await client.responses.create(model="hermes", input="6", conversation=first.conversation.id)
        assert seen[-1] == ["1", "to 1", "2", "to 2", "3", "to 3", "6"]
        sessions = await server.runtime.admin.sessions()
        assert sorted(each.session.kind for each in sessions) == ["branch", "new"]
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="hermes", input="4", conversation="conv_none")


async def test_of_two_requests_after_the_same_response_one_continues_it(path):
    gate, answers = Gate(), []

    async def follow(client, previous):
        answers.append(
            await client.responses.create(
                model="hermes", input="?", background=True, previous_response_id=previous
            )
        )

    async with http_server(path, gate) as server:
        client = server.openai()
        gate.open.set()
        first = await client.responses.create(model="hermes", input="1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, client, first.id)
            nursery.start_soon(follow, client, first.id)
        continued = [each for each in answers if each.conversation == first.conversation]
        assert len(continued) == 1
        await client.responses.create(model="hermes", input="2", previous_response_id=answers[0].id)
        await client.responses.create(model="hermes", input="2", previous_response_id=answers[1].id)
        assert gate.seen[-2:] == [["1", "one two", "?", "one two", "2"]] * 2


async def test_a_compressed_conversation_is_continued(path):
    seen = []

    async def agent(turn):
        seen.append([message.content for message in turn.messages()])
        return f"to {turn.text}"

    class Compressor:
        async def summarize(self, request):
            return Summary("a summary")

    async with http_server(path, agent, compressor=Compressor()) as server:
        client = server.openai()
        first = second = await client.responses.create(model="hermes", input="1" * 1000)
        for _ in range(5):
            second = await client.responses.create(
                model="hermes", input="2" * 1000, previous_response_id=second.id
            )
        key = (await server.runtime.api.get_response(first.id)).session_key
        change = await server.runtime.conversation(key).compress(keep_exchanges=1)
        assert change.changed
        third = await client.responses.create(
            model="hermes", input="3", previous_response_id=second.id
        )
        assert third.conversation == first.conversation
        assert any("a summary" in text for text in seen[-1])
        assert third.conversation == first.conversation
        branch = await client.responses.create(
            model="hermes", input="4", previous_response_id=second.id
        )
        assert branch.conversation != first.conversation
        assert len(seen[-1]) == 13  # all messages before the compression, and the new one


async def test_a_failed_turn_is_a_failed_response(path):
    async def agent(turn):
        turn.emit(TextDelta("I was about to"))
        return TurnResult(failed=True, error="the model is gone")

    async with http_server(path, agent) as server:
        client = server.openai()
        answer = await client.responses.create(model="hermes", input="?")
        assert answer.status == "failed"
        assert "the model is gone" in answer.error.message
        stream = await client.responses.create(model="hermes", input="?", stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error == answer.error


async def test_a_partial_answer_is_an_incomplete_response(path):
    async def agent(turn):
        return TurnResult(text="so far", partial=True)

    async with http_server(path, agent) as server:
        answer = await server.openai().responses.create(model="hermes", input="?")
        assert answer.status == "incomplete"
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert answer.output[0].status == "incomplete"


async def test_a_text_that_is_started_again_stays_as_an_incomplete_item(path):
    async def agent(turn):
        turn.emit(TextDelta("wrong"))
        turn.emit(TextDelta("", restart=True))
        turn.emit(TextDelta("right"))
        return "right"

    async with http_server(path, agent) as server:
        client = server.openai()
        stream = await client.responses.create(model="hermes", input="?", stream=True)
        final = [event async for event in stream][-1].response
        assert [item.status for item in final.output] == ["incomplete", "completed"]
        assert final.output_text == "right"
        assert await client.responses.retrieve(final.id) == final
        plain = await client.responses.create(model="hermes", input="?")
        assert [item.status for item in plain.output] == ["completed"]


async def test_several_turns_in_the_input_are_the_history(path):
    gate = Gate()
    gate.open.set()
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "My name is Ann."},
        {"role": "assistant", "content": "Hello Ann!"},
        {"role": "user", "content": "What is my name?"},
    ]
    async with http_server(path, gate) as server:
        client = server.openai()
        first = await client.responses.create(model="hermes", input=turns)
        said = ["My name is Ann.", "Hello Ann!", "What is my name?"]
        assert gate.seen[-1] == said
        await client.responses.create(model="hermes", input="And?", previous_response_id=first.id)
        assert gate.seen[-1] == [*said, "one two", "And?"]
        unstored = await client.responses.create(model="hermes", input=turns, store=False)
        assert gate.seen[-1] == said
        assert unstored.output_text == "one two"
        assert not unstored.store
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unstored.id)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"colour": "red"}, "colour"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"stream": "yes"}, "stream"),
        ({"conversation": "conv_x", "previous_response_id": "resp_x"}, "conversation"),
        ({"store": False, "conversation": "conv_x"}, "store"),
        ({"store": False, "background": True}, "background"),
        ({"conversation": {}}, "conversation"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(path, body, param):
    async with http_server(path) as server:
        answer = await server.http().post("/v1/responses", json={"input": "?", **body})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
