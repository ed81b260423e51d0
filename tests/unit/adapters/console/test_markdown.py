"""Rendering Markdown for a terminal."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given, strategies as st

from hermes.adapters.console.markdown import render
from hermes.sanitize import sanitize
from tests.support.text_strategies import MARKDOWN

SGR = re.compile(r"\x1b\[[0-9;]*m")


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
def test_a_block_is_rendered_completely_and_within_the_width(text, width):
    text = sanitize(text)
    rendered = render(text, width)
    wanted = letters(re.sub(r"^[ \t]*(?:`{3,}|~{3,})[^\n]*$", "", text, flags=re.MULTILINE))
    for letter in letters(rendered):
        if letter in wanted:
            wanted.remove(letter)
    assert not wanted
    assert "\x1b" not in SGR.sub("", rendered)
    for line in SGR.sub("", rendered).split("\n"):
        cells = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line.rstrip())
        assert cells <= max(width, 10) or re.match(r"[ \t]*(?:`{3}|~{3})", text)


def test_markdown_is_rendered():
    assert SGR.sub("", render("**bold** and `code`", 80)) == "bold and code"
    assert SGR.sub("", render("one\ntwo", 80)) == "one\ntwo"
    assert SGR.sub("", render("# Title", 80)) == "Title"
    assert "\x1b[" in render("```python\nx = 1\n```", 80)
    assert SGR.sub("", render("```python\nx = 1\n```", 80)).strip() == "x = 1"


@pytest.mark.parametrize("code", ["x = 1", "    indented()\n\nlast", "y" * 300, "def f():\n\tpass"])
def test_code_can_be_copied_as_it_was_written(code):
    rendered = SGR.sub("", render(f"```python\n{code}\n```", 80))
    assert rendered == code.expandtabs(4)
