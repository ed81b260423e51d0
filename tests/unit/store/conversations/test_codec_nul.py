"""U+0000 in what is stored: no engine is given one."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from hermes.sanitize import scrub
from hermes.store.conversations.codec import encode_json

texts = st.lists(st.sampled_from(["\0", "\\", "u0000", "\\u0000", "\ud800", "a", '"'])).map("".join)


@given(st.dictionaries(texts, texts | st.lists(texts)))
def test_json_is_the_value_with_every_nul_replaced(value):
    def replaced(inner):
        if isinstance(inner, str):
            return scrub(inner)
        return [replaced(each) for each in inner]

    expected = {replaced(name): replaced(inner) for name, inner in value.items()}
    encoded = encode_json(value)
    assert "\0" not in encoded
    if len(expected) == len(value):
        assert json.loads(encoded) == expected


@given(texts)
def test_a_scrubbed_text_has_no_nul_and_keeps_its_length(text):
    clean = scrub(text)
    assert "\0" not in clean
    assert len(clean) == len(text)
    assert scrub(clean) == clean
