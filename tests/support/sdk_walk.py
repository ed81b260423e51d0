"""A walk through every call of the stock SDK that the server answers.

The walk is a generator: it yields what a call returns, and is sent the result. So one text serves
the synchronous client and the asynchronous one on any event loop. A stream is sent as the list of
its events. Run as a program, the walk uses the asynchronous client on asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import sys

import openai
from openai.lib.streaming.chat import (
    AsyncChatCompletionStreamManager,
    ChatCompletionStreamManager,
)
from openai.lib.streaming.responses import AsyncResponseStreamManager, ResponseStreamManager
from openai.types.responses import Response

STREAMS = (openai.Stream, ResponseStreamManager, ChatCompletionStreamManager)
ASYNC_STREAMS = (openai.AsyncStream, AsyncResponseStreamManager, AsyncChatCompletionStreamManager)


def walk(client):
    """Make every call, and check what it returns."""
    yield from models(client)
    first = yield from responses(client)
    yield from streams(client)
    yield from background(client, first)
    yield from running(client)
    yield from conversations(client)
    yield from completions(client)
    yield from files(client)
    yield from refusals(client)


def models(client):
    page = yield client.models.list()
    assert "hermes" in [each.id for each in page.data]
    model = yield client.models.retrieve("hermes")
    assert model.id == "hermes"


def responses(client):
    first = yield client.responses.create(model="hermes", input="one")
    assert (first.status, first.output_text) == ("completed", "echo: one")
    found = yield client.responses.retrieve(first.id)
    assert found == first
    second = yield client.responses.create(
        model="hermes", input="two", previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    items = yield client.responses.input_items.list(second.id)
    assert "two" in str(items.data)
    raw = yield client.responses.with_raw_response.create(
        model="hermes", input="three", extra_headers={"Idempotency-Key": "k"}
    )
    again = yield client.responses.create(
        model="hermes", input="three", extra_headers={"Idempotency-Key": "k"}
    )
    assert raw.parse().id == again.id
    return first


def streams(client):
    events = yield client.responses.create(model="hermes", input="hi", stream=True)
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    text = "".join(each.delta for each in events if each.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == "echo: hi"
    rest = yield client.responses.retrieve(events[0].response.id, stream=True, starting_after=2)
    assert [each.type for each in rest] == [each.type for each in events[3:]]
    helped = yield client.responses.stream(model="hermes", input="helper")
    assert helped[-1].response.output_text == "echo: helper"


def background(client, first):
    queued = yield client.responses.create(model="hermes", input="later", background=True)
    assert queued.status in {"queued", "in_progress", "completed"}
    events = yield client.responses.retrieve(queued.id, stream=True)
    assert events[-1].response.output_text == "echo: later"
    cancelled = yield client.responses.cancel(queued.id)
    assert cancelled.status == "completed"  # it had ended
    yield client.responses.delete(first.id)
    yield from refused(lambda: client.responses.retrieve(first.id), openai.NotFoundError)


def running(client):
    """Steer and cancel a response whose turn would never end; it is streamed at the same time."""
    made = yield client.responses.create(model="hermes", input="wait", background=True)
    while made.status == "queued":
        made = yield client.responses.retrieve(made.id)
    assert made.status == "in_progress"
    waiting = yield client.responses.create(
        model="hermes", input="next", background=True, conversation=made.conversation.id
    )
    assert waiting.status == "queued"
    steered = yield client.post(
        f"/responses/{made.id}/steer", cast_to=Response, body={"input": "more"}
    )
    assert (steered.id, steered.status) == (made.id, "in_progress")
    cancelled = yield client.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    events = yield client.responses.retrieve(made.id, stream=True)
    assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")
    events = yield client.responses.retrieve(waiting.id, stream=True)
    assert events[-1].response.output_text == "echo: next"


def conversations(client):
    said = [{"type": "message", "role": "user", "content": "before"}]
    made = yield client.conversations.create(metadata={"topic": "walk"}, items=said)
    found = yield client.conversations.retrieve(made.id)
    assert found.metadata == {"topic": "walk"}
    changed = yield client.conversations.update(made.id, metadata={"topic": "changed"})
    assert changed.metadata == {"topic": "changed"}
    answer = yield client.responses.create(model="hermes", input="inside", conversation=made.id)
    assert answer.conversation.id == made.id
    items = yield client.conversations.items.list(made.id)
    assert "inside" in str(items.data)
    item = yield client.conversations.items.retrieve(items.data[0].id, conversation_id=made.id)
    assert item.id == items.data[0].id
    added = yield client.conversations.items.create(
        made.id, items=[{"type": "message", "role": "assistant", "content": "after"}]
    )
    assert "after" in str(added.data)
    items = yield client.conversations.items.list(made.id, order="asc", limit=1)
    assert ("before" in str(items.data), items.has_more) == (True, True)
    delete = client.conversations.items.delete
    yield from refused(lambda: delete(item.id, conversation_id=made.id), openai.BadRequestError)
    deleted = yield client.conversations.delete(made.id)
    assert deleted.deleted
    yield from refused(lambda: client.conversations.retrieve(made.id), openai.NotFoundError)


def completions(client):
    said = [{"role": "user", "content": "hello"}]
    answer = yield client.chat.completions.create(model="hermes", messages=said)
    assert answer.choices[0].message.content == "echo: hello"
    chunks = yield client.chat.completions.create(
        model="hermes", messages=said, stream=True, stream_options={"include_usage": True}
    )
    texts = [each.choices[0].delta.content or "" for each in chunks if each.choices]
    assert "".join(texts) == "echo: hello"
    assert chunks[-1].usage is not None
    events = yield client.chat.completions.stream(model="hermes", messages=said)
    assert events[-1].content == "echo: hello"
    named = {"X-Hermes-Conversation": "walk"}
    answer = yield client.chat.completions.create(
        model="hermes", messages=said, extra_headers=named
    )
    reply = {"role": "assistant", "content": answer.choices[0].message.content}
    answer = yield client.chat.completions.create(
        model="hermes", messages=[*said, reply, *said], extra_headers=named
    )
    assert answer.choices[0].message.content == "echo: hello"


def files(client):
    file = yield client.files.create(file=("a.txt", b"some text"), purpose="user_data")
    found = yield client.files.retrieve(file.id)
    assert (found.filename, found.bytes) == ("a.txt", 9)
    content = yield client.files.content(file.id)
    assert content.content == b"some text"
    page = yield client.files.list()
    assert file.id in [each.id for each in page.data]
    deleted = yield client.files.delete(file.id)
    assert deleted.deleted


def refusals(client):
    create = client.responses.create
    yield from refused(
        lambda: create(model="hermes", input="x", max_tool_calls=1), openai.BadRequestError
    )
    yield from refused(
        lambda: create(model="hermes", input="x", extra_headers={"Idempotency-Key": "k"}),
        openai.UnprocessableEntityError,
    )
    yield from refused(lambda: client.models.retrieve("unknown"), openai.NotFoundError)


def refused(call, kind):
    """Expect an error of a call."""
    try:
        yield call()
    except kind:
        return
    raise AssertionError(f"a call did not raise {kind.__name__}")


# Drivers


def walk_blocking(client):
    """Walk with the synchronous client."""
    steps, result = walk(client), None
    while True:
        try:
            result = steps.send(result)
        except StopIteration:
            return
        if isinstance(result, STREAMS):
            with result as stream:
                result = list(stream)


async def walk_async(client):
    """Walk with the asynchronous client, on any event loop."""
    steps, result, error = walk(client), None, None
    while True:
        try:
            step = steps.send(result) if error is None else steps.throw(error)
        except StopIteration:
            return
        result, error = None, None
        try:
            result = await step if inspect.isawaitable(step) else step
            if isinstance(result, ASYNC_STREAMS):
                async with result as stream:
                    result = [each async for each in stream]
        except openai.APIError as refusal:
            error = refusal


async def main(url, secret):
    async with openai.AsyncOpenAI(base_url=url, api_key=secret, max_retries=0) as client:
        await walk_async(client)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
