"""A text in chunks is redacted like the whole text, and returned as soon as possible."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from hermes.redaction import (
    REDACTED,
    Redactor,
    StrictRedactor,
    ValueRedactor,
    as_redactor,
    redact_keys,
)
from hermes.redaction.keys import key_stream
from hermes.redaction.search import MAX_GAP, condensed
from hermes.redaction.stream import RECHECK_LENGTH, IncrementalStream
from tests.support.examples import examples
from tests.support.secrets import DISGUISES, ENCODINGS, KEYS, PEM, SECRET, TOKEN

VALUES = [
    "abcabc",
    "abcabcx7",
    "bcabcaa",
    "aaaaaaa",
    "cab cab",
    "a\nbc/bc+",
    "x7%41b&bc",
    "b\\ca\\x\\",
]
ESCAPES = [
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


def split(text, positions):
    """Return the text cut at these positions."""
    ends = sorted({min(position, len(text)) for position in positions} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends)]


def streamed(stream, chunks):
    """Return the output for each chunk, and as the last item that of `finish`."""
    return [*map(stream.feed, chunks), stream.finish()]


def fragments(*samples):
    """Texts made of these samples, whole and in part, and of other characters."""
    parts = st.sampled_from(samples).flatmap(
        lambda one: st.tuples(st.integers(0, len(one)), st.integers(0, len(one))).map(
            lambda ends: one[min(ends) : max(ends)] or one
        )
    )
    return st.lists(parts | st.sampled_from(samples) | st.text(max_size=3), max_size=8).map("".join)


positions = st.lists(st.integers(0, 120), max_size=40)
values = st.lists(st.sampled_from(VALUES), min_size=1, max_size=4, unique=True)
cases = values.flatmap(lambda some: st.tuples(st.just(some), fragments(*some), positions))


@examples(600)
@given(cases)
def test_chunks_are_redacted_like_the_whole_text(case):
    secrets, text, cuts = case
    redact = ValueRedactor(secrets)
    assert "".join(streamed(redact.stream(), split(text, cuts))) == redact(text)


@examples(600)
@given(
    fragments(*KEYS, "Bearer \n", "key-", "AIza", "sk-learn", "12345:", "x" * 20, "-", " ", "9"),
    positions,
)
def test_chunks_of_key_like_text_are_redacted_like_the_whole_text(text, cuts):
    assert "".join(streamed(key_stream(), split(text, cuts))) == redact_keys(text)


@examples(300)
@given(
    st.sampled_from(sorted(ENCODINGS)),
    st.sampled_from([SECRET, PEM.splitlines()[1], "x7/y+0-secret", "pässwörd"]),
    fragments(*ESCAPES, "x"),
    fragments(*ESCAPES, "x"),
    positions,
)
def test_no_encoded_secret_passes_in_chunks(encoding, secret, before, after, cuts):
    """Wherever it is cut; what was returned earlier is part of the joined output."""
    encoded = ENCODINGS[encoding](secret)
    chunks = split(f"{before} {encoded} {after}", cuts)
    output = "".join(streamed(ValueRedactor([secret]).stream(), chunks))
    assert secret not in output
    assert encoded not in output
    assert REDACTED in output


@examples(300)
@given(values, fragments(*ESCAPES, "abc", "x7"), positions)
def test_chunks_with_escapes_are_redacted_like_the_whole_text(secrets, text, cuts):
    plain = [secret for secret in secrets if not re.search(r"[%&\\]", secret)]
    redact = ValueRedactor(plain)
    assert "".join(streamed(redact.stream(), split(text, cuts))) == redact(text)


@examples(600)
@given(
    fragments(*(disguise(TOKEN) for disguise in DISGUISES.values()), *ESCAPES, "." * MAX_GAP),
    positions,
)
def test_chunks_of_disguised_secrets_are_redacted_like_the_whole_text(text, cuts):
    redact = ValueRedactor([TOKEN])
    assert "".join(streamed(redact.stream(), split(text, cuts))) == redact(text)


@given(st.text(), positions)
def test_values_and_keys_are_redacted_one_after_the_other(text, cuts):
    redact = StrictRedactor(["seldom-seen"])
    text = f"{text}seldom-seen sk-abcdefghijkl0123 {text}"
    assert "".join(streamed(redact.stream(), split(text, cuts))) == redact(text)


@pytest.mark.parametrize(
    "redact", [StrictRedactor([]), StrictRedactor(["ZZZZZZ-0"]), ValueRedactor(["ZZZZZZ-0"])]
)
def test_text_that_resembles_no_secret_is_returned_at_once(redact):
    for chunk in ["The ", "quick, ", "brown; ", "fox: ", "(Ja!) ", "\n\n", "日本語。", "✓ "]:
        assert redact.stream().feed(chunk) == chunk


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), positions)
def test_only_text_that_could_become_a_secret_is_withheld(text, cuts):
    redact, secret = ValueRedactor(["abcabcx7"]), "abcabcx7"
    stream, received, returned = redact.stream(), "", ""
    for chunk in split(f"ab{text}abcab{text}", cuts):
        received += chunk
        returned += stream.feed(chunk)
        withheld = received.replace(secret, REDACTED)[len(returned) :]
        # Without escapes, white space and invisible characters.
        if re.fullmatch(r"[!-~]+", withheld) and not re.search(r"[\\%&>]", withheld):
            letters, values = condensed(withheld), redact._condensed._values
            assert any(form.startswith(withheld) for form in redact._encoded) or any(
                letters and each.startswith(letters) for each in values
            )


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (["s", "o it is"], ["", "so it is", ""]),
        (["wa", "sk-0123456789abcdef", "."], ["wa", "sk-0123456789abcdef", ".", ""]),
        (["mon", "key-0123456789abcdef", "."], ["mon", "key-0123456789abcdef", ".", ""]),
        (["sk-abcdefghijklmn12345", ":", "."], ["", "", f"{REDACTED}:.", ""]),
        (["sk-", "0123456789abcdef", "0", "."], ["", "", "", f"{REDACTED}.", ""]),
        (["sk-", "0123456789abcdef"], ["", "", REDACTED]),
        (["12", "345", ": ", "x"], ["", "", "12345: ", "", "x"]),
        (["bear", " Bearer", "  ", "of"], ["", "bear ", "", "", "Bearer  of"]),
    ],
)
def test_a_word_that_starts_like_a_key_is_withheld_until_it_is_complete(chunks, expected):
    assert streamed(key_stream(), chunks) == expected


def test_a_secret_inside_another_waits_for_the_longer_one():
    stream = ValueRedactor(["abcdef", "abcdef-ghijkl", "defxyz"]).stream()
    assert streamed(stream, ["abc", "def", "! "]) == ["", "", "", f"{REDACTED}! "]
    assert streamed(stream, ["abc", "def", "!w"]) == ["", "", f"{REDACTED}!w", ""]
    assert streamed(stream, ["abcdef-ghijk", "l"]) == ["", REDACTED, ""]


@pytest.mark.parametrize("encoded", ["abcdef", "%61bcdef"])
def test_a_secret_is_not_cut_where_another_starts(encoded):
    stream = ValueRedactor(["abcdef", "defxyz"]).stream()
    assert streamed(stream, [encoded, "!"]) == ["", f"{REDACTED}!", ""]


def test_a_stream_can_be_used_again_after_it_has_finished():
    stream = key_stream()
    assert streamed(stream, ["w"]) == ["w", ""]
    assert streamed(stream, ["sk-0123456789abcdef ", "b"]) == [f"{REDACTED} ", "", "b"]


def test_a_plain_function_gets_the_whole_text_at_the_end():
    redact = as_redactor(lambda text: text.replace("secret", "…"))
    assert isinstance(redact, Redactor)
    assert redact("a secret b") == "a … b"
    stream = redact.stream()
    assert streamed(stream, ["a sec", "ret", " b"]) == ["", "", "", "a … b"]
    assert streamed(stream, ["c"]) == ["", "c"]


@pytest.mark.parametrize("redact", [StrictRedactor(["ZZZZZZ-0"]), ValueRedactor(["ZZZZZZ-0"])])
def test_a_redactor_is_used_as_it_is(redact):
    assert as_redactor(redact) is redact


def test_an_endless_word_is_not_searched_again_with_every_chunk():
    checked = []

    def safe_end(text, start):
        checked.append(len(text))
        return start

    stream = IncrementalStream(lambda text, start: text[start:], safe_end)
    for _ in range(20_000):
        assert stream.feed("sk-a") == ""
    assert len(checked) < RECHECK_LENGTH + 40
    assert all(b >= a * 3 // 2 for a, b in pairwise(checked[RECHECK_LENGTH:]))
    assert stream.finish() == "sk-a" * 20_000


def test_an_endless_key_is_withheld():
    stream = key_stream()
    for _ in range(2_000):
        assert stream.feed("sk-a") == ""
    assert stream.finish() == "sk-a" * 2_000


def test_what_was_returned_is_not_searched_again():
    """It takes a second; searching the whole text with each chunk would take hours."""
    stream = StrictRedactor([f"secret-number-{n}-of-many" for n in range(20)]).stream()
    for _ in range(100_000):
        stream.feed("word ")
