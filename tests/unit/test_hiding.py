"""Secrets in texts: hidden however they are spelled, and nothing else with them."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings, strategies as st

from hermes.redaction.values import HIDDEN, Redactor

SECRET = "hV7/q+9=Zk\"x'\\2pä😀w0rd"
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"

SPELLINGS = {
    "plain": str,
    "json": json.dumps,
    "json with letters as they are": lambda text: json.dumps(text, ensure_ascii=False),
    "json twice": lambda text: json.dumps(json.dumps(text)),
    "json, every character escaped": lambda text: "".join(
        json.dumps(one)[1:-1] if ord(one) > 126 else f"\\u{ord(one):04x}" for one in text
    ),
    "repr": repr,
    "ascii": ascii,
    "repr twice": lambda text: repr(repr(text)),
    "bytes": lambda text: repr(text.encode()),
    "long escapes": lambda text: "".join(f"\\U{ord(one):08x}" for one in text),
    "url": lambda text: quote(text, safe=""),
    "url path": quote,
    "form": quote_plus,
    "url twice": lambda text: quote(quote(text, safe=""), safe=""),
    "every octet": lambda text: "".join(f"%{octet:02x}" for octet in text.encode()),
    "html": html.escape,
    "entities": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "hex entities": lambda text: "".join(f"&#x{ord(one):X};" for one in text),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "basic": lambda text: base64.b64encode(f"u:{text}".encode()).decode(),
    "basic, another user": lambda text: base64.b64encode(f"me:{text}".encode()).decode(),
    "base64 for urls": lambda text: base64.urlsafe_b64encode(f"{text}:x".encode()).decode(),
    "base64 in a url": lambda text: quote(base64.b64encode(f"a{text}bc".encode()).decode()),
}
texts = st.text(st.characters(exclude_categories=["Cs", "Z", "C"]), min_size=6, max_size=40)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
def test_a_secret_is_hidden_in_every_spelling(spelling):
    spelled = SPELLINGS[spelling](SECRET)
    hidden = Redactor([SECRET]).known(f"before {spelled} after")
    assert HIDDEN in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    # All but the quotes of a repr, or what else base64 has packed with it, is gone.
    assert len(hidden.replace(HIDDEN, "")) <= len("before  after") + 12, hidden


@settings(max_examples=300)
@given(texts, st.sampled_from(sorted(SPELLINGS)), texts, texts)
def test_no_secret_survives_in_any_text_around_it(secret, spelling, before, after):
    spelled = SPELLINGS[spelling](secret)
    hidden = Redactor([secret]).known(f"{before} {spelled} {after}")
    assert secret not in hidden
    assert spelled not in hidden


@given(st.lists(texts, max_size=4), st.text())
def test_nothing_is_hidden_where_there_is_no_secret(secrets, text):
    hiding = Redactor([f"no such secret: {each}" for each in secrets])
    assert hiding.known(text) == text


@given(st.text(), st.text())
def test_a_text_around_a_secret_stays_as_it_is(before, after):
    around = before.replace("%", "").replace("\\", "").replace("&", "")
    assert Redactor(["seldom-seen"]).known(f"{around} seldom-seen {after}") == (
        f"{around} {HIDDEN} {after}"
    )


def test_a_secret_that_is_part_of_another_leaves_nothing_of_it():
    hiding = Redactor(["abcdef", "abcdef-ghijkl"])
    assert hiding.known("x abcdef-ghijkl y abcdef z") == f"x {HIDDEN} y {HIDDEN} z"
    assert hiding.known("x %61bcdef-ghijkl y") == f"x {HIDDEN} y"


def test_the_lines_of_a_private_key_are_secrets_of_their_own():
    hiding = Redactor([PEM])
    assert hiding.known(f"key: {PEM}!") == f"key: {HIDDEN}\n!"
    assert hiding.known("MIIEvQIBADANBgkqhkiG9w0B") == HIDDEN
    assert hiding.known(json.dumps(PEM)) == f'"{HIDDEN}\\n{HIDDEN}\\n{HIDDEN}\\n{HIDDEN}\\n"'


@pytest.mark.parametrize("secret", ["", " ", "\n", "12345", "on"])
def test_what_is_too_short_is_no_secret(secret):
    assert Redactor([secret]).known("on 12345 \n %20") == "on 12345 \n %20"


def test_what_looks_like_a_key_is_hidden_only_where_that_is_asked_for():
    hiding = Redactor(["seldom-seen"])
    text = "sk-abcdefghijkl0123 and seldom-seen"
    assert hiding(text) == f"{HIDDEN} and {HIDDEN}"
    assert hiding.known(text) == f"sk-abcdefghijkl0123 and {HIDDEN}"


def test_a_long_text_full_of_escapes_takes_no_time():
    import time

    hiding = Redactor([f"secret-number-{n}-of-many" for n in range(50)])
    text = '\\n "%20" &amp; \\u0041 ' * 10_000
    begun = time.perf_counter()
    assert hiding.known(text) == text
    assert time.perf_counter() - begun < 5  # it is 0.1: nothing quadratic in it
