"""`Base64Filter`: long files in a request are replaced by their hash, however they arrive."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given, strategies as st

from hermes.testing.dialects import Refusal
from hermes.testing.seen_files import MAX_KEPT, Base64Filter, read_content, read_data_url
from tests.support.model_files import digest

LONG = bytes(range(256)) * 20
ENCODED = base64.b64encode(LONG).decode()
START = '[{"url":"data:image/png;base64,'
HIDDEN = f"sha256:{digest(LONG)}:{len(LONG)}:{LONG[:16].hex()}"


def filtered(request, sizes=()):
    """The request as a server keeps it if it arrives in pieces of these sizes."""
    body, kept, made = msgspec.json.encode(request), b"", Base64Filter()
    for size in sizes:
        kept += made.feed(body[:size])
        body = body[size:]
    return msgspec.json.decode(kept + made.feed(body) + made.finish())


def request(data):
    return [
        {"url": f"data:image/png;base64,{data}", "text": 'a "url":"data:;base64,'},
        {"type": "base64", "media_type": "image/png", "data": data},
        {"input_audio": {"data": data, "format": "wav"}},
        {"file_data": f"data:application/pdf;base64,{data}"},
    ]


@given(st.lists(st.integers(1, 9_000), max_size=12))
def test_long_files_are_replaced_in_whatever_pieces_they_arrive(sizes):
    assert filtered(request(ENCODED), sizes) == request(HIDDEN)


def test_short_files_and_other_texts_are_kept():
    short = base64.b64encode(b"a" * (MAX_KEPT // 4 * 3)).decode()
    assert filtered(request(short)) == request(short)
    other = [{"data": ENCODED}, {"text": ENCODED}, {"type": "text", "data": ENCODED}]
    assert filtered(other) == other
    assert filtered([]) == []


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        (ENCODED[:-1], ()),
        (ENCODED[:5000] + "*" + ENCODED[5001:], ()),
        (ENCODED[:5000] + "A===" + ENCODED[5004:], ()),
        (ENCODED[:5000] + "AA==" + ENCODED[5004:], (len(START) + 5004,)),
        (ENCODED + "\n", ()),
    ],
)  # fmt: skip
def test_invalid_base64_is_refused(data, sizes):
    kept = filtered([{"url": f"data:image/png;base64,{data}"}], sizes)
    with pytest.raises(Refusal, match="base64"):
        read_data_url(kept[0]["url"])


def test_a_file_has_the_same_hash_whether_it_was_replaced_or_not():
    whole, replaced = read_content(ENCODED, "audio/wav"), read_content(HIDDEN, "audio/wav")
    assert whole == replaced
    assert (whole.size, whole.sha256) == (len(LONG), digest(LONG))
