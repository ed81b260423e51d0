"""What the console does with text: made sanitize, cut into lines and blocks, shown whole."""

from __future__ import annotations

import itertools
import re
import stat
import unicodedata

import pytest
from hypothesis import example, given, strategies as st

from hermes.actors.session.commands import COMMANDS
from hermes.adapters.console.completion import choices
from hermes.adapters.console.history import Remembered
from hermes.adapters.console.line_reader import Lines, TooLong
from hermes.adapters.console.markdown import render
from hermes.adapters.console.markdown_stream import Blocks
from hermes.messages import Session, SessionSummary
from hermes.sanitize import sanitize

SGR = re.compile(r"\x1b\[[0-9;]*m")


def chunks(whole):
    """A text or bytes, and the same in pieces."""

    def cut(content, places):
        places = sorted({min(place, len(content)) for place in places})
        bounds = [0, *places, len(content)]
        return content, [content[a:b] for a, b in itertools.pairwise(bounds)]

    return st.builds(cut, whole, st.lists(st.integers(0, 80), max_size=12))


# Lines


@given(chunks(st.binary() | st.text("ab\r\n\xe9").map(str.encode)))
@example((b"a\r\nb", [b"a\r", b"\nb"]))
@example((b"123456789\nok", [b"1234", b"56789", b"\nok"]))
@example((b"12345678\r\nok", [b"12345678\r", b"\nok"]))
def test_lines_are_the_same_in_whatever_pieces_they_come(pieces):
    whole, parts = pieces
    lines = Lines(8)
    got = [line for part in parts for line in lines.feed(part)] + lines.end()
    wanted = whole.split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    assert len(got) == len(wanted)
    for line, raw in zip(got, wanted, strict=True):
        raw = raw.removesuffix(b"\r")  # noqa: PLW2901
        if len(raw) > 8:
            assert isinstance(line, TooLong)
        else:
            assert line == raw.decode(errors="replace")


def test_a_line_without_end_takes_no_memory():
    lines = Lines(1000)
    for _ in range(100):
        assert lines.feed(b"x" * 1000) == []
        assert len(lines._begun) <= 2001
    skipped, line = lines.feed(b"\nshort\n")
    assert isinstance(skipped, TooLong)
    assert line == "short"


# Blocks

LINES = st.sampled_from(
    ["text", "# head", "", "", "- item", "  more", "    deep", "1. one", "```", "```python", "````",
     "~~~", "  ```", "- ```", "| a | b |", "|---|---|", "> quote", "\t", " ", "***", "`x`",
     "```a`b"]
)  # fmt: skip
MARKDOWN = st.lists(LINES, max_size=20).map("\n".join) | st.text("a`~ \n-1.#", max_size=60)


def blocks_of(parts):
    blocks = Blocks()
    shown = []
    for part in parts:
        shown += blocks.feed(part)
    rest = blocks.rest
    last = blocks.end()
    assert "".join(last) == rest
    assert blocks.rest == ""
    return shown + last


@given(chunks(MARKDOWN))
def test_blocks_are_the_same_in_whatever_pieces_the_text_comes_and_nothing_is_lost(pieces):
    whole, parts = pieces
    blocks = blocks_of(parts)
    assert "".join(blocks) == whole
    assert blocks == blocks_of([whole])
    assert all(blocks)


@given(MARKDOWN)
def test_a_block_never_ends_inside_of_a_fence(text):
    for block in blocks_of([text])[:-1]:
        fence = None
        for line in block.split("\n"):
            mark = line.strip(" \t")
            if fence is not None:
                if len(mark) >= len(fence) and not mark.strip(fence[0]):
                    fence = None
            elif found := re.match(r"[ \t]*(?:[-*+] |1\. )*(`{3,}(?=[^`]*$)|~{3,})", line):
                fence = found[1]
        assert fence is None


@pytest.mark.parametrize(
    "blocks",
    [
        ["one\ntwo\n\n", "three"],
        ["- a\n\n  more of a\n\n", "after"],
        ["text\n", "```py\nx = 1\n\ny = 2\n```\n", "after"],
        ["```\na\n```\n\n\n", "  indented"],
        ["- ```\n  code\n\n  ```\n- b\n\n", "after"],
        ["\n\n", "late"],
        ["````\n```\n\n````\n", "x"],
    ],
)
def test_a_text_is_cut_between_its_blocks(blocks):
    assert blocks_of(["".join(blocks)]) == blocks
    assert blocks_of("".join(blocks)) == blocks


def test_a_block_is_finished_as_soon_as_the_next_one_begins():
    blocks = Blocks()
    assert blocks.feed("one\n\n") == []
    assert blocks.feed("t") == ["one\n\n"]
    assert blocks.rest == "t"


# Markdown


def letters(text):
    return sorted(c for c in SGR.sub("", text) if c.isalnum())


@given(
    MARKDOWN | st.text(st.characters(categories=["L", "N", "P", "Zs"], include_characters="\n")),
    st.integers(10, 100),
)
@example("<b>html</b>", 80)
@example("[name]: http://example.org", 80)
@example("| a |\n|---|\n| 1 | 2 |", 80)
@example("3. three\n7. seven", 80)
@example("![picture](http://example.org/p.png)", 20)
@example("| averyverylongword | b |\n|---|---|\n| anotherlongword | c |", 12)
@example("&amp; &copy;", 80)
def test_a_block_is_shown_whole_and_within_the_width(text, width):
    text = sanitize(text)
    shown = render(text, width)
    wanted = letters(re.sub(r"^[ \t]*(?:`{3,}|~{3,})[^\n]*$", "", text, flags=re.MULTILINE))
    for letter in letters(shown):
        if letter in wanted:
            wanted.remove(letter)
    assert not wanted
    assert "\x1b" not in SGR.sub("", shown)
    for line in SGR.sub("", shown).split("\n"):
        cells = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line.rstrip())
        assert cells <= max(width, 10)


def test_markdown_is_shown_as_what_it_means():
    assert SGR.sub("", render("**bold** and `code`", 80)) == "bold and code"
    assert SGR.sub("", render("one\ntwo", 80)) == "one\ntwo"
    assert SGR.sub("", render("# Title", 80)) == "Title"
    assert "\x1b[" in render("```python\nx = 1\n```", 80)
    assert SGR.sub("", render("```python\nx = 1\n```", 80)).strip() == "x = 1"


# Completion


def listed(title, id_="20260101_000000_0000abcd"):
    session = Session(**dict.fromkeys(Session.__struct_fields__) | {"id": id_, "title": title})
    return SessionSummary(session, id_, 0.0, "")


def test_a_slash_offers_the_commands_with_their_summaries():
    assert [each.text for each in choices("/", [])] == [f"/{name}" for name in COMMANDS]
    (only,) = choices("/sta", [])
    assert (only.text, only.replaces, only.summary) == ("/status", 4, COMMANDS["status"].summary)
    assert choices("say /", []) == []
    assert choices("/stop\n", []) == []


def test_conversations_are_offered_by_title_or_else_by_id():
    sessions = [
        listed("A talk"),
        listed(None, "20260102_x"),
        listed("42", "z1"),
        listed("\x1b", "z2"),
    ]
    texts = [each.text for each in choices("/resume ", sessions)]
    assert texts == ["A talk", "20260102_x", "z1", "z2"]
    assert [each.text for each in choices("/resume a t", sessions)] == ["A talk"]
    assert choices("/resume a t", sessions)[0].replaces == 3
    assert [each.text for each in choices("/resume 20260102", sessions)] == ["20260102_x"]


# History


def test_lines_are_remembered_in_a_file_for_their_owner_alone(tmp_path):
    path = tmp_path / "history"
    path.touch(mode=0o644)
    for text in ["one", "two\nlines", " secret", "", "x" * 10_001, "é\ud800"]:
        Remembered(path).add(text)
    assert Remembered(path).load() == ["one", "two\nlines", "é\ud800"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_history_is_bounded_and_survives_what_is_not_its_own(tmp_path):
    path = tmp_path / "history"
    remembered = Remembered(path, kept=3)
    for number in range(6):
        remembered.add(str(number))
    assert remembered.load() == ["3", "4", "5"]
    with path.open("ab") as file:
        file.write(b'{"a": 1}\n\xff\xfe\n"cut')
    assert remembered.load() == ["3", "4", "5"]
    assert path.read_bytes() == b'"3"\n"4"\n"5"\n'


@pytest.mark.parametrize("name", [".", "none/history"])
def test_a_history_that_cannot_be_used_is_done_without(tmp_path, name):
    remembered = Remembered(tmp_path / name)
    remembered.add("text")
    assert remembered.load() == []


def test_without_a_file_nothing_is_remembered():
    Remembered(None).add("text")
    assert Remembered(None).load() == []
