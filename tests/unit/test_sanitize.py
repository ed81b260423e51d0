"""Untrusted text cannot control a terminal, and harmless text is unchanged."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given, strategies as st

from hermes.sanitize import UNSAFE, one_line, sanitize, scrub, shorten, visible
from tests.support.text_strategies import chunks

BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
INVISIBLE = "\u2028\u2029\ufff9\ufffa\ufffb\U000e0001\U000e0041\U000e007f"
hostile = st.sampled_from(
    [*map(chr, range(0x20)), *BIDIRECTIONAL, *INVISIBLE, "\x7f", "\x9b", "\ud800"]
)


@given(chunks(st.lists(st.text(max_size=3) | hostile).map("".join)))
def test_no_text_can_control_a_terminal_or_mislead_its_reader(case):
    whole, parts = case
    shown = sanitize(whole)
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cs"} and c not in "\n\t"]
    assert not set(shown) & set(BIDIRECTIONAL + INVISIBLE)
    assert not UNSAFE.search(shown)
    assert "".join(map(sanitize, parts)) == shown
    assert sanitize(shown) == shown


def test_exactly_the_unsafe_characters_are_changed():
    codes = map(chr, range(sys.maxunicode + 1))
    assert not [c for c in codes if bool(UNSAFE.match(c)) != (sanitize(c) != c)]


@given(
    st.text(st.characters(categories=["L", "N", "P", "S", "M", "Zs"], include_characters="\n\t"))
)
def test_harmless_text_is_unchanged(text):
    assert sanitize(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x9b2J", "�2J"),
        ("a\r\nb\rc", "a\nbc"),
        ("del\x7f \x00", "del␡ ␀"),
        ("a\u202eb", "ab"),
        ("a\u2028b", "a\nb"),
        ("\u05d0\u200f(1)", "\u05d0(1)"),
        ("\ud800", "�"),
        ("👩\u200d👧 tab\t.", "👩\u200d👧 tab\t."),
    ],
)
def test_control_characters_are_made_visible_or_removed(text, shown):
    assert sanitize(text) == shown


@given(st.lists(st.text(max_size=3) | hostile).map("".join), st.integers(5, 40))
def test_a_shortened_text_is_one_line_of_bounded_length(text, length):
    line = shorten(text, length)
    assert len(line) <= length
    for each in (line, one_line(text)):
        assert not set(each) & set("\n\t")
        assert len(each.splitlines()) <= 1


@given(st.text(st.characters(exclude_categories=[]), max_size=20))
def test_a_scrubbed_text_can_be_encoded(text):
    scrub(text).encode()
    assert scrub("ok: \u00e4\ud800") == "ok: \u00e4?"


@pytest.mark.parametrize(
    "text",
    [
        "a b*`\\", "Grüße, žluťoučký kůň", "Привет", "日本語", "e\u0301", "q\u0307\u0323", "हिन्दी",
        "ภาษาไทย", "한국어", "😀", "→≠€", "x" + " " * 15 + "y",
    ],
)  # fmt: skip
def test_what_a_reader_sees_stays_as_it_is(text):
    assert visible(text) == text


@pytest.mark.parametrize(
    "char",
    [
        "\u05d0", "\u0627", "\u0661", "\U0001e900",  # right to left: letters and digits
        "\u202e", "\u2066", "\u200f", "\u061c",  # bidirectional controls
        "\u200b", "\u00ad", "\u3164", "\u115f", "\ufe0f", "\u034f", "\U000e0100", "\ufeff",
        "\U0001d159", "\U00016fe4", "\ufffc", "\u2800", "\U00013441",  # they show nothing
        "\u00a0", "\u3000", "\u2028", "\n", "\x00", "\ud800", "\ue000", "\u0378",
        "\u0338", "\u20e0", "\u1734", "\u0903", "\u20d2",  # marks that do not belong to an "a"
    ],
)  # fmt: skip
def test_what_a_reader_might_not_see_is_escaped(char):
    units = char.encode("utf-16-be", "surrogatepass").hex()
    escape = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    assert visible(f"a{char}b") == f"a{escape}b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u0301", r"\u0301"),
        ('"\u0301', r'"\u0301'),
        ("1\u0301", r"1\u0301"),
        ("e\u0301\u0301", "e\u0301" + r"\u0301"),  # drawn over each other
        ("e\u0301\u0338\u0323", "e\u0301" + r"\u0338\u0323"),  # else on the last digit
        ("e\u0300\u0301\u0302\u0303", "e\u0300\u0301\u0302" + r"\u0303"),
        ("e\u200b\u0301", r"e\u200b\u0301"),
    ],
)
def test_a_mark_without_a_letter_is_escaped(text, shown):
    assert visible(text) == shown
