"""Splitting long text: within the limit, nothing lost, fences balanced, good split points."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from hypothesis import example, given, strategies as st

from hermes.actors.delivery.split import pieces, split, utf16

FENCE = re.compile(r"^[ >\t]*(?:[-*+] +|\d+[.)] +)*[ >\t]*(`{3,}|~{3,})(.*)$")

words = st.sampled_from(
    [
        "word",
        "a",
        "sentence.",
        "Wait!",
        "",
        " ",
        "``",
        "```",
        "- ```x",
        "x" * 30,
        "naïve",
        "👩‍👩‍👧",
        "🇩🇪🇫🇷",
    ]
)
prose = st.lists(words, max_size=12).map(" ".join)
code = st.sampled_from(
    ["", "    x = 1", "\treturn", "y" * 25, "~~~", "``` no", "if a: b", "` `` `"]
)
fence = st.builds(
    lambda indent, mark, tag, lines: [f"{indent}{mark}{tag}", *lines, f"{' ' * len(indent)}{mark}"],
    st.sampled_from(["", "  ", "- ", "1. "]),
    st.sampled_from(["```", "````", "~~~"]),
    st.sampled_from(["", "py", "python title=x"]),
    st.lists(code.filter(lambda line: not line.startswith("~~~")), max_size=12),
)
blocks = st.one_of(prose.map(lambda line: [line]), fence, st.just([""]))
texts = st.lists(blocks, max_size=12).map(lambda many: "\n".join(chain(*many)))


def ends_open(text):
    """Whether a text ends inside a fence, with an independent parser."""
    mark = None
    for line in text.split("\n"):
        found = FENCE.match(line.rstrip())
        if mark is None:
            if found and not ("`" in found[1] and "`" in found[2]):
                mark = found[1]
        elif found and found[1].startswith(mark) and not found[2].strip(mark[0]):
            mark = None
    return mark is not None


@given(st.text() | texts, st.integers(2, 120))
@example("```" + "t" * 200 + "\n" + "code\n" * 50 + "```", 40)
@example("```py\n" + "\n" * 500 + "x\n```", 40)
@example(" " * 300 + "x" + " " * 300 + "y", 20)
@example("`" * 300, 20)
@example("👩‍👩‍👧" * 50, 3)
@example("e" + "\u0301" * 100, 10)
@example("~~~" + "\n~~~" * 40, 16)
def test_parts_fit_and_are_not_blank_and_nothing_is_lost(text, limit):
    found = pieces(text, limit)

    assert split(text, limit) == [piece.head + piece.body + piece.tail for piece in found]
    place = 0
    for piece in found:
        assert utf16(piece.text) <= limit
        assert piece.text.strip()
        assert piece.body.strip(), "no part is only what was added"
        at = text.index(piece.body, place)
        assert not text[place:at].strip(), "only white space is lost at a seam"
        place = at + len(piece.body)
        for added in (piece.head, piece.tail):
            assert re.fullmatch(r"\n?[ >\t]*([`~]{3,}.*)?\n?", added)
    assert not text[place:].strip()


@given(texts, st.integers(60, 200))
@example("- ```py\n" + "  code\n" * 30 + "  ```\n\nand more", 60)
@example("> ```\n" + "> quoted code\n" * 20 + "> ```\n" + "after " * 20, 60)
@example("~~~\n" + "``` no fence in here\n" * 10 + "~~~", 60)
@example("````md\n```\ninner\n```\n" * 5 + "````", 60)
@example("word " * 11 + "```x " + "word " * 20, 60)
def test_fences_are_balanced_in_every_part_except_the_last(text, limit):
    parts = split(text, limit)
    assert not any(ends_open(part) for part in parts[:-1])
    if parts:
        assert ends_open(parts[-1]) == ends_open(text)


@given(texts, st.integers(60, 200))
def test_only_the_fence_that_was_split_is_added(text, limit):
    opened = ""
    for piece in pieces(text, limit):
        assert bool(piece.head) == bool(opened)
        if piece.head:
            assert piece.head.strip().startswith(opened)
        opened = piece.tail.strip(" >\n")


@given(st.text(alphabet="ab \n", max_size=400), st.integers(2, 50))
def test_the_size_function_is_configurable(text, limit):
    assert all(len(part) <= limit for part in split(text, limit, size=len))
    twice = split(text, limit, size=lambda chars: 2 * len(chars))
    assert all(2 * len(part) <= limit for part in twice)


@given(texts)
def test_text_that_fits_is_unchanged(text):
    assert split(text, utf16(text) + 2) == ([text] if text.strip() else [])


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("one two three\n\nfour\nfive", 20, ["one two three", "four\nfive"]),
        ("one\n\ntwo three four\nfive", 20, ["one\n\ntwo three four", "five"]),
        ("first line\nsecond line\nthird", 25, ["first line\nsecond line", "third"]),
        ("A sentence. Another one here", 20, ["A sentence.", "Another one here"]),
        ("words without any end of it", 13, ["words without", "any end of it"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("ab " + "x" * 30, 20, ["ab", "x" * 20, "x" * 10]),
        ("some words\n\n  indented stays", 18, ["some words", "  indented stays"]),
        ("日本語。これは長い文です。", 8, ["日本語。", "これは長い文です", "。"]),
    ],
)
def test_split_points(text, limit, parts):
    assert split(text, limit) == parts


def test_a_fence_is_closed_and_reopened_with_its_tag():
    text = "Look:\n\n```python\n" + "print(1)\n" * 8 + "```\nDone."
    parts = split(text, 60)
    assert parts == [
        "Look:\n\n```python\nprint(1)\nprint(1)\nprint(1)\nprint(1)\n```",
        "```python\nprint(1)\nprint(1)\nprint(1)\nprint(1)\n```\nDone.",
    ]


def test_a_fence_moves_to_the_next_part_rather_than_being_split():
    text = "word " * 8 + "\n\n```\n" + "code\n" * 6 + "```"
    assert split(text, 60) == ["word " * 7 + "word", "```\n" + "code\n" * 6 + "```"]
    spaced = "some words here\nand a few more of it\n```\ncode\n\ncode\nmore code\n```"
    assert split(spaced, 60)[0] == "some words here\nand a few more of it"


def test_a_fence_in_a_list_keeps_its_indentation_and_in_a_quotation_its_mark():
    listed = split("1. ```sh\n" + "   run it\n" * 8 + "   ```", 60)
    assert all(part.startswith("   ```sh\n   run") for part in listed[1:])
    assert all(part.endswith("\n   ```") for part in listed)
    quoted = split("> ~~~\n" + "> run it\n" * 8 + "> ~~~", 60)
    assert all(part.startswith("> ~~~\n> run") for part in quoted)


def test_a_tag_that_does_not_fit_is_omitted():
    text = "```" + "t" * 60 + "\n" + "code\n" * 30 + "```"
    parts = split(text, 100)
    assert parts[1].startswith("```\ncode")
    assert not any(ends_open(part) for part in parts)


@pytest.mark.parametrize("limit", range(30, 90, 4))
def test_no_part_has_an_empty_code_block(limit):
    for code in ("code line\n" * 12, "x" * 200 + "\n", "a b c d e f " * 10 + "\n"):
        for closing in ("```", "``````````"):
            text = "word " * 9 + "\n```python\n" + code + closing + "\nand more of it"
            assert not [part for part in split(text, limit) if "```python\n```" in part]


@pytest.mark.parametrize("limit", [*range(40, 48), *range(54, 60)])
@pytest.mark.parametrize(
    "text",
    [
        "word " * 11 + "```x " + "word " * 20,  # what is left of a line would open one
        "```foo " + "a" * 30 + "`" + "b" * 60,  # what is cut off would open one
        "```\n" + "y" * 20 + "\n``` " + "x" * 100 + "\n```",  # what is cut off would close one
        "```\n" + "yyyy " * 9 + "```\n" + "y" * 30 + "\n```",  # what is left would close one
        "```\n" + "yyyy " * 6 + "```\n" + "y" * 30 + "\n```",
    ],
)
def test_splitting_creates_no_fence(text, limit):
    assert not any(ends_open(part) for part in split(text, limit))


def test_a_part_does_not_start_with_a_fence_if_avoidable():
    assert split("word " * 11 + "```x " + "word " * 20, 54)[1].startswith("word ```x word")


def test_the_line_that_opens_a_fence_is_not_split():
    parts = split("```python title=x\n" + "y" * 100 + "\n```", 60)
    assert parts[0].startswith("```python title=x\nyyyy")
    assert not any(ends_open(part) for part in parts)


def test_grapheme_clusters_are_not_split():
    family, flag, accent = "👩‍👩‍👧", "🇩🇪", "e\u0301\u0323"
    for whole in (family, flag, accent):
        parts = split(whole * 40, 30)
        assert all(len(part) % len(whole) == 0 for part in parts)
        assert "".join(parts) == whole * 40


def test_a_grapheme_cluster_above_the_limit_is_split():
    parts = split("e" + "\u0301" * 50, 10)
    assert all(utf16(part) <= 10 for part in parts)


def test_splitting_a_long_text_takes_linear_time():
    text = "\n".join(f"line {n} " + "word " * 10 for n in range(5_000)) + "👍" + "x" * 50_000
    assert "".join(split(text, 4096)).replace("\n", "").startswith("line 0 word")


def test_a_limit_below_one_character_is_rejected():
    with pytest.raises(ValueError, match="at least 2"):
        split("text", 1)
