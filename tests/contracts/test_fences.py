"""Small guarantees of the store that mutants showed to be untested."""

from __future__ import annotations

import trio
from msgspec.structs import replace

from hermes.messages import Discarded, Inbound, InboxReply, Message, Outbound, TurnCommit
from hermes.store import Rotation, open_store
from hermes.testing import inline

ROWS = (Message("user", "hi"), Message("assistant", "yo"))


def turn(accepted):
    """The turn that answers one accepted message."""
    receipt = accepted.receipt
    return TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=[receipt.inbox_id],
        rows=ROWS,
    )


def finished(store, event="e1"):
    """A finished turn; returns its session and its rows."""
    done = store.commit_turn(turn(store.accept(Inbound("k", event, "hi"))))
    return done.head.session_id, done.rows


def rotation(session_id, rows, **fields):
    return Rotation(
        session_id=session_id,
        messages=[Message("user", "a summary")],
        rotation_id="r1",
        rewrites=0,
        upto=rows[-1].id,
        **fields,
    )


def test_a_turn_is_discarded_if_its_route_was_moved_away_and_back(store):
    session_id, _ = finished(store)
    accepted = store.accept(Inbound("k", "e2", "hi"))
    store.new_session("k")
    back = store.switch("k", session_id)
    assert back.session_id == accepted.receipt.session_id
    current = replace(turn(accepted), revision=store.head(session_id).revision)
    assert isinstance(store.commit_turn(current), Discarded)
    assert len(store.get_messages(session_id)) == len(ROWS)


def test_a_retry_is_discarded_if_its_session_was_compressed_meanwhile(store):
    session_id, rows = finished(store)
    accepted = store.accept(Inbound("k", "e2", "/retry", command=True))
    store.rotate(rotation(session_id, rows))
    retry = replace(turn(accepted), rewind_to=rows[0].id, upto=rows[-1].id)
    assert isinstance(store.commit_turn(retry), Discarded)


def test_a_rotation_releases_the_lease_it_was_made_under(store):
    session_id, rows = finished(store)
    lease = store.acquire_lease(session_id, "somebody")
    store.rotate(rotation(session_id, rows, lease=lease))
    assert store.get_compression_lock_holder(session_id) is None


def test_closed_messages_get_no_second_reply(store):
    accepted = store.accept(Inbound("k", "e1", "/help", command=True))
    ids = [accepted.receipt.inbox_id]
    answer = InboxReply(session_key="k", inbox_ids=ids, outbox=[Outbound("lane", {"text": "hi"})])
    for _ in range(2):
        store.answer(answer)
    assert store.park_inbox(ids, "begun too often", answer=answer) == 0
    assert len(store.pending_outbox()) == 1


def test_waiting_keys_come_in_pages_without_repetition(store):
    for key in "abc":
        store.accept(Inbound(key, key, "hi"))
    seen, after = [], 0
    while page := store.waiting_keys(after, limit=2):
        seen += [key for key, _ in page]
        after = page[-1][1]
        assert len(seen) <= 3
    assert seen == ["a", "b", "c"]


def test_a_decision_by_number_applies_to_that_call_only(store):
    first = store.ask_approval("k", "mail", '{"to":"ann"}')
    second = store.ask_approval("k", "mail", '{"to":"bob"}')
    store.decide_approval("k", first.approval_id, approve=True)
    states = [store.get_approval("k", each.approval_id).state for each in (first, second)]
    assert states == ["approved", "pending"]


def test_a_rewind_up_to_a_message_keeps_later_messages(store):
    session_id, rows = finished(store)
    store.append_message(session_id, "user", "from elsewhere")
    hidden = store.rewind(session_id, rows[0].id, upto=rows[-1].id)
    assert [row.content for row in hidden] == ["hi", "yo"]
    left = store.load(session_id)
    assert [row.content for row in left.messages] == ["from elsewhere"]
    assert left.head.message_count == 1


async def test_a_reply_of_a_failed_request_is_not_handed_over(path):
    sent = []

    def half(_):
        yield Outbound("lane", {"text": "undone"})
        raise ValueError("the second reply cannot be made")

    async def fail(store):
        try:
            await store.ask_approval("k", "mail", "{}", say=half)
        except ValueError:
            return
        raise AssertionError("it must fail")

    async with open_store(path, open_worker=inline()) as store:
        accepted = await store.accept(Inbound("k", "e1", "hi"))
        good = replace(turn(accepted), outbox=[Outbound("lane", {"text": "kept"})])
        with store.subscribe(on_outbox=sent.extend):
            async with trio.open_nursery() as nursery:  # in one batch
                nursery.start_soon(fail, store)
                nursery.start_soon(store.commit_turn, good)
    assert [row.body["text"] for row in sent] == ["kept"]
