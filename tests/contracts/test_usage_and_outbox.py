"""The usage ledger, and replies on their way out."""

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


async def take_turn(store, event_id, *replies, key="key", usage=(), source=None):
    """Accept a message and commit its turn with these replies; returns the turn's id."""
    accepted = await store.accept(Inbound(key, event_id, "hello", source or Source()))
    receipt = accepted.receipt
    outcome = await store.commit_turn(
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


async def states(store, lane=None):
    return [
        (row.body["n"], row.state, row.attempts, row.recovered)
        for row in await store.pending_outbox(lane)
    ]


def reply(lane, n):
    return Outbound(lane, {"n": n})


# Usage


async def test_each_provider_call_is_a_row_of_its_own(store):
    await store.create_session("a", "tui")
    calls = [FULL, Usage("title", "small", "acme", 7), Usage("compression", cost=0.5), FULL]
    for call in calls:
        await store.update_token_counts("a", call)
    assert await store.get_usage("a") == calls


async def test_the_session_has_the_totals(store):
    await store.create_session("a", "tui")
    assert totals(await store.get_session("a")) == (0, 0, 0, 0, 0, 0, 0.0)
    await store.update_token_counts("a", FULL)
    await store.update_token_counts("a", Usage("title", "small", None, 1, 2, 3, 4, 5, 0.5))
    await store.update_token_counts("a", Usage())
    assert totals(await store.get_session("a")) == (3, 101, 22, 33, 8, 10, 0.75)


async def test_a_call_of_unknown_cost_adds_nothing_and_stays_unknown(store):
    await store.create_session("a", "tui")
    await store.update_token_counts("a", Usage(input_tokens=3, cost=None))
    await store.update_token_counts("a", Usage(input_tokens=3, cost=0.0))
    assert (await store.get_session("a")).cost == 0.0
    assert [call.cost for call in await store.get_usage("a")] == [None, 0.0]


async def test_the_first_model_that_was_used_is_the_sessions_unless_it_had_one(store):
    await store.create_session("without", "tui")
    await store.create_session("with", "tui", model="chosen")
    for session_id in ("without", "with"):
        await store.update_token_counts(session_id, Usage(model=None))
        await store.update_token_counts(session_id, Usage(model="first"))
        await store.update_token_counts(session_id, Usage(model="second"))
    assert [(await store.get_session(i)).model for i in ("without", "with")] == ["first", "chosen"]


async def test_usage_of_a_session_that_has_no_row_yet_makes_one(store):
    await store.update_token_counts("new", FULL)
    session = await store.get_session("new")
    assert (session.source, session.kind, session.model) == ("unknown", "new", "big")
    assert totals(session) == (1, 100, 20, 30, 4, 5, 0.25)


async def test_usage_touches_neither_the_transcript_nor_other_sessions(store, world):
    await store.create_session("a", "tui")
    await store.create_session("b", "tui")
    await store.append_message("a", "user", "hello")
    head, other = await store.head("a"), await store.get_session("b")
    active = (await store.get_session("a")).last_active
    world.pass_time(10)
    await store.update_token_counts("a", FULL)
    assert await store.head("a") == head
    assert (await store.get_session("a")).last_active == active
    assert await store.get_session("b") == other
    assert await store.get_usage("b") == []


async def test_usage_of_an_ended_session_is_still_counted(store):
    await store.create_session("a", "tui")
    await store.end_session("a", "done")
    await store.update_token_counts("a", FULL)
    assert (await store.get_session("a")).api_call_count == 1


async def test_nobody_has_used_an_unknown_session(store):
    assert await store.get_usage("nobody") == []


async def test_the_usage_of_a_turn_is_committed_with_it(store, sql, world):
    turn_id = await take_turn(store, "e1", usage=[FULL, Usage("title", input_tokens=1)])
    session_id = (await store.get_route("key")).session_id
    assert await store.get_usage(session_id) == [FULL, Usage("title", input_tokens=1)]
    assert totals(await store.get_session(session_id)) == (2, 101, 20, 30, 4, 5, 0.25)
    assert sql("SELECT turn_id, created_at FROM usage") == [[turn_id, world.now]] * 2


async def test_in_a_shared_conversation_everybody_pays_for_himself(store):
    """Else who has begun it pays for all, and the others may spend without end."""
    ann, ben = (Source("telegram", chat_id="-1", user_id=who) for who in ("7", "8"))
    for number, source in enumerate((ann, ben, ben)):
        await take_turn(store, f"e{number}", usage=[FULL], source=source)
    session_id = (await store.get_route("key")).session_id
    assert (await store.get_session(session_id)).user_id == "7"
    spent = [await store.spent(session_id, "telegram", who) for who in ("7", "8", "9")]
    assert [each.principal for each in spent] == [0.25, 0.5, 0.0]
    await store.update_token_counts(session_id, FULL)  # a title, say
    assert (await store.spent(session_id, "telegram", "7")).principal == 0.5


# The outbox


async def test_a_reply_waits_with_everything_that_is_known_of_it(store):
    turn_id = await take_turn(store, "e1", Outbound("telegram:1", {"text": "hi 你", "n": [1]}))
    [row] = await store.pending_outbox()
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


async def test_replies_of_a_lane_keep_their_order(store):
    await take_turn(store, "e1", reply("x", 1), reply("y", 2), reply("x", 3))
    await take_turn(store, "e2", reply("y", 4), reply("x", 5), key="other")
    await take_turn(store, "e3", reply("x", 6))
    assert [row.body["n"] for row in await store.pending_outbox("x")] == [1, 3, 5, 6]
    assert [row.body["n"] for row in await store.pending_outbox("y")] == [2, 4]
    assert [row.body["n"] for row in await store.pending_outbox()] == [1, 2, 3, 4, 5, 6]
    assert await store.pending_outbox("z") == []


async def test_the_oldest_replies_are_read_first(store):
    await take_turn(store, "e1", *(reply("x", n) for n in range(5)))
    assert [row.body["n"] for row in await store.pending_outbox("x", limit=3)] == [0, 1, 2]


async def test_a_send_is_marked_when_it_begins_and_counted(store):
    await take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, second = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sending([first])
    assert await states(store) == [(1, "sending", 1, False), (2, "pending", 0, False)]
    await store.mark_sending([first, second])
    assert await states(store) == [(1, "sending", 1, False), (2, "sending", 1, False)]


async def test_a_send_that_surely_failed_is_tried_again_in_its_place(store):
    await take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, second = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sending([first])
    await store.mark_unsent([first, second])
    assert await states(store) == [(1, "pending", 1, False), (2, "pending", 0, False)]
    await store.mark_sending([first])
    assert await states(store, "x") == [(1, "sending", 2, False), (2, "pending", 0, False)]


async def test_what_was_sent_is_not_pending_any_more(store, sql, world):
    await take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, second = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sending([first])
    world.pass_time(3)
    await store.mark_sent([first])
    assert await states(store) == [(2, "pending", 0, False)]
    assert sql("SELECT id, state, closed_at, note FROM outbox ORDER BY id") == [
        [first, "sent", world.now, None],
        [second, "pending", None, None],
    ]


async def test_what_can_never_be_sent_is_closed_with_a_note(store, sql, world):
    await take_turn(store, "e1", reply("x", 1))
    [dead] = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_dead([dead], "the chat is gone")
    assert await store.pending_outbox() == []
    assert sql("SELECT state, closed_at, note FROM outbox") == [
        ["dead", world.now, "the chat is gone"]
    ]


async def test_what_is_closed_stays_closed(store, sql, world):
    await take_turn(store, "e1", reply("x", 1), reply("x", 2))
    sent, dead = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sent([sent])
    await store.mark_dead([dead], "gone")
    before = sql("SELECT * FROM outbox")
    world.pass_time(5)
    await store.mark_sending([sent, dead])
    await store.mark_unsent([sent, dead])
    await store.mark_dead([sent], "no")
    await store.mark_sent([sent, dead])
    assert await store.recover_outbox() == 0
    assert sql("SELECT * FROM outbox") == before


async def test_marks_for_rows_that_are_not_there_change_nothing(store):
    await take_turn(store, "e1", reply("x", 1))
    for mark in (store.mark_sending, store.mark_sent, store.mark_unsent):
        await mark([9999])
        await mark([])
    await store.mark_dead([9999], "gone")
    assert await states(store) == [(1, "pending", 0, False)]


async def test_what_was_in_flight_is_marked_recovered_and_waits_in_its_place(store):
    await take_turn(store, "e1", *(reply("x", n) for n in range(4)))
    rows = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sent(rows[:1])
    await store.mark_sending(rows[1:3])
    assert await store.recover_outbox() == 2
    assert await states(store) == [
        (1, "pending", 1, True),
        (2, "pending", 1, True),
        (3, "pending", 0, False),
    ]
    assert await store.recover_outbox() == 0
    await store.mark_sending(rows[1:2])
    assert (await states(store))[0] == (1, "sending", 2, True)


async def test_parts_that_were_taken_are_remembered_and_the_next_is_on_its_way(store):
    await take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, second = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sending([first])
    await store.mark_part(first, 1)
    await store.mark_part(first, 2)
    await store.mark_part(second, 7)  # which was not begun
    assert [(row.part, row.state) for row in await store.pending_outbox()] == [
        (2, "sending"),
        (0, "pending"),
    ]
    await store.mark_unsent([first])
    assert await store.recover_outbox() == 0
    assert [row.part for row in await store.pending_outbox("x")] == [2, 0]


async def test_a_doubt_concerns_one_part_only(store):
    await take_turn(store, "e1", reply("x", 1))
    [only] = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sending([only])
    await store.mark_unknown([only])
    await store.mark_sending([only])
    assert await states(store) == [(1, "sending", 2, True)]
    await store.mark_part(only, 1)
    assert await states(store) == [(1, "sending", 2, False)]


async def test_what_may_have_been_taken_waits_in_its_place_and_is_marked(store):
    await take_turn(store, "e1", reply("x", 1), reply("x", 2))
    first, _ = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sending([first])
    await store.mark_unknown([first])
    assert await states(store) == [(1, "pending", 1, True), (2, "pending", 0, False)]
    await store.mark_sending([first])
    await store.mark_sent([first])
    await store.mark_unknown([first])
    assert await states(store) == [(2, "pending", 0, False)]


async def test_a_lane_is_given_up_from_one_reply_on(store, sql, world):
    await take_turn(store, "e1", reply("x", 1), reply("y", 2), reply("x", 3), reply("x", 4))
    ids = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_sending([ids[0], ids[2]])
    world.pass_time(2)
    assert await store.mark_lane_dead("x", "gone", since=ids[2]) == [ids[2], ids[3]]
    assert await states(store) == [(1, "sending", 1, False), (2, "pending", 0, False)]
    assert (
        sql("SELECT state, closed_at, note FROM outbox WHERE id > ? ORDER BY id", ids[1])
        == [["dead", world.now, "gone"]] * 2
    )
    assert await store.mark_lane_dead("x", "gone", since=ids[2]) == []
    assert await store.mark_lane_dead("nobody", "gone") == []
    await take_turn(store, "e2", reply("x", 5))
    assert [row.body["n"] for row in await store.pending_outbox("x")] == [1, 5]


async def test_the_facts_of_the_outbox_by_platform(store, world):
    def to(platform):
        return Outbound(f"{platform}/a", {"platform": platform, "text": "secret"})

    assert await store.outbox_facts() == []
    await take_turn(store, "e1", *[to("telegram")] * 4, to("slack"))
    ids = [row.outbox_id for row in await store.pending_outbox()]
    await store.mark_dead(ids[:1], "no")
    world.pass_time(86_400 - 5)
    await take_turn(store, "e2", to("telegram"), to("slack"), Outbound("lane", {"text": "host"}))
    world.pass_time(3)
    await store.mark_sending(ids[1:3])
    await store.mark_unknown(ids[2:3])
    await store.mark_dead(ids[4:], "no")
    assert await store.outbox_facts() == [
        OutboxStats(platform="", pending=1, oldest_seconds=3),
        OutboxStats(platform="slack", pending=1, oldest_seconds=3, dead=1),
        OutboxStats(
            platform="telegram", pending=3, sending=1, recovered=1, oldest_seconds=86_398, dead=1
        ),
    ]
    world.pass_time(3)
    await store.mark_sent(ids[1:4])
    assert [
        (f.platform, f.dead, f.pending, f.oldest_seconds) for f in await store.outbox_facts()
    ] == [
        ("", 0, 1, 6),
        ("slack", 1, 1, 6),
        ("telegram", 0, 1, 6),
    ]


def test_replies_survive_their_process(path, world):
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
async def test_a_discarded_turn_leaves_no_reply_and_no_usage(store, moved):
    accepted = await store.accept(Inbound("key", "e1", "hello"))
    receipt = accepted.receipt
    if moved == "epoch":
        await store.new_session("key")
    else:
        await store.park_inbox([receipt.inbox_id], "poison")
    outcome = await store.commit_turn(
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
    assert await store.pending_outbox() == []
    assert await store.get_usage(receipt.session_id) == []
    assert await store.list_sessions() == []
