"""Pairing codes, and how senders are shown to operators."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from hermes.actors.admission import pairing
from hermes.messages import Source
from hermes.texts import ENGLISH


def test_a_code_has_40_bits_and_no_look_alike_letters():
    assert len(set(pairing.ALPHABET)) == 32
    assert not set("ILOU") & set(pairing.ALPHABET)
    codes = {pairing.new_code() for _ in range(2000)}
    assert len(codes) == 2000
    assert all(
        re.fullmatch(rf"[{pairing.ALPHABET}]{{4}}-[{pairing.ALPHABET}]{{4}}", c) for c in codes
    )
    for place in (0, 1, 2, 3, 5, 6, 7, 8):
        assert {code[place] for code in codes} == set(pairing.ALPHABET)


@pytest.mark.parametrize("typed", ["AB01-EF10", "ab01-ef10", "ABO1EFIO", "abol-eflo", "AB01–EF10"])
def test_a_code_is_read_in_any_spelling(typed):
    assert pairing.read_code(typed) == "AB01-EF10"


@pytest.mark.parametrize(
    "typed", ["", "AB01", "AB01-EF1", "AB01-EF10X", "UUUU-UUUU", "AB01-EF1٣", "A B01EF10"]
)
def test_anything_else_is_not_a_code(typed):
    assert pairing.read_code(typed) is None


@given(st.text(max_size=12))
def test_read_code_accepts_any_text_and_is_idempotent(typed):
    code = pairing.read_code(typed)
    assert code is None or pairing.read_code(code) == code


@given(st.text())
def test_a_user_name_cannot_break_the_operators_terminal(name):
    shown = pairing.describe(Source("telegram", user_id="42", user_name=name), ENGLISH)
    assert shown.isprintable()
    assert len(shown) < 250
    assert not name or "unverified" in shown
