"""A command decides only about calls that its user had been shown when it was accepted."""

from __future__ import annotations

import pytest

from hermes.messages import Inbound, InboxReply, Outbound

DEAD_END = "the chat is gone"


def command(store, event):
    """The inbox id of a command that is accepted now."""
    return store.accept(Inbound("k", event, "/approve", command=True)).receipt.inbox_id


def asked(store, arguments="{}", **options):
    """A call with a question in the outbox."""

    def say(approval):
        return [Outbound("lane", {"text": f"may I? {approval.approval_id}"})]

    return store.ask_approval("k", "mail", arguments, say=say, **options).approval_id


def known(store, before):
    """The calls that a command may be about, by their number, with their state."""
    return {each.approval_id: each.state for each in store.open_approvals("k", before)}


def sending(store):
    [row] = [row for row in store.pending_outbox() if row.state == "pending"]
    store.mark_sending([row.outbox_id])
    return [row.outbox_id]


def test_a_question_is_shown_when_its_row_is_being_sent(store):
    number = asked(store)
    early = command(store, "early")
    row = sending(store)
    late = command(store, "late")
    assert (known(store, early), known(store, late)) == ({}, {number: "pending"})
    store.mark_sent(row)
    assert (known(store, early), known(store, late)) == ({}, {number: "pending"})
    assert store.decide_approval("k", number, approve=True, before=early) is None
    assert store.decide_approval("k", number, approve=True, before=late).state == "approved"


def test_a_question_whose_sending_has_certainly_failed_is_not_shown(store):
    number = asked(store)
    row = sending(store)
    store.mark_unsent(row)
    between = command(store, "between")
    assert known(store, between) == {}
    sending(store)
    assert known(store, between) == {}
    assert known(store, command(store, "late")) == {number: "pending"}


def test_a_question_that_may_have_arrived_is_shown(store):
    number = asked(store)
    row = sending(store)
    store.mark_unknown(row)
    late = command(store, "late")
    assert known(store, late) == {number: "pending"}
    store.mark_sending(row)
    assert store.recover_outbox() == 1
    assert known(store, late) == {number: "pending"}


@pytest.mark.parametrize("begun", [True, False])
def test_a_question_that_the_platform_has_refused_is_not_shown(store, begun):
    asked(store)
    if begun:
        sending(store)
    store.mark_lane_dead("lane", DEAD_END)
    assert known(store, command(store, "late")) == {}


@pytest.mark.parametrize("delivery", ["host", "client"])
def test_without_an_adapter_a_question_is_shown_when_its_host_says_so(store, delivery):
    turn = store.accept(Inbound("k", "the turn", "hello")).receipt.inbox_id
    number = asked(store, delivery=delivery)
    early = command(store, "early")
    store.mark_unsent(sending(store))  # whatever becomes of the outbox row
    sending(store)
    store.mark_sent([row.outbox_id for row in store.pending_outbox()])
    store.answer(InboxReply(session_key="k", inbox_ids=[turn]))
    late = command(store, "late")
    assert (known(store, early), known(store, late)) == ({}, {})
    store.mark_shown({number: early})
    assert (known(store, early), known(store, late)) == ({}, {number: "pending"})


def test_a_question_is_not_shown_to_commands_from_before_it_was_asked(store):
    early = command(store, "early")
    number = asked(store, delivery="host")
    store.mark_shown({number: 0})  # a process that does not know the command
    assert known(store, early) == {}
    assert known(store, command(store, "late")) == {number: "pending"}


def test_an_unknown_command_that_was_accepted_before_a_question_was_shown_does_not_count(store):
    """Another process may have accepted it."""
    numbers = [asked(store, arguments=each, delivery="host") for each in ("[1]", "[2]")]
    early = command(store, "early")
    accepted_at = store.open_inbox("k")[0].accepted_at
    store.mark_shown(
        dict.fromkeys(numbers, 0), dict(zip(numbers, (accepted_at, accepted_at + 1), strict=True))
    )
    assert known(store, early) == {numbers[0]: "pending"}
    assert known(store, command(store, "late")) == dict.fromkeys(numbers, "pending")


def test_the_first_time_counts_unless_it_was_not_shown_after_all(store):
    number = asked(store, delivery="client")
    first, second = command(store, "first"), command(store, "second")
    store.mark_shown({number: first - 1})
    store.mark_shown({number: first})
    assert known(store, first) == {number: "pending"}
    store.mark_shown({number: None})
    assert known(store, second) == {}
    store.mark_shown({number: first})
    assert (known(store, first), known(store, second)) == ({}, {number: "pending"})


def test_nobody_else_shows_a_question_that_an_adapter_sends(store):
    number = asked(store)
    store.mark_shown({number: 0, 999: 0})
    assert known(store, command(store, "early")) == {}
    sending(store)
    store.mark_shown({number: None})
    assert known(store, command(store, "late")) == {number: "pending"}


@pytest.mark.parametrize("options", [{}, {"delivery": "outbox"}])
def test_a_question_that_the_caller_shows_is_shown_at_once(store, options):
    early = command(store, "early")
    number = store.ask_approval("k", "mail", "{}", **options).approval_id
    late = command(store, "late")
    assert (known(store, early), known(store, late)) == ({}, {number: "pending"})


def test_a_call_that_has_expired_since_was_open_when_the_command_was_accepted(store, world):
    first = store.ask_approval("k", "mail", "[1]", seconds=10).approval_id
    second = store.ask_approval("k", "mail", "[2]").approval_id
    world.pass_time(9)
    here = command(store, "here")
    world.pass_time(2)
    assert known(store, here) == {first: "expired", second: "pending"}
    assert known(store, command(store, "later")) == {second: "pending"}


def test_a_call_that_was_decided_since_was_open_when_the_command_was_accepted(store):
    first = store.ask_approval("k", "mail", "[1]").approval_id
    second = store.ask_approval("k", "mail", "[2]").approval_id
    third = store.ask_approval("k", "mail", "[3]").approval_id
    store.decide_approval("k", first, approve=True)
    here = command(store, "here")
    store.decide_approval("k", second, approve=False)
    assert known(store, here) == {second: "denied", third: "pending"}
    assert known(store, command(store, "later")) == {third: "pending"}
    assert store.open_approvals("other", here) == []


@pytest.mark.parametrize("sent", [True, False])
def test_a_reply_that_shows_a_call_makes_up_for_a_question_that_was_not_sent(store, sent):
    number = asked(store)
    store.mark_lane_dead("lane", DEAD_END)
    here = command(store, "here")
    reply = InboxReply(session_key="k", inbox_ids=[here], outbox=[Outbound("lane", {"text": "x"})])
    store.show_approval("k", number, answer=reply, sent=sent)
    assert [row.inbox_id for row in store.open_inbox("k")] == []
    assert known(store, command(store, "early")) == {}
    if sent:
        sending(store)
    store.mark_shown({number: 0})  # counts only if no adapter sends the reply
    assert known(store, command(store, "late")) == {number: "pending"}


def test_a_reply_does_not_postpone_a_question_that_was_shown(store):
    number = store.ask_approval("k", "mail", "{}").approval_id
    late, here = command(store, "late"), command(store, "here")
    reply = InboxReply(session_key="k", inbox_ids=[here], outbox=[Outbound("lane", {"text": "x"})])
    store.show_approval("k", number, answer=reply, sent=True)
    assert known(store, late) == {number: "pending"}


def test_an_approved_call_is_found_by_its_own_conversation(store):
    pending, denied, approved, used = (
        store.ask_approval("k", "mail", f"[{n}]").approval_id for n in range(4)
    )
    store.decide_approval("k", denied, approve=False)
    for number in (approved, used):
        store.decide_approval("k", number, approve=True)
    assert store.take_approval("k", "mail", "[3]")
    found = [store.get_approved_call("k", n) for n in (pending, denied, approved, used, 10**30)]
    assert [call and call.arguments for call in found] == [None, None, "[2]", "[3]", None]
    assert store.get_approved_call("other", approved) is None
