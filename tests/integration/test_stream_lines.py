"""No line of a model's stream is lost silently: it is read, damages the answer or fails it."""

from __future__ import annotations

import pytest

from hermes.agents.providers.anthropic_messages import _StreamedAnswer as AnthropicAnswer
from hermes.agents.providers.base import (
    AuthenticationFailed,
    Endpoint,
    RequestRejected,
    Unavailable,
)
from hermes.agents.providers.openai_chat import _StreamedAnswer as OpenAIAnswer
from hermes.agents.providers.sse_transport import _EventParser
from hermes.redaction import Secret

KEY = "sk-lamp-1234567890"
ENDPOINT = Endpoint(base_url="http://x", model="m", name="lamp", key=Secret(KEY))
BOM = b"\xef\xbb\xbf"
END = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
ANTHROPIC_END = b'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}\n\n'
ANTHROPIC_START = b'{"type": "content_block_delta", "index": 0, "delta": {"text": "do NOT "}}'


def event(text, start=b"data: "):
    return start + b'{"choices": [{"delta": {"content": "%b"}}]}\n\n' % text


PRESS = event(b"press") + END


def completed(stream, answer_type=OpenAIAnswer, size=1):
    """Return the answer whose stream arrives in chunks of this size."""
    answer = answer_type(ENDPOINT, lambda delta: None)
    parser = _EventParser(ENDPOINT, answer.feed)
    for start in range(0, len(stream), size):
        parser.feed(stream[start : start + size])
    parser.feed(b"\n\n")
    if parser.error is not None:
        raise parser.error
    return answer.completion()


@pytest.fixture(params=[1, 7, 10_000])
def read(request):
    """Return the text of a stream and whether something is missing from it."""

    def read(stream, answer_type=OpenAIAnswer):
        completion = completed(stream, answer_type, request.param)
        return completion.message.content, completion.damaged

    return read


@pytest.mark.parametrize(
    "stream",
    [
        BOM + event(b"do NOT ") + PRESS,
        BOM + b": a comment\n\n" + event(b"do NOT ") + PRESS,
        event(b"do NOT ") + BOM + PRESS,
        (event(b"do NOT ") + PRESS).replace(b"\n", b"\r"),
        (event(b"do NOT ") + PRESS).replace(b"\n", b"\r\n"),
        event(b"do NOT ").replace(b"\n", b"\r") + PRESS,
        b": a comment\r\r" + event(b"do NOT ") + PRESS,
        event(b"do NOT ", b"") + PRESS,  # a line of JSON that is no field
        b"data\n" + event(b"do NOT ") + PRESS,
        b"id: 1\nretry: 5\nevent: message\nid\nretry\nevent\n:\n" + event(b"do NOT ") + PRESS,
        b" \n\n" + event(b"do NOT ") + PRESS,
    ],
)
def test_every_line_of_a_stream_is_read(read, stream):
    assert read(stream) == ("do NOT press", False)


@pytest.mark.parametrize("start", [b" data: ", b"Data: ", b"datum: ", b"data : ", b"<br>"])
def test_a_line_that_is_no_field_damages_the_answer(read, start):
    assert read(event(b"do NOT ", start) + PRESS) == ("press", True)


def test_a_line_that_is_no_field_damages_an_answer_of_anthropic(read):
    stream = b"Data: " + ANTHROPIC_START + b"\n\n" + ANTHROPIC_END
    assert read(stream, AnthropicAnswer) == (None, True)


def test_an_answer_of_anthropic_with_a_byte_order_mark_is_whole(read):
    lines = [BOM + b"event: content_block_delta", b"data: " + ANTHROPIC_START, b"", b""]
    stream = b"\r\n".join(lines) + ANTHROPIC_END
    assert read(stream, AnthropicAnswer) == ("do NOT ", False)


@pytest.mark.parametrize(
    "error",
    [
        b'event: error\ndata: {"message": "overloaded"}',
        b'event:error\r\ndata: {"choices": [], "why": "overloaded"}\r\n',
        b'data: {"why": "overloaded"}\nevent: error',
        b"event: error\ndata: overloaded",
        b'data: {"object": "error", "message": "overloaded", "code": null}',
        b'data: {"type": "error", "text": "overloaded"}',
        b'data: {"message": "overloaded"}',
        b'data: {"detail": [{"msg": "overloaded"}]}',
        b'data: {"error": "overloaded \\ud83d"}',
    ],
)
def test_an_error_in_a_stream_fails_the_answer(read, error):
    stream = event(b"do ") + error + b"\n\ndata: [DONE]\n\n"
    with pytest.raises(Unavailable, match=r"lamp is unavailable .*overloaded"):
        read(stream)


@pytest.mark.parametrize("answer_type", [OpenAIAnswer, AnthropicAnswer])
@pytest.mark.parametrize("data", [b"\n", b"data: " + KEY.encode() + b" is overloaded\n"])
def test_an_error_event_fails_every_answer_and_is_redacted(read, answer_type, data):
    with pytest.raises(Unavailable, match="lamp is unavailable") as caught:
        read(b"event: error\n" + data + b"\n" + END + ANTHROPIC_END, answer_type)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("answer_type", "data", "wanted"),
    [
        (OpenAIAnswer, b'{"object": "error", "message": "no", "code": 400}', RequestRejected),
        (OpenAIAnswer, b'{"message": "no", "code": "invalid_api_key"}', AuthenticationFailed),
        (
            AnthropicAnswer,
            b'{"type": "error", "error": {"type": "authentication_error"}}',
            AuthenticationFailed,
        ),
    ],
)
def test_an_error_event_keeps_its_code(read, answer_type, data, wanted):
    with pytest.raises(wanted):
        read(b"event: error\ndata: " + data + b"\n\n", answer_type)


def test_only_the_event_that_is_named_error_is_one(read):
    assert read(b"event: errors\n" + event(b"do NOT ") + PRESS) == ("do NOT press", False)


def choices(*parts):
    given = b", ".join(b'{"index": %b, "delta": {"content": "%b"}}' % part for part in parts)
    return b'data: {"choices": [%b]}\n\n' % given


@pytest.mark.parametrize(
    "stream",
    [
        choices((b"1", b"B"), (b"0", b"A")),
        choices((b"1", b"B")) + choices((b"0", b"A")) + choices((b"2", b"C")),
        choices((b"null", b"A"), (b"1", b"B")),
    ],
)
def test_the_answer_is_the_choice_with_the_number_0(read, stream):
    other = b'data: {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}\n\n'
    assert read(stream + END + other) == ("A", False)


def test_all_parts_of_the_choice_in_one_event_count(read):
    assert read(choices((b"0", b"do "), (b"0", b"NOT ")) + PRESS) == ("do NOT press", False)


def test_an_answer_with_another_choice_alone_is_a_failure(read):
    with pytest.raises(Unavailable, match="before the answer was over"):
        read(choices((b"1", b"B")) + b"data: [DONE]\n\n")
