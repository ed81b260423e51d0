"""Requests that open a conversation do so in one transaction with their message."""

from __future__ import annotations

import pytest

from hermes.errors import HistoryChanged, Overloaded, RequestRefused
from hermes.messages import ConversationSettings, Message, Opening, ToolCall, ToolOutput
from tests.support.api_requests import KEY, SOURCE, a_request

CALL = Message("assistant", None, tool_calls=(ToolCall("call_1", "weather"),))
HISTORY = (Message("user", "before"), CALL)
OTHER = f"{KEY}2"


def rows(store, key=KEY):
    """The contents and roles of a conversation."""
    return [(row.role, row.content) for row in store.get_history(key, include_waiting=False)]


@pytest.mark.parametrize("is_new", [False, True])
def test_a_history_is_added_with_the_message_once(store, is_new):
    opening = Opening(is_new=is_new, settings=ConversationSettings(agent="coder"))
    outputs = (ToolOutput("call_1", "sun"),)
    inbound = a_request(outputs=outputs, history=HISTORY, opening=opening)
    for _ in range(2):  # the second one repeats the first
        accepted = store.accept_request(inbound)
    assert rows(store) == [("user", "before"), ("assistant", None)]
    assert ConversationSettings.from_json(store.get_route(KEY).settings).agent == "coder"
    [row] = store.open_inbox(KEY)
    assert row.inbound.request.opening is None
    assert accepted.receipt.inbox_id == row.inbox_id


@pytest.mark.parametrize("is_new", [False, True])
def test_a_request_that_is_refused_opens_nothing(store, is_new):
    opening = Opening(is_new=is_new, settings=ConversationSettings(agent="coder"))
    fields = {"history": HISTORY, "opening": opening}
    with pytest.raises(RequestRefused):
        store.accept_request(a_request(outputs=(ToolOutput("other", "sun"),), **fields))
    with pytest.raises(Overloaded):
        store.accept_request(a_request("hi", **fields), max_queued=0)
    assert store.get_route(KEY) is None
    assert store.list_sessions() == []


def test_a_branch_has_the_messages_of_its_origin(store):
    store.add_messages(KEY, [Message("user", "one"), Message("assistant", "two")], SOURCE)
    first, _ = store.get_history(KEY)
    opening = Opening(is_new=True, of=KEY, upto=first.id)
    history = (Message("assistant", "other"),)
    store.accept_request(a_request("hi", key=OTHER, history=history, opening=opening))
    assert rows(store, OTHER) == [("user", "one"), ("assistant", "other")]
    with pytest.raises(HistoryChanged):
        store.accept_request(a_request("hi", key=OTHER, opening=opening))
