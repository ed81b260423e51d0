"""Records of tools: calls that are made once, approvals that are used once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hermes.errors import NotApproved, Overloaded, TurnClosed
from hermes.messages import (
    Approval,
    ExpiryPolicy,
    Inbound,
    InboxReply,
    Message,
    Outbound,
    ToolCallRecord,
    TurnCommit,
)
from hermes.session_keys import background_key
from hermes.store import SessionStore

HOUR = 3600.0
DAY = 86400.0
IDLE = ExpiryPolicy(mode="idle", idle_minutes=10)


def begun_turn(store, event="e1", key="k"):
    """A running turn, whose message is on disk and open."""
    return store.accept(Inbound(key, event, "text")).receipt


def commit_of(receipt):
    return TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=0,
        inbox_ids=[receipt.inbox_id],
        rows=[Message("user", "hi"), Message("assistant", "yo")],
    )


def saying(approval):
    return [Outbound("lane", {"text": f"may {approval.tool} run? {approval.approval_id}"})]


def approved(store, tool="mail", arguments="{}", key="k", **options):
    asked = store.ask_approval(key, tool, arguments, **options)
    return store.decide_approval(key, asked.approval_id, approve=True)


def state_of(approval):
    return None if approval is None else approval.state


# Once


def test_a_call_is_recorded_once_and_then_found_with_its_result(store):
    turn = begun_turn(store).inbox_id
    assert store.begin_once(turn, "mail", '{"to":"a"}', 0) is None
    begun = ToolCallRecord(turn, "mail", '{"to":"a"}', 0)
    assert store.begin_once(turn, "mail", '{"to":"a"}', 0) == begun
    ended = replace(begun, result="sent", failed=False)
    store.end_once(ended)
    assert store.begin_once(turn, "mail", '{"to":"a"}', 0) == ended


def test_a_call_is_identified_by_turn_tool_arguments_and_ordinal(store):
    first = begun_turn(store).inbox_id
    second = begun_turn(store, "e2").inbox_id
    calls = [
        (first, "mail", "{}", 0),
        (second, "mail", "{}", 0),
        (first, "post", "{}", 0),
        (first, "mail", "[]", 0),
        (first, "mail", "{}", 1),
    ]
    assert [store.begin_once(*call) for call in calls] == [None] * 5
    store.end_once(ToolCallRecord(*calls[0], "sent", failed=True))
    found = [store.begin_once(*call) for call in calls]
    assert [(call.result, call.failed) for call in found] == [("sent", True)] + [(None, False)] * 4


def test_the_first_result_is_kept_even_if_it_is_empty(store):
    turn = begun_turn(store).inbox_id
    store.begin_once(turn, "mail", "{}")
    store.end_once(ToolCallRecord(turn, "mail", "{}", 0, ""))
    store.end_once(ToolCallRecord(turn, "mail", "{}", 0, "second", failed=True))
    assert store.begin_once(turn, "mail", "{}") == ToolCallRecord(turn, "mail", "{}", 0, "")


def test_lone_surrogates_in_a_result_can_be_stored(store):
    turn = begun_turn(store).inbox_id
    store.begin_once(turn, "mail", "{}")
    store.end_once(ToolCallRecord(turn, "mail", "{}", 0, "half \ud800"))
    assert store.begin_once(turn, "mail", "{}").result == "half ?"


def test_a_record_survives_a_restart(path, world):
    with SessionStore(path, clock=world.clock) as store:
        turn = begun_turn(store).inbox_id
        store.begin_once(turn, "mail", "{}")
    with SessionStore(path, clock=world.clock) as store:
        assert store.begin_once(turn, "mail", "{}") == ToolCallRecord(turn, "mail", "{}")


def test_a_turn_that_has_ended_records_no_calls(store, sql):
    kept = begun_turn(store, "kept", key="other").inbox_id
    receipts = [begun_turn(store, f"e{n}") for n in range(3)]
    committed, parked, answered = ids = [receipt.inbox_id for receipt in receipts]
    for turn in (*ids, kept):
        store.begin_once(turn, "mail", "{}")
    store.commit_turn(commit_of(receipts[0]))
    store.park_inbox([parked], "too often")
    store.answer(InboxReply(session_key="k", inbox_ids=[answered]))
    assert sql("SELECT turn_id FROM once_calls") == [[kept]]
    for turn in (*ids, 999):
        with pytest.raises(TurnClosed):
            store.begin_once(turn, "mail", "{}")
    store.end_once(ToolCallRecord(committed, "mail", "{}", 0, "late"))
    assert sql("SELECT turn_id, result FROM once_calls") == [[kept, None]]


# Approvals


def test_an_approval_is_requested_given_and_used_exactly_once(store, world):
    asked = store.ask_approval("k", "mail", '{"to":"a"}')
    now = world.now
    assert asked == Approval(1, "k", "k", "mail", '{"to":"a"}', "pending", now, now + HOUR)
    assert store.pending_approvals("k") == [asked]
    assert not store.take_approval("k", "mail", '{"to":"a"}')
    decided = store.decide_approval("k", 1, approve=True)
    assert decided == replace(asked, state="approved")
    assert store.pending_approvals("k") == []
    assert store.take_approval("k", "mail", '{"to":"a"}')
    assert not store.take_approval("k", "mail", '{"to":"a"}')
    assert state_of(store.get_approval("k", 1)) == "used"


def test_an_approval_is_valid_for_its_own_call_only(store):
    approved(store, "mail", '{"to":"a"}')
    assert not store.take_approval("k", "mail", '{"to":"b"}')
    assert not store.take_approval("k", "post", '{"to":"a"}')
    assert not store.take_approval("other", "mail", '{"to":"a"}')
    assert store.take_approval("k", "mail", '{"to":"a"}')


def test_a_key_sees_and_decides_only_its_own_requests(store):
    asked = store.ask_approval("k", "mail", "{}")
    assert store.get_approval("other", asked.approval_id) is None
    assert store.pending_approvals("other") == []
    assert store.decide_approval("other", asked.approval_id, approve=True) is None
    assert store.pending_approvals("k") == [asked]


def test_a_denied_call_cannot_be_made_and_may_be_asked_for_again(store):
    first = store.ask_approval("k", "mail", "{}")
    assert state_of(store.decide_approval("k", 1, approve=False)) == "denied"
    assert not store.take_approval("k", "mail", "{}")
    assert store.decide_approval("k", 1, approve=True) is None
    again = store.ask_approval("k", "mail", "{}")
    assert (again.approval_id, again.state) == (first.approval_id + 1, "pending")


def test_the_same_request_is_stored_and_announced_once(store):
    asked = store.ask_approval("k", "mail", "{}", say=saying)
    assert store.ask_approval("k", "mail", "{}", say=saying) == asked
    other = store.ask_approval("k", "mail", "[]", say=saying)
    texts = [row.body["text"] for row in store.pending_outbox()]
    assert texts == [f"may mail run? {each.approval_id}" for each in (asked, other)]


def test_a_request_expires(store, world):
    asked = store.ask_approval("k", "mail", "{}", seconds=60)
    world.pass_time(59)
    assert store.pending_approvals("k") == [asked]
    world.pass_time(1)
    assert store.pending_approvals("k") == []
    assert state_of(store.get_approval("k", asked.approval_id)) == "expired"
    assert store.decide_approval("k", asked.approval_id, approve=True) is None
    again = store.ask_approval("k", "mail", "{}", seconds=60, say=saying)
    assert again.approval_id != asked.approval_id
    assert len(store.pending_outbox()) == 1


def test_requests_and_approvals_that_are_dated_in_the_future_have_expired(store, world):
    world.now += 365 * DAY
    asked = store.ask_approval("k", "mail", "{}")
    assert approved(store, "post")
    world.now -= 335 * DAY  # the clock was wrong; 30 days later
    assert store.pending_approvals("k") == []
    assert state_of(store.get_approval("k", asked.approval_id)) == "expired"
    assert store.decide_approval("k", asked.approval_id, approve=True) is None
    assert not store.take_approval("k", "post", "{}")
    again = store.ask_approval("k", "mail", "{}")
    assert again.approval_id != asked.approval_id
    receipt = begun_turn(store)
    assert [each.approval_id for each in store.open_approvals("k", receipt.inbox_id)] == [
        again.approval_id
    ]


def test_a_request_stays_open_if_the_clock_is_set_back_by_less_than_it_lasts(store, world):
    asked = store.ask_approval("k", "mail", "{}", seconds=60)
    world.now -= 59
    assert store.pending_approvals("k") == [asked]
    assert state_of(store.decide_approval("k", asked.approval_id, approve=True)) == "approved"
    assert store.take_approval("k", "mail", "{}")


def test_an_approval_expires_after_the_same_time_from_its_decision(store, world):
    asked = store.ask_approval("k", "mail", "{}", seconds=60)
    world.pass_time(59)
    decided = store.decide_approval("k", asked.approval_id, approve=True)
    assert decided.expires_at == world.now + 60
    world.pass_time(60)
    assert state_of(store.get_approval("k", asked.approval_id)) == "expired"
    assert not store.take_approval("k", "mail", "{}")


def test_too_many_pending_requests_are_refused(store, world):
    for n in range(20):
        store.ask_approval("k", "mail", f"[{n}]")
    with pytest.raises(Overloaded, match="20 calls already wait"):
        store.ask_approval("k", "mail", "[20]")
    assert store.ask_approval("k", "mail", "[3]")  # it is pending already
    assert store.ask_approval("other", "mail", "[20]")
    store.decide_approval("k", 1, approve=False)
    assert store.ask_approval("k", "mail", "[20]")


def test_numbers_out_of_range_match_no_row(store):
    assert store.get_approval("k", 10**30) is None
    assert store.decide_approval("k", 10**30, approve=True) is None


def test_approvals_survive_a_restart(path, world):
    with SessionStore(path, clock=world.clock) as store:
        store.ask_approval("k", "mail", "[1]")
        approved(store, "mail", "[2]")
    with SessionStore(path, clock=world.clock) as store:
        assert [each.arguments for each in store.pending_approvals("k")] == ["[1]"]
        assert store.take_approval("k", "mail", "[2]")
    with SessionStore(path, clock=world.clock) as store:
        assert not store.take_approval("k", "mail", "[2]")


# Decision, answer and message in one transaction


def test_a_decision_its_answer_and_the_message_that_follows_are_committed_together(store, world):
    asked = store.ask_approval("k", "mail", "{}")
    command = begun_turn(store)
    answer = InboxReply(
        session_key="k",
        inbox_ids=[command.inbox_id],
        outbox=[Outbound("lane", {"text": "Approved."})],
    )
    then = Inbound("k", "approval:1", "you may")
    store.decide_approval(
        "k", asked.approval_id, approve=True, answer=answer, then=then, policy=IDLE
    )
    assert [row.inbound for row in store.open_inbox("k")] == [then]
    assert [row.body for row in store.pending_outbox()] == [{"text": "Approved."}]
    assert store.get_route("k").expires_at == world.now + 600


def test_a_decision_without_a_pending_request_writes_nothing(store):
    command = begun_turn(store)
    answer = InboxReply(
        session_key="k", inbox_ids=[command.inbox_id], outbox=[Outbound("lane", {"text": "x"})]
    )
    then = Inbound("k", "approval:1", "you may")
    assert store.decide_approval("k", 1, approve=True, answer=answer, then=then) is None
    assert [row.inbox_id for row in store.open_inbox("k")] == [command.inbox_id]
    assert store.pending_outbox() == []


def test_a_decision_whose_message_is_refused_is_not_stored(store):
    asked = store.ask_approval("k", "mail", "{}")
    command = begun_turn(store)
    answer = InboxReply(session_key="k", inbox_ids=[command.inbox_id])
    with pytest.raises(ValueError, match="event_id"):
        store.decide_approval(
            "k", 1, approve=True, answer=answer, then=Inbound("k", "", "nameless")
        )
    assert store.pending_approvals("k") == [asked]
    assert [row.inbox_id for row in store.open_inbox("k")] == [command.inbox_id]


def test_a_decision_is_accepted_even_if_the_queue_is_full(store):
    """It takes the place of the command that asked for it."""
    store.ask_approval("k", "mail", "{}")
    for n in range(100):
        begun_turn(store, f"e{n}")
    with pytest.raises(Overloaded):
        begun_turn(store, "one more")
    assert store.decide_approval("k", 1, approve=True, then=Inbound("k", "approval:1", "you may"))


def test_a_call_that_needs_approval_takes_it_with_its_record_or_leaves_both(store, sql):
    turn = begun_turn(store).inbox_id
    call = (turn, "mail", "{}", 0)
    with pytest.raises(NotApproved):
        store.begin_once(*call, approved_for="k")
    assert sql("SELECT count(*) FROM once_calls") == [[0]]
    approved(store)
    with pytest.raises(NotApproved):
        store.begin_once(*call, approved_for="other")
    assert store.begin_once(*call, approved_for="k") is None
    assert state_of(store.get_approval("k", 1)) == "used"
    # The turn runs again after a crash: the record answers, and no approval is asked for.
    assert store.begin_once(*call, approved_for="k") == ToolCallRecord(*call)
    with pytest.raises(NotApproved):
        store.begin_once(turn, "mail", "{}", 1, approved_for="k")


def test_a_turn_that_has_ended_uses_no_approval(store):
    approved(store)
    with pytest.raises(TurnClosed):
        store.begin_once(5, "mail", "{}", approved_for="k")
    assert store.take_approval("k", "mail", "{}")


# In the background


def test_a_background_task_asks_the_chat_that_started_it(store):
    command = begun_turn(store)
    beside = background_key("k", command.inbox_id)
    asked = store.ask_approval(beside, "mail", "{}")
    assert (asked.asked_of, asked.session_key) == ("k", beside)
    assert store.pending_approvals("k") == [asked]
    assert store.pending_approvals(beside) == []
    store.decide_approval("k", asked.approval_id, approve=True)
    assert not store.take_approval("k", "mail", "{}")
    assert store.take_approval(beside, "mail", "{}")


def test_a_key_that_only_resembles_a_background_key_asks_for_itself(store):
    theirs = begun_turn(store, key="other")
    key = background_key("k", theirs.inbox_id)
    asked = store.ask_approval(key, "mail", "{}")
    assert asked.asked_of == key
    assert store.pending_approvals("k") == []
    far = background_key("k", 10**17)
    assert store.ask_approval(far, "mail", "{}").asked_of == far


# Deletion


def test_deleting_a_session_deletes_its_requests(store, sql):
    receipt = begun_turn(store)
    begun_turn(store, "e2", key="other")
    store.ask_approval("k", "mail", "{}")
    store.ask_approval("other", "mail", "{}")
    store.ask_approval("nowhere", "mail", "{}")
    store.commit_turn(commit_of(receipt))
    store.delete_session(receipt.session_id)
    assert sql("SELECT session_key FROM approvals ORDER BY id") == [["other"], ["nowhere"]]


def test_old_approvals_are_deleted_in_any_state(store, world, sql):
    store.ask_approval("k", "mail", "[1]")
    approved(store, "mail", "[2]")
    approved(store, "mail", "[3]")
    store.take_approval("k", "mail", "[3]")
    world.pass_time(30 * DAY)
    store.ask_approval("k", "mail", "[4]")
    assert store.forget_closed() == 0
    world.pass_time(HOUR + 1)
    assert store.forget_closed(limit=2) == 2
    assert store.forget_closed() == 1
    assert sql("SELECT arguments FROM approvals") == [["[4]"]]


def test_a_file_with_tool_records_and_approvals_passes_the_integrity_check(store):
    turn = begun_turn(store).inbox_id
    approved(store)
    store.begin_once(turn, "mail", "{}", approved_for="k")
    assert store.integrity_check() == []


def test_a_tool_that_is_always_allowed_needs_no_approval_in_that_conversation(store):
    turn = begun_turn(store).inbox_id
    asked = store.ask_approval("k", "mail", '{"to":"a"}')
    decided = store.decide_approval("k", asked.approval_id, approve=True, always=True)
    assert state_of(decided) == "approved"
    assert store.allowed_tools("k") == ["mail"]
    for number in range(3):
        assert store.begin_once(turn, "mail", f"[{number}]", approved_for="k") is None
    for key, tool in (("k", "post"), ("other", "mail")):
        with pytest.raises(NotApproved):
            store.begin_once(turn, tool, "{}", approved_for=key)
    assert store.revoke_tool("k", "mail")
    assert not store.revoke_tool("k", "mail")
    assert store.allowed_tools("k") == []
    with pytest.raises(NotApproved):
        store.begin_once(turn, "mail", "[9]", approved_for="k")


def test_a_refusal_allows_nothing(store):
    asked = store.ask_approval("k", "mail", "{}")
    store.decide_approval("k", asked.approval_id, approve=False, always=True)
    assert store.decide_approval("k", asked.approval_id, approve=True, always=True) is None
    assert store.allowed_tools("k") == []


def test_an_approval_is_used_up_by_its_call_also_if_its_tool_is_allowed(store):
    """Otherwise the call could be made once more after the tool is no longer allowed."""
    turn = begun_turn(store).inbox_id
    asked = store.ask_approval("k", "mail", "{}")
    store.decide_approval("k", asked.approval_id, approve=True, always=True)
    assert store.begin_once(turn, "mail", "{}", approved_for="k") is None
    assert state_of(store.get_approval("k", asked.approval_id)) == "used"
    assert store.begin_once(turn, "mail", "{}", 1, approved_for="k") is None
    assert store.revoke_tool("k", "mail")
    with pytest.raises(NotApproved):
        store.begin_once(turn, "mail", "{}", 2, approved_for="k")
