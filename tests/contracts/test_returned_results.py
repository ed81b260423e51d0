"""Requests that return results of tools or decisions: each counts once, with its message."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from hermes.errors import Overloaded, RequestRefused
from hermes.messages import ApprovalDecision, Message, ToolCall, ToolOutput, TurnCommit
from hermes.store import SessionStore
from hermes.transcript.calls import open_calls
from hermes.transcript.render import is_valid, render
from tests.support.api_requests import KEY, a_request
from tests.support.folders import quick_folder

ROME = ToolCall("call_rome", "weather", "{}")
OSLO = ToolCall("call_oslo", "weather", "{}")


def commit(store, accepted, *rows):
    route, head = store.route_head(KEY)
    turn = TurnCommit(
        session_key=KEY, session_id=route.session_id, epoch=route.epoch, revision=head.revision,
        inbox_ids=[accepted.receipt.inbox_id], rows=rows,
    )  # fmt: skip
    return store.commit_turn(turn)


def asked(store):
    """A conversation that waits for two results."""
    first = store.accept_request(a_request("weather?"))
    call = Message("assistant", None, tool_calls=(ROME, OSLO))
    commit(store, first, Message("user", "weather?"), call)


def open_messages(store):
    return [row.messages for row in store.open_inbox(KEY)]


def test_results_get_the_name_of_their_tool(store):
    asked(store)
    assert store.waiting_calls(KEY) == [ROME, OSLO]
    outputs = (ToolOutput("call_oslo", "snow"), ToolOutput("call_rome", "sun"))
    store.accept_request(a_request("and now?", outputs=outputs))
    [[oslo, rome, text]] = open_messages(store)
    assert (oslo.role, oslo.tool_name, oslo.tool_call_id) == ("tool", "weather", "call_oslo")
    assert (rome.content, text.role, text.content) == ("sun", "user", "and now?")


def test_nothing_waits_while_a_message_is_open(store):
    asked(store)
    store.accept_request(a_request("never mind"))
    assert store.waiting_calls(KEY) == []
    with pytest.raises(RequestRefused, match="call_rome"):
        store.accept_request(a_request(outputs=(ToolOutput("call_rome", "sun"),)))


def test_nothing_waits_in_an_unknown_conversation(store):
    assert store.waiting_calls(KEY) == []
    with pytest.raises(RequestRefused):
        store.accept_request(a_request(outputs=(ToolOutput("call_rome", "sun"),)))
    assert store.get_route(KEY) is None


def test_a_refused_message_decides_nothing(store, sql):
    store.accept(a_request("hi"))
    approval = store.ask_approval(KEY, "pay", "{}")
    decision = ApprovalDecision(approval.approval_id, approve=True)
    with pytest.raises(Overloaded):
        store.accept_request(a_request(decisions=(decision,)), max_queued=1)
    assert sql("SELECT state FROM approvals") == [["pending"]]


@pytest.mark.parametrize(
    ("approve", "why"), [(True, "was approved before"), (False, "was denied before")]
)
def test_a_decision_is_made_once(store, approve, why):
    approval = store.ask_approval(KEY, "pay", '{"euros":5}')
    decision = ApprovalDecision(approval.approval_id, approve=approve, reason="because")
    store.accept_request(a_request(decisions=(decision,)))
    [row] = store.open_inbox(KEY)
    assert row.inbound.decided_calls == [approval.approval_id]
    [told, reason] = row.messages
    assert '{"euros":5}' in told.content
    assert reason.content == "because"
    with pytest.raises(RequestRefused, match=why):
        store.accept_request(a_request(decisions=(decision,)))


def test_a_background_task_is_not_decided_by_a_request(store):
    started = store.accept(a_request("go")).receipt.inbox_id
    approval = store.ask_approval(f"{KEY}:background:{started}", "pay", "{}")
    assert approval.asked_of == KEY
    with pytest.raises(RequestRefused, match="there is no approval request"):
        decision = ApprovalDecision(approval.approval_id, approve=True)
        store.accept_request(a_request(decisions=(decision,)))


ids = st.sampled_from(["a", "b", "c"])
calls = st.builds(
    lambda names: Message("assistant", None, tool_calls=tuple(ToolCall(n, "t") for n in names)),
    st.lists(ids, min_size=1, max_size=3),
)
rows = st.one_of(
    calls,
    st.builds(lambda name: Message("tool", "x", tool_call_id=name), ids),
    st.just(Message("user", "hi")),
    st.just(Message("assistant", "yo")),
)


@given(st.lists(rows, max_size=8), st.data())
def test_results_that_are_accepted_reach_the_model(transcript, data):
    """Whatever is in a transcript: accepted results are shown, and no others are accepted."""
    waiting = open_calls(transcript)
    some = data.draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3))
    with quick_folder() as folder, SessionStore(folder / "state.db") as store:
        first = store.accept_request(a_request("go"))
        commit(store, first, Message("user", "go"), *transcript)
        outputs = tuple(ToolOutput(name, f"result {name}") for name in some)
        fits = {*some} <= {call.id for call in waiting}
        if not fits:
            with pytest.raises(RequestRefused):
                store.accept_request(a_request(outputs=outputs))
            return
        store.accept_request(a_request("" if some else "go on", outputs=outputs))
        [given_rows] = open_messages(store)
        shown = render([*store.load(first.receipt.session_id).messages, *given_rows])
    assert is_valid(shown) is None
    contents = [message.content for message in shown]
    assert {f"result {name}" for name in some} <= {*contents}
