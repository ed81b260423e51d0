"""Known secrets are redacted in every encoding, and nothing else is."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import assume, example, given, strategies as st

from hermes.redaction import REDACTED, StrictRedactor, ValueRedactor
from hermes.redaction.search import MAX_GAP
from hermes.sanitize import one_line, sanitize
from tests.support.examples import examples
from tests.support.secrets import DISGUISES, ENCODINGS, PEM, SECRET, TOKEN

REMOVED = [code for code in range(0x7F, sys.maxunicode + 1) if not sanitize(chr(code))]
SWALLOWED = ["n0w-A1-b2.C3*d4", "x41-A1-b2.C3*d4", "u00e9-A1-b2.C3*d4", "253-A1-b2.C3*d4"]
"""Secrets that make an escape of a character before them."""
texts = st.text(st.characters(exclude_categories=["Cs", "Z", "C"]), min_size=6, max_size=40)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_a_secret_is_redacted_in_every_encoding(encoding):
    encoded = ENCODINGS[encoding](SECRET)
    redacted = ValueRedactor([SECRET])(f"before {encoded} after")
    assert REDACTED in redacted
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")
    # Only the quotes of a repr, or what else base64 has encoded with it, may remain.
    assert len(redacted.replace(REDACTED, "")) <= len("before  after") + 12, redacted


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_long_secret_is_recognized_by_its_letters_and_digits(disguise):
    text = f"before {DISGUISES[disguise](TOKEN)} after"
    redacted = ValueRedactor([TOKEN])(text)
    assert redacted.replace("*", "").startswith(f"before {REDACTED}")
    assert redacted.endswith(" after")
    assert len(redacted.replace(REDACTED, "")) <= len("before  after") + 4, redacted


@pytest.mark.parametrize("before", ["\\", "\\\\", "%", "%25", "&", "&amp;"])
@pytest.mark.parametrize("secret", [TOKEN, SECRET, *SWALLOWED])
def test_an_escape_that_swallows_the_beginning_of_a_secret_does_not_hide_it(secret, before):
    """In `\\token`, `\\t` may be a tab; in `%73...`, the hexadecimal form may follow a `%`."""
    redact = ValueRedactor([secret])
    for name, encode in ENCODINGS.items():
        encoded = encode(secret)
        text = f"a {before}{encoded} tail"
        redacted = redact(text)
        assert REDACTED in redacted, name
        assert encoded[1:] not in redacted, name
        stream = redact.stream()
        chunks = [text[start : start + 3] for start in range(0, len(text), 3)]
        assert "".join([*map(stream.feed, chunks), stream.finish()]) == redacted, name


def test_what_lies_too_far_apart_is_no_secret():
    redact, (first, last) = ValueRedactor([TOKEN]), TOKEN.split(".")
    assert redact(first + "." * MAX_GAP + last) == REDACTED
    text = first + "." * (MAX_GAP + 1) + last
    assert redact(text) == text


@pytest.mark.parametrize("words", ["-----BEGIN PRIVATE KEY-----", "correct horse battery staple"])
def test_words_are_no_disguised_secret(words):
    redact = ValueRedactor([words])
    assert redact(f"say {words}!") == f"say {REDACTED}!"
    assert redact(f"say {words.lower().replace(' ', ', ')}!") != f"say {REDACTED}!"


@pytest.mark.parametrize("secret", ["hush-hush-7", TOKEN])
@pytest.mark.parametrize("code", [*range(0x20), *REMOVED], ids=hex)
def test_sanitize_reveals_no_secret(secret, code):
    """What `sanitize` removes is skipped when secrets are looked for."""
    redacted = ValueRedactor([secret])(f"It is {secret[:5]}{chr(code)}{secret[5:]} .")
    assert secret not in sanitize(redacted)
    assert secret not in one_line(redacted)


@examples(300)
@example("¡〾0¿00", "base64 in a url", "before", "after")  # base64 with both "+" and "/"
@given(texts, st.sampled_from(sorted(ENCODINGS)), texts, texts)
def test_no_secret_remains_in_any_surrounding_text(secret, encoding, before, after):
    assume(secret not in REDACTED)
    encoded = ENCODINGS[encoding](secret)
    redacted = ValueRedactor([secret])(f"{before} {encoded} {after}")
    assert secret not in redacted
    assert encoded not in redacted


@given(st.lists(texts, max_size=4), st.text())
def test_a_text_without_secrets_is_unchanged(secrets, text):
    redact = ValueRedactor([f"no such secret: {each}" for each in secrets])
    assert redact(text) == text


@given(st.text(), st.text())
def test_the_text_around_a_secret_is_unchanged(before, after):
    around = before.replace("%", "").replace("\\", "").replace("&", "")
    assert ValueRedactor(["seldom-seen"])(f"{around} seldom-seen {after}") == (
        f"{around} {REDACTED} {after}"
    )


def test_a_secret_that_is_part_of_another_leaves_nothing_of_it():
    redact = ValueRedactor(["abcdef", "abcdef-ghijkl"])
    assert redact("x abcdef-ghijkl y abcdef z") == f"x {REDACTED} y {REDACTED} z"
    assert redact("x %61bcdef-ghijkl y") == f"x {REDACTED} y"


def test_the_lines_of_a_private_key_are_redacted_on_their_own():
    redact = ValueRedactor([PEM])
    assert redact(f"key: {PEM}!") == f"key: {REDACTED}\n!"
    assert redact("MIIEvQIBADANBgkqhkiG9w0B") == REDACTED
    assert redact(json.dumps(PEM)) == f'"{REDACTED}\\n"'
    assert redact(f"{PEM.splitlines()[1]} {PEM.splitlines()[2]}") == f"{REDACTED} {REDACTED}"


@pytest.mark.parametrize("secret", ["", " ", "\n", "12345", "on"])
def test_short_values_are_not_redacted(secret):
    assert ValueRedactor([secret])("on 12345 \n %20") == "on 12345 \n %20"


def test_only_the_strict_redactor_removes_what_looks_like_a_key():
    redact = StrictRedactor(["seldom-seen"])
    text = "sk-abcdefghijkl0123 and seldom-seen"
    assert redact(text) == f"{REDACTED} and {REDACTED}"
    assert redact.values(text) == f"sk-abcdefghijkl0123 and {REDACTED}"


def test_a_long_text_full_of_escapes_is_searched_in_linear_time():
    """Anything quadratic would take hours."""
    redact = ValueRedactor([f"secret-number-{n}-of-many" for n in range(50)])
    text = '\\n "%20" &amp; \\u0041 ' * 30_000
    assert redact(text) == text
