"""The usage ledger and the outbox."""

from __future__ import annotations

import pytest

from hermes.messages import (
    Committed,
    Inbound,
    Message,
    Outbound,
    OutboxRow,
    OutboxStats,
    Source,
    TurnCommit,
    Usage,
)
from hermes.store import SessionStore

FULL = Usage("turn", "big", "acme", 100, 20, 30, 4, 5, 0.25)


def totals(session):
    return (
        session.api_call_count,
        session.input_tokens,
        session.output_tokens,
        session.cache_read_tokens,
        session.cache_write_tokens,
        session.reasoning_tokens,
        session.cost,
    )


def take_turn(store, event_id, *replies, key="key", usage=(), source=None):
    """Accept a message and commit its turn with these replies; returns the turn's id."""
    accepted = store.accept(Inbound(key, event_id, "hello", source or Source()))
    receipt = accepted.receipt
    outcome = store.commit_turn(
        TurnCommit(
            session_key=key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=accepted.head.revision,
            inbox_ids=[receipt.inbox_id],
            rows=[Message("user", "hello"), Message("assistant", "hi")],
            outbox=replies,
            usage=usage,
        )
    )
    assert isinstance(outcome, Committed)
    return receipt.inbox_id


def states(store, lane=None):
    return [
        (row.body["n"], row.state, row.attempts, row.recovered)
        for row in store.pending_outbox(lane)
    ]


def reply(lane, n):
    return Outbound(lane, {"n": n})


# Usage


def test_each_provider_call_has_its_own_row(store):
    store.create_session("a", "tui")
    calls = [FULL, Usage("title", "small", "acme", 7), Usage("compression", cost=0.5), FULL]
    for call in calls:
        store.update_token_counts("a", call)
    assert store.get_usage("a") == calls


def test_the_session_has_the_totals(store):
    store.create_session("a", "tui")
    assert totals(store.get_session("a")) == (0, 0, 0, 0, 0, 0, 0.0)
    store.update_token_counts("a", FULL)
    store.update_token_counts("a", Usage("background", "small", None, 1, 2, 3, 4, 5, 0.5))
    store.update_token_counts("a", Usage())
    assert totals(store.get_session("a")) == (3, 101, 22, 33, 8, 10, 0.75)


@pytest.mark.parametrize("purpose", ["summary", "title"])
def test_summaries_and_titles_add_their_cost_only(store, purpose):
    store.create_session("a", "tui", user_id="u")
    store.book("a", [Usage(purpose, "small", None, 1, 2, 3, 4, 5, 0.5)])
    session = store.get_session("a")
    assert (session.model, totals(session)) == (None, (0, 0, 0, 0, 0, 0, 0.5))
    spent = store.spent("a", "tui", "u")
    assert (spent.session, spent.principal, spent.day) == (0.5, 0.5, 0.5)
    store.update_token_counts("a", FULL)
    session = store.get_session("a")
    assert (session.model, totals(session)) == ("big", (1, 100, 20, 30, 4, 5, 0.75))


def test_a_call_of_unknown_cost_adds_nothing_and_stays_unknown(store):
    store.create_session("a", "tui")
    store.update_token_counts("a", Usage(input_tokens=3, cost=None))
    store.update_token_counts("a", Usage(input_tokens=3, cost=0.0))
    assert store.get_session("a").cost == 0.0
    assert [call.cost for call in store.get_usage("a")] == [None, 0.0]


def test_the_first_model_used_becomes_that_of_the_session_unless_it_has_one(store):
    store.create_session("without", "tui")
    store.create_session("with", "tui", model="chosen")
    for session_id in ("without", "with"):
        store.update_token_counts(session_id, Usage(model=None))
        store.update_token_counts(session_id, Usage(model="first"))
        store.update_token_counts(session_id, Usage(model="second"))
    assert [store.get_session(i).model for i in ("without", "with")] == ["first", "chosen"]


def test_usage_of_a_session_without_a_row_creates_the_row(store):
    store.update_token_counts("new", FULL)
    session = store.get_session("new")
    assert (session.source, session.kind, session.model) == ("unknown", "new", "big")
    assert totals(session) == (1, 100, 20, 30, 4, 5, 0.25)


def test_usage_touches_neither_the_transcript_nor_other_sessions(store, world):
    store.create_session("a", "tui")
    store.create_session("b", "tui")
    store.append_message("a", "user", "hello")
    head, other = store.head("a"), store.get_session("b")
    active = store.get_session("a").last_active
    world.pass_time(10)
    store.update_token_counts("a", FULL)
    assert store.head("a") == head
    assert store.get_session("a").last_active == active
    assert store.get_session("b") == other
    assert store.get_usage("b") == []


def test_usage_of_an_ended_session_is_still_counted(store):
    store.create_session("a", "tui")
    store.end_session("a", "done")
    store.update_token_counts("a", FULL)
    assert store.get_session("a").api_call_count == 1


def test_an_unknown_session_has_no_usage(store):
    assert store.get_usage("nobody") == []


def test_the_usage_of_a_turn_is_committed_with_it(store, sql, world):
    turn_id = take_turn(store, "e1", usage=[FULL, Usage("title", input_tokens=1)])
    session_id = store.get_route("key").session_id
    assert store.get_usage(session_id) == [FULL, Usage("title", input_tokens=1)]
    assert totals(store.get_session(session_id)) == (1, 100, 20, 30, 4, 5, 0.25)
    assert sql("SELECT turn_id, created_at FROM usage") == [[turn_id, world.now]] * 2


def test_in_a_shared_conversation_each_user_is_charged_for_its_own_turns(store):
    """Otherwise the user who started it would pay for all, and the others would have no limit."""
    ann, ben = (Source("telegram", chat_id="-1", user_id=who) for who in ("7", "8"))
    for number, source in enumerate((ann, ben, ben)):
        take_turn(store, f"e{number}", usage=[FULL], source=source)
    session_id = store.get_route("key").session_id
    assert store.get_session(session_id).user_id == "7"
    spent = [store.spent(session_id, "telegram", who) for who in ("7", "8", "9")]
    assert [each.principal for each in spent] == [0.25, 0.5, 0.0]
    store.update_token_counts(session_id, FULL)  # a title, say
    assert store.spent(session_id, "telegram", "7").principal == 0.5


def test_a_cost_counts_towards_the_budgets_of_its_own_day_only(store, world):
    """A clock that was ahead for a minute must not use up all budgets until that day."""
    store.create_session("a", "tui", user_id="u")
    today = world.now
    for days in (-1, 0, 1, 365):
        world.now = today + days * 86400.0
        store.update_token_counts("a", FULL)
    world.now = today
    spent = store.spent("a", "tui", "u")
    assert (spent.session, spent.principal, spent.day) == (1.0, 0.25, 0.25)


# The outbox


def test_a_pending_reply_has_all_its_fields(store):
    turn_id = take_turn(store, "e1", Outbound("telegram:1", {"text": "hi 你", "n": [1]}))
    [row] = store.pending_outbox()
    assert row == OutboxRow(
        outbox_id=row.outbox_id,
        session_key="key",
        turn_id=turn_id,
        lane="telegram:1",
        body={"text": "hi 你", "n": [1]},
        state="pending",
        attempts=0,
        recovered=False,
    )


def test_replies_of_a_lane_keep_their_order(store):
    take_turn(store, "e1", reply("x", 1), reply("y", 2), reply("x", 3))
    take_turn(store, "e2", reply("y", 4), reply("x", 5), key="other")
    take_turn(store, "e3", reply("x", 6))
    assert [row.body["n"] for row in store.pending_outbox("x")] == [1, 3, 5, 6]
    assert [row.body["n"] for row in store.pending_outbox("y")] == [2, 4]
    assert [row.body["n"] for row in store.pending_outbox()] == [1, 2, 3, 4, 5, 6]
    assert store.pending_outbox("z") == []


def test_the_oldest_replies_are_read_first(store):
    take_turn(store, "e1", *(reply("x", n) for n in range(5)))
    assert [row.body["n"] for row in store.pending_outbox("x", limit=3)] == [0, 1, 2]


def test_a_send_is_marked_and_counted_when_it_starts(store):
    take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, second = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sending([first])
    assert states(store) == [(1, "sending", 1, False), (2, "pending", 0, False)]
    store.mark_sending([first, second])
    assert states(store) == [(1, "sending", 1, False), (2, "sending", 1, False)]


def test_a_send_that_certainly_failed_is_retried_in_the_same_position(store):
    take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, second = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sending([first])
    store.mark_unsent([first, second])
    assert states(store) == [(1, "pending", 1, False), (2, "pending", 0, False)]
    store.mark_sending([first])
    assert states(store, "x") == [(1, "sending", 2, False), (2, "pending", 0, False)]


def test_a_sent_reply_is_no_longer_pending(store, sql, world):
    take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, second = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sending([first])
    world.pass_time(3)
    store.mark_sent([first])
    assert states(store) == [(2, "pending", 0, False)]
    assert sql("SELECT id, state, closed_at, note FROM outbox ORDER BY id") == [
        [first, "sent", world.now, None],
        [second, "pending", None, None],
    ]


def test_a_reply_that_can_never_be_sent_is_closed_with_a_note(store, sql, world):
    take_turn(store, "e1", reply("x", 1))
    [dead] = [row.outbox_id for row in store.pending_outbox()]
    store.mark_dead([dead], "the chat is gone")
    assert store.pending_outbox() == []
    assert sql("SELECT state, closed_at, note FROM outbox") == [
        ["dead", world.now, "the chat is gone"]
    ]


def test_a_closed_reply_stays_closed(store, sql, world):
    take_turn(store, "e1", reply("x", 1), reply("x", 2))
    sent, dead = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sent([sent])
    store.mark_dead([dead], "gone")
    before = sql("SELECT * FROM outbox")
    world.pass_time(5)
    store.mark_sending([sent, dead])
    store.mark_unsent([sent, dead])
    store.mark_dead([sent], "no")
    store.mark_sent([sent, dead])
    assert store.recover_outbox() == 0
    assert sql("SELECT * FROM outbox") == before


def test_marks_for_unknown_rows_change_nothing(store):
    take_turn(store, "e1", reply("x", 1))
    for mark in (store.mark_sending, store.mark_sent, store.mark_unsent):
        mark([9999])
        mark([])
    store.mark_dead([9999], "gone")
    assert states(store) == [(1, "pending", 0, False)]


def test_a_reply_in_flight_is_marked_as_recovered_and_keeps_its_position(store):
    take_turn(store, "e1", *(reply("x", n) for n in range(4)))
    rows = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sent(rows[:1])
    store.mark_sending(rows[1:3])
    assert store.recover_outbox() == 2
    assert states(store) == [
        (1, "pending", 1, True),
        (2, "pending", 1, True),
        (3, "pending", 0, False),
    ]
    assert store.recover_outbox() == 0
    store.mark_sending(rows[1:2])
    assert states(store)[0] == (1, "sending", 2, True)


def test_sent_parts_are_recorded_and_the_next_part_is_in_flight(store):
    take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, second = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sending([first])
    store.mark_part(first, 1)
    store.mark_part(first, 2)
    store.mark_part(second, 7)  # which was not started
    assert [(row.part, row.state) for row in store.pending_outbox()] == [
        (2, "sending"),
        (0, "pending"),
    ]
    store.mark_unsent([first])
    assert store.recover_outbox() == 0
    assert [row.part for row in store.pending_outbox("x")] == [2, 0]


def test_an_unknown_outcome_affects_one_part_only(store):
    take_turn(store, "e1", reply("x", 1))
    [only] = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sending([only])
    store.mark_unknown([only])
    store.mark_sending([only])
    assert states(store) == [(1, "sending", 2, True)]
    store.mark_part(only, 1)
    assert states(store) == [(1, "sending", 2, False)]


def test_a_reply_that_may_have_been_sent_keeps_its_position_and_is_marked(store):
    take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, _ = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sending([first])
    store.mark_unknown([first])
    assert states(store) == [(1, "pending", 1, True), (2, "pending", 0, False)]
    store.mark_sending([first])
    store.mark_sent([first])
    store.mark_unknown([first])
    assert states(store) == [(2, "pending", 0, False)]


def test_a_lane_is_marked_as_dead_from_one_reply_on(store, sql, world):
    take_turn(store, "e1", reply("x", 1), reply("y", 2), reply("x", 3), reply("x", 4))
    ids = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sending([ids[0], ids[2]])
    world.pass_time(2)
    assert store.mark_lane_dead("x", "gone", since=ids[2]) == [ids[2], ids[3]]
    assert states(store) == [(1, "sending", 1, False), (2, "pending", 0, False)]
    assert (
        sql("SELECT state, closed_at, note FROM outbox WHERE id > ? ORDER BY id", ids[1])
        == [["dead", world.now, "gone"]] * 2
    )
    assert store.mark_lane_dead("x", "gone", since=ids[2]) == []
    assert store.mark_lane_dead("nobody", "gone") == []
    take_turn(store, "e2", reply("x", 5))
    assert [row.body["n"] for row in store.pending_outbox("x")] == [1, 5]


def test_the_outbox_is_counted_by_platform(store, world):
    def to(platform):
        return Outbound(f"{platform}/a", {"platform": platform, "text": "secret"})

    assert store.outbox_facts() == []
    take_turn(store, "e1", *[to("telegram")] * 4, to("slack"))
    ids = [row.outbox_id for row in store.pending_outbox()]
    store.mark_dead(ids[:1], "no")
    world.pass_time(86_400 - 5)
    take_turn(store, "e2", to("telegram"), to("slack"), Outbound("lane", {"text": "host"}))
    world.pass_time(3)
    store.mark_sending(ids[1:3])
    store.mark_unknown(ids[2:3])
    store.mark_dead(ids[4:], "no")
    assert store.outbox_facts() == [
        OutboxStats(platform="", pending=1, oldest_seconds=3),
        OutboxStats(platform="slack", pending=1, oldest_seconds=3, dead=1),
        OutboxStats(
            platform="telegram", pending=3, sending=1, recovered=1, oldest_seconds=86_398, dead=1
        ),
    ]
    world.pass_time(3)
    store.mark_sent(ids[1:4])
    assert [(f.platform, f.dead, f.pending, f.oldest_seconds) for f in store.outbox_facts()] == [
        ("", 0, 1, 6),
        ("slack", 1, 1, 6),
        ("telegram", 0, 1, 6),
    ]


def test_replies_survive_a_restart(path, world):
    with SessionStore(path, clock=world.clock) as first:
        accepted = first.accept(Inbound("key", "e1", "hello"))
        first.commit_turn(
            TurnCommit(
                session_key="key",
                session_id=accepted.receipt.session_id,
                epoch=accepted.receipt.epoch,
                revision=0,
                inbox_ids=[accepted.receipt.inbox_id],
                outbox=[reply("x", 1)],
            )
        )
        [row] = first.pending_outbox()
        first.mark_sending([row.outbox_id])
    with SessionStore(path, clock=world.clock) as second:
        assert second.recover_outbox() == 1
        [again] = second.pending_outbox("x")
        assert (again.body, again.state, again.attempts, again.recovered) == (
            {"n": 1},
            "pending",
            1,
            True,
        )


@pytest.mark.parametrize("moved", ["epoch", "inbox"])
def test_a_discarded_turn_leaves_no_reply_and_no_usage(store, moved):
    accepted = store.accept(Inbound("key", "e1", "hello"))
    receipt = accepted.receipt
    if moved == "epoch":
        store.new_session("key")
    else:
        store.park_inbox([receipt.inbox_id], "poison")
    outcome = store.commit_turn(
        TurnCommit(
            session_key="key",
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=0,
            inbox_ids=[receipt.inbox_id],
            rows=[Message("user", "hello")],
            outbox=[reply("x", 1)],
            usage=[FULL],
        )
    )
    assert not isinstance(outcome, Committed)
    assert store.pending_outbox() == []
    assert store.get_usage(receipt.session_id) == []
    assert store.list_sessions() == []
