"""An answer that streams has the blocks of the whole text, and each is parsed once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings, strategies as st

from hermes.adapters.http.markdown.limits import MAX_BLOCK, Limits
from hermes.adapters.http.markdown.parsing import GrowingText, parse

LINES = (
    "", "", "", " ", "\t", "a", "b c", "# h", "## a | b", "#", "===", "---", "-", "- - -", "***",
    "- a", "* b", "+ c", "-", "1. a", "2. b", "1) c", "10. d", "- [ ] t", "- [x] t", "> q", ">",
    "> - a", "> ```", ">> q", "```", "```python", "``` a | b", "~~~", "````", "a | b", "| a | b |",
    "---|---", "|-|-|", ":-|-:", "|---|", "> a | b", "- a | b", "[a]: https://a.example", "[a]",
    "*a", "b*", "`a", "b`", "\\", "a  ", "a\\", "<div>", "</div>", "<!--", "[x](", "y)", "x = 1",
)  # fmt: skip
INDENTS = ("", "", "", "", " ", "  ", "   ", "    ", "\t", "      ", "> ", "- ", "  > ", ">")
ENDS = ("\n", "\n", "\n", "\r\n", "\r")

line = st.builds(
    "{}{}{}".format, st.sampled_from(INDENTS), st.sampled_from(LINES), st.sampled_from(ENDS)
)
structured = st.builds(
    "{}{}".format, st.lists(line, max_size=14).map("".join), st.sampled_from(("", *LINES))
)
special = st.text(alphabet="ab1 \t\n\n\r#-=*_`~|>.:+[]()!<&\\x\0\ud800", max_size=60)
markdown = st.one_of(structured, structured, special)
cuts = st.lists(st.integers(0, 10**6), max_size=12)


def pieces(text, at):
    """Divide a text at arbitrary places."""
    places = sorted({0, len(text), *(each % (len(text) + 1) for each in at)})
    return [text[start:end] for start, end in pairwise(places)]


def stream(parts, *, asks=True, limits=None):
    """Return the blocks of a text in pieces, and check that finished blocks stay as they are."""
    growing = GrowingText() if limits is None else GrowingText(limits=limits)
    finished = []
    for part in parts:
        growing.feed(part)
        if asks:
            finished += growing.take_finished()
            growing.open_blocks()
            assert growing.take_finished() == []
    return [*finished, *growing.end()]


@settings(max_examples=300, deadline=None)
@example("# a | b\n---|---\n", [8])
@example("- a\n\n2", [5])
@example("1. a\n\n2. b\n", [8])
@example("> a\nb\n===\n", [4, 6])
@example("a\r\n\r\nb", [2])
@example("```\n\n```\n\n    a\n", [4, 9])
@given(markdown, cuts)
def test_a_streamed_text_has_the_blocks_of_the_whole_text(text, at):
    assert stream(pieces(text, at)) == parse(text)


@settings(max_examples=150, deadline=None)
@given(markdown)
def test_a_text_can_arrive_by_characters(text):
    assert stream(list(text)) == parse(text)


@settings(max_examples=150, deadline=None)
@given(markdown, cuts)
def test_finished_blocks_begin_the_blocks_of_every_longer_text(text, at):
    growing, finished, sofar = GrowingText(), [], ""
    for part in pieces(text, at):
        growing.feed(part)
        sofar += part
        finished += growing.take_finished()
        assert parse(sofar)[: len(finished)] == finished
        assert parse(text)[: len(finished)] == finished


@settings(max_examples=200, deadline=None)
@example("        \na", [6], 4)
@example("        a\n", [6], 4)
@given(markdown, cuts, st.integers(4, 40))
def test_blocks_over_the_limit_are_cut_at_the_same_places(text, at, size):
    limits = Limits(block=size)
    whole = parse(text, limits=limits)
    assert stream(pieces(text, at), limits=limits) == whole
    assert stream(list(text), limits=limits) == whole


@pytest.mark.parametrize(
    "first", ["# a", "***", "a\n", "a\n===", "> q\n", "|a|\n|-|\n", "```\n```"]
)
def test_a_block_that_cannot_change_is_finished_at_once(first):
    growing = GrowingText()
    growing.feed(first + "\n")
    assert growing.take_finished() == parse(first)
    assert growing.open_blocks() == []


@pytest.mark.parametrize("first", ["a", "- a\n", "    a\n", "# a | b", "> q", "```\na", "|a|\n|-|"])
def test_a_block_that_can_change_is_open(first):
    growing = GrowingText()
    growing.feed(first + "\n")
    assert growing.take_finished() == []
    assert growing.open_blocks() == parse(first)


def test_a_line_without_its_end_finishes_nothing():
    growing = GrowingText()
    growing.feed("1. a\n\n2")
    assert growing.take_finished() == []
    growing.feed(". b")
    assert growing.end() == parse("1. a\n\n2. b")


def test_an_open_block_of_code_is_highlighted_when_it_closes():
    growing = GrowingText()
    growing.feed("```python\nreturn 1\n")
    [open_block] = growing.open_blocks()
    assert open_block.children[0].children == ["return 1"]
    growing.feed("```\n")
    [closed] = growing.take_finished()
    assert closed.children[0].children[0].attributes == {"class": "k"}
    assert growing.open_blocks() == []


def test_a_carriage_return_at_the_end_of_a_piece_waits_for_its_line_feed():
    growing = GrowingText()
    growing.feed("a\r")
    growing.feed("")
    growing.feed("\nb\r")
    assert growing.end() == parse("a\nb\n")


def test_code_over_the_limit_stays_code_in_several_blocks():
    limits = Limits(block=30)
    text = "  ~~~python\n" + "".join(f"  x = {i}\n" for i in range(10)) + "  ~~~\n*end*\n"
    *code, end = parse(text, limits=limits)
    assert len(code) > 2
    assert {(each.tag, each.children[0].attributes["language"]) for each in code} == {
        ("pre", "python")
    }
    lines = "\n".join("".join(each.children[0].children) for each in code)
    assert lines == "\n".join(f"x = {i}" for i in range(10))
    assert end == parse("*end*")[0]


def test_a_line_over_the_limit_is_plain_text_in_pieces():
    blocks = parse("*a* " * 10 + "\n*b*\n", limits=Limits(block=16))
    assert [each.attributes for each in blocks[:-1]] == [{"class": "plain"}] * 3
    assert "".join(each.children[0] for each in blocks[:-1]) == "*a* " * 10
    assert blocks[-1] == parse("*b*")[0]


PARAGRAPH = "Some *text* with `code` and [a link](https://a.example).\n\n"
TEXTS = {
    "paragraphs": PARAGRAPH * 18_000,
    "one line": "word *emphasis* " * 62_500,
    "one paragraph": "word emphasis, and a line that is long enough to look like text\n" * 3_000,
    "code": "```python\n" + "x = 1\n" * 160_000,
    "list": "- an item that is as long as most items, with **emphasis** and `code` in it\n" * 2_000,
    "large blocks": ("word and emphasis " * 2_500 + "\n\n") * 10,
    "empty lines": "\n" * 1_000_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_work_is_linear_in_the_length(name):
    """The blocks cost a multiple of the text, each question at most the largest block twice."""
    text, count = TEXTS[name], 25
    growing, finished, asked = GrowingText(), [], 0
    size = len(text) // count + 1
    for start in range(0, len(text), size):
        growing.feed(text[start : start + size])
        finished += growing.take_finished()
        before = growing.parsed
        growing.open_blocks()
        asked += growing.parsed - before
    growing.end()
    assert bool(finished) == (name != "empty lines")
    assert asked <= count * 2 * MAX_BLOCK
    assert growing.parsed - asked <= 8 * len(text)


@pytest.mark.parametrize(
    "line", ["- an item with **emphasis**\n", "text of a paragraph\n", f"|{'a' * 98}|\n"]
)
def test_finished_blocks_can_be_asked_for_after_every_line(line):
    text = ("|h|\n|-|\n" if line.startswith("|") else "") + line * (40_000 // len(line))
    growing = GrowingText()
    for each in text.splitlines(keepends=True):
        growing.feed(each)
        assert growing.take_finished() == []
    assert growing.parsed <= 8 * len(text)


@pytest.mark.parametrize(
    ("block", "after"),
    [
        ("- item\n" * 200, "\nA paragraph.\n"),
        ("a line of text\n" * 200, "\n"),
        ("```\n" + "code\n" * 200, "```\n"),
        ("| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 200, "\n"),
    ],
)
def test_the_end_of_a_large_block_is_found_at_once(block, after):
    growing = GrowingText()
    growing.feed(block)
    assert growing.take_finished() == []
    for each in after:
        growing.feed(each)
        finished = growing.take_finished()
    assert len(finished) == 1


def test_a_paragraph_is_parsed_a_bounded_number_of_times():
    """Blocks that are finished are not parsed again: 10 000 pieces cost little more than one."""
    text = PARAGRAPH * 3_000
    growing = GrowingText()
    for start in range(0, len(text), 20):
        growing.feed(text[start : start + 20])
        growing.take_finished()
    growing.end()
    assert growing.parsed <= 3 * len(text)


def test_pieces_without_questions_cost_what_the_whole_costs():
    text = PARAGRAPH * 3_000
    growing = GrowingText()
    for start in range(0, len(text), 4):
        growing.feed(text[start : start + 4])
    growing.end()
    assert growing.parsed <= 3 * len(text)


def test_nothing_is_left_of_an_empty_text():
    assert parse("") == parse(" \n\t\n") == []
    assert GrowingText().open_blocks() == GrowingText().end() == []
