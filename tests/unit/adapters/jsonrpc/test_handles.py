"""Handles of a client."""

from __future__ import annotations

import pytest

from hermes.adapters.jsonrpc.handles import Handles, name_in
from hermes.session_keys import session_key


@pytest.mark.parametrize("name", [None, "plans", "~/work/a.txt", "x" * 200])
def test_a_handle_has_eight_hex_digits_and_is_derived_from_its_name(name):
    handle = Handles().new(name)
    assert len(handle.id) == 8
    assert int(handle.id, 16) >= 0
    assert name_in(handle.session_key) == handle.conversation == (name or handle.conversation)
    assert handle.session_key == session_key(handle.source)
    later = Handles().new(handle.conversation)
    assert (later.id, later.session_key, later.source) == (
        handle.id, handle.session_key, handle.source
    )  # fmt: skip


def test_keys_of_others_have_no_name():
    for key in (None, "", "k", "agent:main:telegram:dm:5", "agent:main:rpc:dm:a:background:7"):
        assert name_in(key) is None


def test_two_conversations_have_two_handles_even_if_their_ids_collide():
    handles = Handles()
    first = handles.new("a")
    handles._by_id[Handles().new("b").id] = first
    other = handles.new("b")
    assert other.id not in {first.id, Handles().new("b").id}
    assert (handles.named("a"), handles.named("b")) == (first, other)
