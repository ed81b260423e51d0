"""`estimate_tokens`: how much text, calls, parts and binary data weigh."""

from __future__ import annotations

import pytest
from hypothesis import given

from hermes.messages import Message, ToolCall
from hermes.transcript.tokens import estimate_tokens
from tests.support.transcripts import TRANSCRIPTS, reply, user


def test_four_ascii_characters_are_a_token_and_so_is_a_cjk_one():
    assert estimate_tokens([]) == 0
    assert estimate_tokens([user("")]) == 4
    assert estimate_tokens([user(None)]) == 4
    assert estimate_tokens([user("word" * 100)]) == 104
    assert estimate_tokens([user("漢" * 100)]) == 104
    assert estimate_tokens([user("Grüße aus Köln")]) == 4 + 5
    assert estimate_tokens([user("привет")]) == 4 + 4
    assert estimate_tokens([user("\ud800" * 8)]) == 4 + 8


def test_the_sum_is_rounded_up():
    assert estimate_tokens([user("a"), user("b")]) == 9


def test_calls_count_with_their_names_and_arguments():
    plain = estimate_tokens([reply(None)])
    called = Message(role="assistant", tool_calls=(ToolCall("1", "n" * 40, "a" * 400),) * 2)
    assert estimate_tokens([called]) == plain + 2 * (8 + 10 + 100)


def parts(*given, content=None):
    return estimate_tokens([Message(role="user", content=content, parts=given)]) - 4


def test_text_that_content_repeats_counts_once():
    text = {"type": "text", "text": "word" * 100}
    assert parts(text) == 100
    assert parts(text, text) == 200
    assert parts(text, content="word" * 100) == 100
    assert parts(text, content="word" * 150) == 150
    assert parts(text, content="word" * 50) == 100


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}},
        {"type": "image", "source": {"type": "base64", "data": "A" * 1_000_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000, "format": "wav"}},
        {"type": "document", "source": {"type": "base64", "data": "A" * 1_000_000}},
        {"type": "video_url", "video_url": {"url": "https://example.org/a"}},
        {"picture": "data:image/png;base64," + "A" * 1_000_000},
        {"type": "tool_result", "content": [{"type": "image", "data": "A" * 1_000_000}]},
    ],
)
def test_binary_data_has_a_flat_weight(part):
    assert 1_500 <= parts(part) <= 1_510
    assert parts(part, content="word" * 100) == parts(part) + 100


def test_other_json_counts_with_everything_in_it():
    assert parts({"type": "document", "source": {"type": "text", "data": "word" * 1_000}}) > 1_000
    assert parts({"type": "tool_use", "input": {"key" * 400: [1, True, None, 2.5]}}) == 309
    assert parts({"type": ["odd"], "text": {"not": "a text"}}) < 20
    assert parts({"input": "data: no file, only a text that begins so"}) < 20
    deep = inner = {}
    for _ in range(100_000):
        inner["a"] = inner = {}
    assert parts(deep) == 25_000


@given(TRANSCRIPTS, TRANSCRIPTS)
def test_estimates_add_up_except_for_rounding(left, right):
    apart = estimate_tokens(left) + estimate_tokens(right)
    assert apart - 1 <= estimate_tokens(left + right) <= apart


def stored(media_type, size=1_000, **fields):
    return {"type": "file", "file": "file_1", "media_type": media_type, "size": size, **fields}


@pytest.mark.parametrize(
    ("sides", "tokens"),
    [
        ((1, 1), 85 + 170),
        ((200, 200), 85 + 170),
        ((1000, 1000), 1_334),  # 765 by tiles
        ((1568, 1568), 1_600),
        ((8000, 8000), 1_600),
        ((10_000_000, 1), 85 + 170 * 4),
        ((1, 10_000_000), 85 + 170 * 4),
        ((3000, 900), 85 + 170 * 8),
        ((None, None), 1_600),
        ((0, 5), 1_600),
        (("wide", 5), 1_600),
    ],
)
def test_images_count_by_their_dimensions(sides, tokens):
    width, height = sides
    assert parts(stored("image/png", 10**9, width=width, height=height)) == tokens


@pytest.mark.parametrize(
    ("media_type", "size", "tokens"),
    [
        ("application/pdf", 10, 2_000),
        ("application/pdf", 100_000, 4_000),
        ("application/pdf", 10**9, 40_000),
        ("audio/mpeg", 10, 100),
        ("audio/wav", 1_600_000, 1_000),
        ("audio/wav", 10**9, 20_000),
        ("text/plain", 100_001, 25_001),
        ("text/plain", 200_001, 16),  # a note
        ("application/zip", 10**9, 15),
        ("application/pdf", "large", 2_000),
    ],
)
def test_files_count_by_their_size_within_bounds(media_type, size, tokens):
    assert parts(stored(media_type, size)) == tokens


def test_a_transcript_counts_as_text_and_a_remote_image_as_a_large_one():
    assert parts(stored("audio/wav", 10**9, text="word" * 100)) == 100
    assert parts({"type": "image", "url": "https://example.org/" + "a" * 10_000}) == 1_600
