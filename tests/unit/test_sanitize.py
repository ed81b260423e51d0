"""Text that anybody wrote, as people may be shown it: by the console, by the admin commands."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given, strategies as st

from hermes.sanitize import _TABLE, UNSAFE, one_line, sanitize, shorten
from tests.unit.test_console_text import chunks

TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
UNSEEN = "\u2028\u2029\ufff9\ufffa\ufffb\U000e0001\U000e0041\U000e007f"
hostile = st.sampled_from([*map(chr, range(0x20)), *TURNS, *UNSEEN, "\x7f", "\x9b", "\ud800"])


@given(chunks(st.lists(st.text(max_size=3) | hostile).map("".join)))
def test_no_text_can_do_anything_to_a_terminal_or_to_who_reads(pieces):
    whole, parts = pieces
    shown = sanitize(whole)
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cs"} and c not in "\n\t"]
    assert not set(shown) & set(TURNS + UNSEEN)
    assert not UNSAFE.search(shown)
    assert "".join(map(sanitize, parts)) == shown
    assert sanitize(shown) == shown


def test_all_that_is_hostile_is_shown_otherwise_and_nothing_else():
    codes = map(chr, range(sys.maxunicode + 1))
    assert not [c for c in codes if bool(UNSAFE.match(c)) != (c.translate(_TABLE) != c)]


@given(
    st.text(st.characters(categories=["L", "N", "P", "S", "M", "Zs"], include_characters="\n\t"))
)
def test_what_is_harmless_stays_as_it_is(text):
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
def test_codes_are_shown_instead_of_obeyed(text, shown):
    assert sanitize(text) == shown


@given(st.lists(st.text(max_size=3) | hostile).map("".join), st.integers(5, 40))
def test_a_gist_is_one_line_of_bounded_length(text, length):
    line = shorten(text, length)
    assert len(line) <= length
    for each in (line, one_line(text)):
        assert not set(each) & set("\n\t")
        assert len(each.splitlines()) <= 1
