"""Handles of a client."""

from __future__ import annotations

from hermes.adapters.jsonrpc.handles import Handles, is_own_key
from hermes.session_keys import session_key


def test_a_handle_has_eight_hex_digits_and_is_derived_from_its_key():
    handle = Handles().new()
    assert len(handle.id) == 8
    assert int(handle.id, 16) >= 0
    assert is_own_key(handle.session_key)
    assert handle.session_key == session_key(handle.source)
    later = Handles().new(handle.session_key)
    assert (later.id, later.session_key, later.source) == (
        handle.id, handle.session_key, handle.source
    )  # fmt: skip
    assert not is_own_key("agent:main:telegram:dm:12345678")
    assert not is_own_key("agent:main:rpc:dm:12345678")


def test_two_keys_with_the_same_prefix_have_two_handles():
    handles = Handles()
    first = handles.new("agent:main:rpc:dm:0123456789abcdef01234567")
    other = handles.new("agent:main:rpc:dm:01234567000000000000dddd")
    assert first.id != other.id
    assert (handles.require(first.id), handles.require(other.id)) == (first, other)
