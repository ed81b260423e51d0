"""Decoding requests and encoding frames."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, strategies as st

from hermes.adapters.jsonrpc import frames
from hermes.adapters.jsonrpc.frames import BadLine, decode, encode

DEEP = b"[" * 200_000
NOT_JSON = {
    "words": b"hello",
    "half": b'{"id": 1, "method": "session.list"',
    "nan": b'{"id": NaN, "method": "session.list"}',
    "nul": b'{"id": 1, "method": "session.list"}\0',
    "a raw nul": b'{"id": 1, "method": "session\0list"}',
    "half a character": b'{"id": 1, "method": "session.list", "params": {"a": "\\ud800"}}',
    "two": b'{"id": 1, "method": "a"} {"id": 2, "method": "b"}',
    "latin-1 name": b'{"id": 1, "m\xe4thod": "a"}',
    "byte order": b'\xff\xfe{"id": 1}',
    "single quotes": b"{'id': 1}",
    "comment": b'{"id": 1} // hello',
}
NO_REQUEST = {
    "a number": (b"42", None),
    "a text": (b'"session.list"', None),
    "null": (b"null", None),
    "a batch": (b'[{"id": 1, "method": "session.list"}]', None),
    "an empty batch": (b"[]", None),
    "brackets": (DEEP, None),
    "braces": (b'{"a":' * 200_000, None),
    "a deep id": (b'{"id": %s%s, "method": "a"}' % (DEEP, b"]" * 200_000), None),
    "no method": (b'{"id": 1}', 1),
    "a method that is no text": (b'{"id": 1, "method": 5}', 1),
    "a method in latin-1": (b'{"id": 1, "method": "\xe4"}', 1),
    "another version": (b'{"jsonrpc": "1.0", "id": 1, "method": "a"}', 1),
    "a version that is no text": (b'{"jsonrpc": 2.0, "id": 1, "method": "a"}', 1),
    "id null": (b'{"id": null, "method": "a"}', None),
    "id true": (b'{"id": true, "method": "a"}', None),
    "id 1.5": (b'{"id": 1.5, "method": "a"}', None),
    "id 1e3": (b'{"id": 1e3, "method": "a"}', None),
    "id object": (b'{"id": {}, "method": "a"}', None),
    "id huge": (b'{"id": 9007199254740993, "method": "a"}', None),
    "id of a million digits": (b'{"id": 1%s, "method": "a"}' % (b"0" * 1_000_000), None),
    "id long": (b'{"id": "%s", "method": "a"}' % (b"x" * 201), None),
    "id in latin-1": (b'{"id": "\xe4", "method": "a"}', None),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_invalid_json_is_a_parse_error(name):
    with pytest.raises(BadLine) as bad:
        decode(NOT_JSON[name])
    assert (bad.value.code, bad.value.request_id) == (frames.PARSE, None)
    assert str(bad.value).endswith(".")


@pytest.mark.parametrize("name", NO_REQUEST)
def test_other_json_is_an_invalid_request_with_its_id(name):
    line, request_id = NO_REQUEST[name]
    with pytest.raises(BadLine) as bad:
        decode(line)
    assert (bad.value.code, bad.value.request_id) == (frames.INVALID, request_id)
    assert str(bad.value).endswith(".")


def test_the_error_for_a_batch_says_what_to_do_instead():
    with pytest.raises(BadLine, match="one request per line"):
        decode(b' [{"id": 1, "method": "session.list"}]')


IDS = st.one_of(
    st.integers(-(2**53), 2**53),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)


@given(IDS, NAMES, st.dictionaries(NAMES, VALUES, max_size=4), st.booleans(), st.booleans())
def test_every_valid_request_is_decoded(request_id, method, params, ascii_only, versioned):
    fields = {"id": request_id, "method": method, "params": params, "more": 1}
    fields |= {"jsonrpc": "2.0"} if versioned else {}
    read = decode(json.dumps(fields, ensure_ascii=ascii_only).encode() + b"\r")
    assert (read.id, read.method) == (request_id, method)
    assert type(read.id) is type(request_id)
    assert msgspec.json.decode(read.params) == params


@given(st.binary(max_size=300) | st.from_regex(rb'\A[\[\]{}":,\\ 0-9eE.\-untrfalsid]*\Z'))
def test_any_bytes_are_a_request_or_one_of_two_errors(line):
    try:
        code = decode(line) and None
    except BadLine as bad:
        code = bad.code
    assert code in {None, frames.PARSE, frames.INVALID}


@given(st.text())
def test_every_text_can_be_encoded_and_lone_surrogates_become_question_marks(text):
    halves = sum("\ud800" <= letter <= "\udfff" for letter in text)
    line = encode({"text": text, "number": float("inf") if not halves else 1})
    assert b"\n" not in line
    read = json.loads(line)["text"]
    assert len(read) == len(text)
    expected = "".join("?" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    assert read == expected


def test_every_error_code_has_a_sentence():
    assert all(text.endswith(".") for text in frames.CODES.values())
