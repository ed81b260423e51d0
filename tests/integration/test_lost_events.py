"""No text of a model is lost silently: halves of characters are joined, and gaps are visible."""

from __future__ import annotations

import json

import pytest
import trio

from hermes.agents import Endpoint, chat_agents
from hermes.agents.providers.anthropic_messages import _StreamedAnswer as AnthropicAnswer
from hermes.agents.providers.base import Unavailable
from hermes.agents.providers.openai_chat import _StreamedAnswer as OpenAIAnswer
from hermes.agents.providers.stream_events import MAX_LOST, HalfJoiner
from hermes.agents.tools.toolbox import tool
from hermes.errors import CompressorFailed
from hermes.events import TextDelta
from hermes.messages import Message, ToolCall
from hermes.protocols import SummaryRequest
from hermes.testing import Garbage, ModelAnswer, open_model
from hermes.texts import ENGLISH
from tests.support.runtime import SECONDS

ENDPOINT = Endpoint(base_url="http://x", model="m", name="lamp")
HALVES = [r"press \ud83d", r"\udfe5 the red button"]  # as JSON; the two halves of one emoji
WHOLE = "press \U0001f7e5 the red button"
GARBAGE = [
    b'{"choices": [{"delta": {"cont',
    b"42",
    b"<html>502</html>",
    b'{"type": "\xff", "model": "\xff"}',
]


class OpenAI:
    """Events of chat completions with a text, as JSON escapes."""

    end = b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}'

    def answer(self, on_delta):
        return OpenAIAnswer(ENDPOINT, on_delta)

    def text(self, escaped):
        return b'{"choices": [{"delta": {"content": "%b"}}]}' % escaped.encode()

    def reasoning(self, escaped):
        return b'{"choices": [{"delta": {"reasoning": "%b"}}]}' % escaped.encode()

    def arguments(self, escaped):
        call = b'{"index": 0, "id": "c", "function": {"name": "f", "arguments": "%b"}}'
        return b'{"choices": [{"delta": {"tool_calls": [%b]}}]}' % (call % escaped.encode())


class Anthropic:
    """Events of messages with a text, as JSON escapes."""

    end = b'{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}'
    fields = ("text", "thinking")

    def answer(self, on_delta):
        answer = AnthropicAnswer(ENDPOINT, on_delta)
        for index, kind in enumerate(self.fields):
            block = {"type": kind}
            start = {"type": "content_block_start", "index": index, "content_block": block}
            answer.feed(json.dumps(start).encode())
        return answer

    def delta(self, field, escaped):
        index = self.fields.index(field)
        delta = '{"type": "content_block_delta", "index": %d, "delta": {"%s": "%s"}}'
        return (delta % (index, field, escaped)).encode()

    def text(self, escaped):
        return self.delta("text", escaped)

    def reasoning(self, escaped):
        return self.delta("thinking", escaped)


@pytest.fixture(params=[OpenAI, Anthropic])
def dialect(request):
    return request.param()


@pytest.fixture
def deltas():
    return []


def shown(deltas):
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def completed(dialect, deltas, *events):
    answer = dialect.answer(deltas.append)
    for event in [*events, dialect.end]:
        answer.feed(event)
    return answer.completion()


def test_the_halves_of_a_character_in_two_events_are_joined(dialect, deltas):
    events = [make(half) for half in HALVES for make in (dialect.text, dialect.reasoning)]
    completion = completed(dialect, deltas, *events)
    message = completion.message
    assert (message.content, message.reasoning) == (WHOLE, WHOLE)
    assert shown(deltas) == WHOLE
    assert not completion.damaged


def test_halves_as_bytes_are_joined(dialect, deltas):
    """Some servers encode each half by itself, as if it were a character."""
    halves = [dialect.text("%s").replace(b"%s", h) for h in (b"\xed\xa0\xbd", b"\xed\xbf\xa5!")]
    assert completed(dialect, deltas, *halves).message.content == "\U0001f7e5!"


def test_the_halves_of_a_character_in_arguments_are_joined(deltas):
    pieces = [r"{\"a\": \"\ud83d", r"\udfe5\"}"]
    completion = completed(OpenAI(), deltas, *map(OpenAI().arguments, pieces))
    assert completion.message.tool_calls == (ToolCall("c", "f", '{"a": "\U0001f7e5"}'),)


@pytest.mark.parametrize("events", [[r"a\ud83d", "b"], [r"a\udfe5b"], [r"ab\ud83d"]])
def test_half_a_character_damages_the_answer(dialect, deltas, events):
    completion = completed(dialect, deltas, *map(dialect.text, events))
    assert completion.damaged
    assert completion.message.content.replace("\ufffd", "") == "ab"
    assert shown(deltas) == completion.message.content


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_event_that_cannot_be_decoded_damages_the_answer(dialect, deltas, garbage):
    completion = completed(dialect, deltas, dialect.text("a"), garbage, dialect.text("b"))
    assert (completion.message.content, completion.damaged) == ("ab", True)
    assert shown(deltas) == "ab"


@pytest.mark.parametrize("empty", [b"", b" "])
def test_an_empty_event_is_nothing(dialect, deltas, empty):
    completion = completed(dialect, deltas, dialect.text("a"), empty)
    assert (completion.message.content, completion.damaged) == ("a", False)


def test_too_many_events_that_cannot_be_decoded_are_a_failure(dialect, deltas):
    with pytest.raises(Unavailable, match="lamp sent malformed data"):
        completed(dialect, deltas, *[GARBAGE[0]] * (MAX_LOST + 1))


def test_a_gap_in_an_answer_with_tool_calls_is_a_failure(deltas):
    """A part of the arguments may be missing, so that the call must not run."""
    with pytest.raises(Unavailable, match="malformed answer with tool calls"):
        completed(OpenAI(), deltas, OpenAI().arguments("{}"), GARBAGE[0])


def test_a_pair_in_one_piece_is_not_changed():
    joiner = HalfJoiner()
    assert [joiner.feed(piece) for piece in ("a", "\U0001f7e5ü", "")] == ["a", "\U0001f7e5ü", ""]
    assert joiner.finish() == ""
    assert not joiner.broken


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_a_turn_with_a_gap_is_partial_and_says_so(start, protocol):
    called = []

    @tool
    def look() -> str:
        """Look."""
        called.append(1)
        return "seen"

    call = ModelAnswer(calls=[ToolCall("c", "look", "{}")])
    script = ["one two three", call, call, "done"]
    faults = [Garbage(2), Garbage(2), None, None]
    with trio.fail_after(SECONDS):
        async with open_model(script, faults) as model:
            url = model.openai_url if protocol == "openai" else model.anthropic_url
            endpoint = Endpoint(base_url=url, model="m")
            async with (
                chat_agents(endpoint, protocol=protocol, tools=[look]) as agents,
                start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
            ):
                async with runtime.stream("k", "hi") as stream:
                    events = [event async for event in stream]
                reply = events[-1].reply
                assert shown(events) == reply.text
                text = f"one two three\n\n{ENGLISH.part_missing}"
                assert (reply.text, reply.status) == (text, "partial")
                rows = await runtime.conversation("k").history()
                assert rows[-1].content == reply.text
                # The call of the damaged answer was not made; the answer was asked for again.
                reply = await runtime.ask("k", "look")
                assert (reply.status, called, len(model.requests)) == ("complete", [1], 4)


async def test_a_summary_with_a_gap_is_not_used():
    async with (
        open_model(["a summary"], [Garbage(1)]) as model,
        chat_agents(Endpoint(base_url=model.openai_url, model="m")) as agents,
    ):
        said = [Message("user", "hi")]
        request = SummaryRequest(
            session_id="s", messages=said, previous=None, focus=None, max_tokens=100
        )
        with pytest.raises(CompressorFailed, match=ENGLISH.summary_damaged) as caught:
            await agents.compressor().summarize(request)
    assert not caught.value.lasting
