"""Markdown becomes valid MarkdownV2 with the same text."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from hermes.adapters.telegram.markdown import markdown_v2, visible_text
from hermes.testing.markdown_v2 import Entity, parse
from tests.support.transcripts import calls_made

MARKS = st.sampled_from(
    ["*", "**", "***", "_", "__", "~", "~~", "`", "```", "```py", "\n", "> ", "- ", "# ", "[", "](",
     "https://e.org/a", ")", "(", "!", "\\", " ", "a", "b.", "x_y", "|", "||", "😀", "\r", "\\*"]
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(MARKS, max_size=30).map("".join))


@given(TEXTS)
def test_any_text_becomes_valid_markdown_v2_with_the_visible_text(text):
    seen, entities = parse(markdown_v2(text))
    assert seen == visible_text(text)
    length = len(seen) + sum(char > "\uffff" for char in seen)
    assert all(e.offset >= 0 and e.offset + e.length <= length and e.length for e in entities)


@given(st.text(alphabet=st.characters(exclude_characters="\r")))
def test_text_without_markup_does_not_change(text):
    plain = "".join(char for char in text if char.isalnum() or char in " \n")
    assert visible_text(plain) == plain
    assert parse(markdown_v2(plain)) == (plain, [])


@pytest.mark.parametrize(
    ("text", "seen", "entities"),
    [
        ("**bold** and *it*", "bold and it", [Entity("bold", 0, 4), Entity("italic", 9, 2)]),
        ("__bold__ _it_", "bold it", [Entity("bold", 0, 4), Entity("italic", 5, 2)]),
        ("***both***", "both", [Entity("italic", 0, 4), Entity("bold", 0, 4)]),
        ("**a *b* c**", "a b c", [Entity("bold", 0, 5), Entity("italic", 2, 1)]),
        ("**a __b__ c**", "a b c", [Entity("bold", 0, 5)]),
        ("*a _b_ c*", "a b c", [Entity("italic", 0, 5)]),
        ("~~gone~~", "gone", [Entity("strikethrough", 0, 4)]),
        ("😀 `a*b`", "😀 a*b", [Entity("code", 3, 3)]),
        ("``a`b``", "a`b", [Entity("code", 0, 3)]),
        ("snake_case_name", "snake_case_name", []),
        ("2 * 3 * 4", "2 * 3 * 4", []),
        ("**never ends", "**never ends", []),
        (r"\*literally\*", "*literally*", []),
        ("[x](https://e.org/a_(b))", "x", [Entity("text_link", 0, 1, "https://e.org/a_(b)")]),
        ("[x](javascript:alert)", "[x](javascript:alert)", []),
        ("# Title #", "Title", [Entity("bold", 0, 5)]),
        ("- one\n* two", "• one\n• two", []),
        ("1. one", "1. one", []),
        ("> a *b*\n> c\nd", "a b\nc\nd", [Entity("blockquote", 0, 5), Entity("italic", 2, 1)]),
        ("```py\nx = `1`\n```\n.", "x = `1`\n.", [Entity("pre", 0, 7, "py")]),
        ("```\n**x**", "**x**", [Entity("pre", 0, 5)]),
        ("_a__b_", "a__b", [Entity("italic", 0, 4)]),
        ("*a*_b_", "ab", [Entity("italic", 0, 2)]),
        ("*a* _b_", "a b", [Entity("italic", 0, 1), Entity("italic", 2, 1)]),
    ],
)
def test_markdown_of_models(text, seen, entities):
    assert parse(markdown_v2(text)) == (seen, entities)
    assert visible_text(text) == seen


@pytest.mark.parametrize("piece", ["*a _b **c ", "[", "`", "``a`", "*a_", "**a* ", "***a"])
def test_the_work_grows_linearly_with_the_markup(piece):
    def calls(repetitions):
        return calls_made(lambda: markdown_v2(piece * repetitions))

    assert calls(800) < 4.5 * calls(200)
