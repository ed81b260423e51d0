"""A text in pieces: freed of secrets as the whole text is, and told as soon as it can be."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from hermes.redaction.keys import HIDDEN, LONG, Whole, hide_keys, key_pieces, pieces_of
from hermes.redaction.values import KnownValues, Redactor
from tests.unit.test_hiding import PEM, SECRET, SPELLINGS
from tests.unit.test_secrets import KEYS

NAMES = [
    "abcabc",
    "abcabcx7",
    "bcabcaa",
    "aaaaaaa",
    "cab cab",
    "a\nbc/bc+",
    "x7%41b&bc",
    "b\\ca\\x\\",
]


def split(text, places):
    """The text, cut at these places."""
    ends = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends)]


def told(pieces, parts):
    """What is told, piece by piece; the last is what the end brings."""
    return [*map(pieces.add, parts), pieces.end()]


def fragments(*some):
    """Texts full of what these are made of: whole, and in parts."""
    parts = st.sampled_from(some).flatmap(
        lambda one: st.tuples(st.integers(0, len(one)), st.integers(0, len(one))).map(
            lambda ends: one[min(ends) : max(ends)] or one
        )
    )
    return st.lists(parts | st.sampled_from(some) | st.text(max_size=3), max_size=8).map("".join)


places = st.lists(st.integers(0, 120), max_size=40)
escapes = [
    "\\",
    "\\\\u0061",
    "\\x62",
    "%61",
    "%2562",
    "&#97;",
    "&amp;#x0062;",
    "&amp;",
    "\\n",
    "&",
    "%",
]
names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
tales = names.flatmap(lambda some: st.tuples(st.just(some), fragments(*some), places))


@settings(max_examples=600)
@given(tales)
def test_pieces_are_hidden_as_the_whole_is(tale):
    secrets, text, where = tale
    redact = KnownValues(secrets)
    parts = told(redact.pieces(), split(text, where))
    assert "".join(parts) == redact(text)


@settings(max_examples=600)
@given(
    fragments(*KEYS, "Bearer \n", "key-", "AIza", "sk-learn", "12345:", "x" * 20, "-", " ", "9"),
    places,
)
def test_pieces_of_what_looks_like_a_key_are_hidden_as_the_whole_is(text, where):
    assert "".join(told(key_pieces(), split(text, where))) == hide_keys(text)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(SPELLINGS)),
    st.sampled_from([SECRET, PEM.splitlines()[1], "x7/y+0-secret", "pässwörd"]),
    fragments(*escapes, "x"),
    fragments(*escapes, "x"),
    places,
)
def test_no_spelling_of_a_secret_gets_through_in_pieces(spelling, secret, before, after, where):
    """Wherever it is cut: once all is told, and at any time before."""
    spelled = SPELLINGS[spelling](secret)
    parts = told(KnownValues([secret]).pieces(), split(f"{before} {spelled} {after}", where))
    whole = "".join(parts)
    assert secret not in whole
    assert spelled not in whole
    assert HIDDEN in whole


@settings(max_examples=300)
@given(names, fragments(*escapes, "abc", "x7"), places)
def test_pieces_with_escapes_are_hidden_as_the_whole_is(secrets, text, where):
    plain = [secret for secret in secrets if not re.search(r"[%&\\]", secret)]
    redact = KnownValues(plain)
    assert "".join(told(redact.pieces(), split(text, where))) == redact(text)


@given(st.text(), places)
def test_both_kinds_are_taken_out_one_after_the_other(text, where):
    redact = Redactor(["seldom-seen"])
    text = f"{text}seldom-seen sk-abcdefghijkl0123 {text}"
    assert "".join(told(redact.pieces(), split(text, where))) == redact(text)


@pytest.mark.parametrize(
    "redact", [Redactor([]), Redactor(["ZZZZZZ-0"]), KnownValues(["ZZZZZZ-0"])], ids=repr
)
def test_what_is_like_no_secret_is_told_at_once(redact):
    for piece in ["The ", "quick, ", "brown; ", "fox: ", "(Ja!) ", "\n\n", "日本語。", "✓ "]:
        assert redact.pieces().add(piece) == piece


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), places)
def test_what_is_held_back_could_still_become_a_secret(text, where):
    """And as soon as it cannot, it is told."""
    redact, secret = KnownValues(["abcabcx7"]), "abcabcx7"
    pieces, heard, said = redact.pieces(), "", ""
    for part in split(f"ab{text}abcab{text}", where):
        heard += part
        said += pieces.add(part)
        held = heard.replace(secret, HIDDEN)[len(said) :]
        if not re.search(r"[\\%&]", held):
            assert len(held) < 2 * max(map(len, redact._spelled))
            assert not held or any(each.startswith(held) for each in redact._spelled)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["s", "o it is"], ["", "so it is", ""]),
        (["wa", "sk-0123456789abcdef", "."], ["wa", "sk-0123456789abcdef", ".", ""]),
        (["mon", "key-0123456789abcdef", "."], ["mon", "key-0123456789abcdef", ".", ""]),
        (["sk-abcdefghijklmn12345", ":", "."], ["", "", f"{HIDDEN}:.", ""]),
        (["sk-", "0123456789abcdef", "0", "."], ["", "", "", f"{HIDDEN}.", ""]),
        (["sk-", "0123456789abcdef"], ["", "", HIDDEN]),
        (["12", "345", ": ", "x"], ["", "", "12345: ", "", "x"]),
        (["bear", " Bearer", "  ", "of"], ["", "bear ", "", "", "Bearer  of"]),
    ],
)
def test_a_word_that_begins_like_a_key_is_held_back_until_it_is_known(parts, expected):
    assert told(key_pieces(), parts) == expected


def test_a_secret_within_another_waits_for_the_longer_one():
    pieces = KnownValues(["abcdef", "abcdef-ghijkl", "defxyz"]).pieces()
    assert told(pieces, ["abc", "def", "!"]) == ["", "", f"{HIDDEN}!", ""]
    assert told(pieces, ["abcdef-ghijk", "l"]) == ["", HIDDEN, ""]


@pytest.mark.parametrize("spelled", ["abcdef", "%61bcdef"])
def test_a_secret_is_not_cut_where_another_begins(spelled):
    assert told(KnownValues(["abcdef", "defxyz"]).pieces(), [spelled, "!"]) == [
        "",
        f"{HIDDEN}!",
        "",
    ]


def test_after_the_end_another_text_begins():
    pieces = key_pieces()
    assert told(pieces, ["w"]) == ["w", ""]
    assert told(pieces, ["sk-0123456789abcdef ", "b"]) == [f"{HIDDEN} ", "", "b"]


def test_of_a_plain_function_all_comes_at_the_end():
    pieces = pieces_of(lambda text: text.replace("secret", "…"))
    assert isinstance(pieces, Whole)
    assert told(pieces, ["a sec", "ret", " b"]) == ["", "", "", "a … b"]
    assert told(pieces, ["c"]) == ["", "c"]


def test_a_word_without_end_is_not_looked_at_for_ever():
    looks = []
    pieces = key_pieces()
    settled = pieces._settled
    pieces._settled = lambda text, start: looks.append(len(text)) or settled(text, start)
    for _ in range(20_000):
        assert pieces.add("sk-a") == ""
    assert len(looks) < LONG + 40
    assert all(b >= a * 3 // 2 for a, b in pairwise(looks[LONG:]))
    assert pieces.end() == "sk-a" * 20_000


def test_pieces_cost_next_to_nothing_where_nothing_is_secret():
    import time

    pieces = Redactor([f"secret-number-{n}-of-many" for n in range(20)]).pieces()
    begun = time.perf_counter()
    for _ in range(10_000):
        pieces.add("word ")
    assert time.perf_counter() - begun < 5  # it is 0.2
