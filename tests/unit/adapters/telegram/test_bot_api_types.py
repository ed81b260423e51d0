"""Decoding updates."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, strategies as st

from hermes.adapters.telegram.bot_api_types import (
    MALFORMED,
    InvalidUpdate,
    Update,
    decode_updates,
    first_update_id,
)


@given(st.binary())
def test_bytes_that_are_not_a_list_raise_what_the_poller_expects(body):
    with contextlib.suppress(MALFORMED):
        decode_updates(body)
    first_update_id(body)


def test_a_deeply_nested_update_breaks_its_response_but_has_an_id():
    deep = b'{"update_id":5,"message":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(MALFORMED):
        decode_updates(b"[" + deep + b"]")
    assert first_update_id(b'{"ok":true,"result":[' + deep + b"]}") == 5
    assert first_update_id(b'{"ok":true,"result":[]}') is None


def test_an_invalid_update_does_not_affect_the_others():
    updates = [{"update_id": 1, "message": {"chat": 3}}, {"x": 1}, {"update_id": 2}]
    first, second = decode_updates(json.dumps(updates).encode())
    assert isinstance(first, InvalidUpdate)
    assert first.update_id == 1
    assert second == Update(2)
