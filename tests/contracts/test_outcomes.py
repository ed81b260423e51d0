"""What the store tells about a message after its turn: its state and its reply."""

from __future__ import annotations

import pytest

from hermes.messages import (
    Inbound,
    InboxReply,
    Message,
    MessageOutcome,
    Outbound,
    Reply,
    Source,
    TurnCommit,
    Usage,
)


def accept(store, event, key="k", **options):
    return store.accept(Inbound(key, event, f"text of {event}", **options))


def reply_to(accepted, status="complete", session_id="unknown", **fields):
    turn_id = accepted.receipt.inbox_id
    return Reply(text="yo", session_id=session_id, turn_id=turn_id, status=status, **fields)


def commit(store, reply, *accepted):
    receipt = accepted[0].receipt
    return store.commit_turn(
        TurnCommit(
            session_key=receipt.session_key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=accepted[0].head.revision,
            inbox_ids=[each.receipt.inbox_id for each in accepted],
            rows=[Message("user", "hi"), Message("assistant", "yo")],
            reply=reply,
        )
    )


def replies(store, *accepted):
    return [store.get_outcome(each.receipt.inbox_id).reply for each in accepted]


def test_a_message_is_open_until_its_turn_is_committed(store):
    source = Source("web", "bot", "c1")
    accepted = accept(store, "e", source=source, per_conversation=True)
    found = store.get_outcome(accepted.receipt.inbox_id)
    assert found == MessageOutcome(accepted.receipt, ("web", "bot", "e", "k"), "open")
    assert found.identity == accepted.inbound.identity
    assert store.find_event("k", "e", "web", "bot") == found


def test_the_reply_is_stored_once_and_found_by_all_messages_of_the_turn(store, sql):
    first, second = accept(store, "a"), accept(store, "b")
    reply = reply_to(
        first, data=[1, {"a": None}], metadata={"t": 1}, usage=(Usage(cost=0.5), Usage())
    )
    done = commit(store, reply, first, second)
    stored = reply_to(
        first,
        session_id=done.head.session_id,
        data=reply.data,
        metadata=reply.metadata,
        usage=reply.usage,
        messages=(done.rows[0].id, done.rows[-1].id),
    )
    assert replies(store, first, second) == [stored, stored]
    assert sql("SELECT count(reply), count(turn_id) FROM inbox") == [[1, 2]]


def test_a_discarded_turn_stores_no_reply(store):
    accepted = accept(store, "a")
    store.new_session("k")
    commit(store, reply_to(accepted), accepted)
    assert store.get_outcome(accepted.receipt.inbox_id).state == "open"
    assert replies(store, accepted) == [None]


def test_a_command_and_the_messages_that_it_cancels_have_different_replies(store):
    one, two, command = (accept(store, event) for event in "abc")
    ids = [each.receipt.inbox_id for each in (one, two, command)]
    answer = InboxReply(
        session_key="k",
        inbox_ids=ids,
        reply=reply_to(command, "command"),
        dropped=reply_to(one, "refused"),
    )
    route = store.new_session("k", answer=answer)
    found = replies(store, one, two, command)
    assert [(each.status, each.turn_id) for each in found] == [
        ("refused", ids[0]), ("refused", ids[0]), ("command", ids[2]),
    ]  # fmt: skip
    assert {each.session_id for each in found} == {route.session_id}


def test_the_first_reply_stays(store):
    accepted = accept(store, "a")
    ids = [accepted.receipt.inbox_id]
    for status in ("command", "refused"):
        reply = reply_to(accepted, status)
        store.answer(InboxReply(session_key="k", inbox_ids=ids, reply=reply))
        store.park_inbox(ids, "late", answer=InboxReply(session_key="k", inbox_ids=ids))
    found = store.get_outcome(ids[0])
    assert (found.state, found.note, found.reply.status) == ("done", None, "command")


def test_a_parked_message_has_a_note_and_the_reply_that_its_sender_got(store):
    accepted = accept(store, "a")
    ids = [accepted.receipt.inbox_id]
    answer = InboxReply(session_key="k", inbox_ids=ids, reply=reply_to(accepted, "refused"))
    store.park_inbox(ids, "begun too often", answer=answer)
    found = store.get_outcome(ids[0])
    assert (found.state, found.note) == ("parked", "begun too often")
    assert found.reply == answer.reply


@pytest.mark.parametrize("per_conversation", [True, False])
def test_an_event_is_found_in_its_conversation_only(store, per_conversation):
    receipt = accept(store, "e\ud800", per_conversation=per_conversation).receipt
    assert store.find_event("k", "e\ud800", "embedded").receipt == receipt
    assert store.find_event("other", "e\ud800", "embedded") is None
    assert store.find_event("k", "e\ud800", "embedded", "another account") is None
    assert store.find_event("k", "e\ud800", "another platform") is None
    assert store.get_outcome(receipt.inbox_id + 1) is None


def test_a_reply_is_forgotten_with_its_message(store, world):
    accepted = accept(store, "a")
    commit(store, reply_to(accepted), accepted)
    world.pass_time(31 * 86400)
    store.forget_closed()
    assert store.get_outcome(accepted.receipt.inbox_id) is None


def test_a_reply_with_half_a_character_is_stored(store):
    accepted = accept(store, "a")
    commit(store, reply_to(accepted, data="\ud800"), accepted)
    assert replies(store, accepted)[0].data == "?"


# Messages that are taken back


def test_a_withdrawn_message_is_closed_with_a_reply_and_without_its_text(store, sql):
    accepted = accept(store, "a", metadata={"t": 1})
    inbox_id = accepted.receipt.inbox_id
    withdrawn = store.withdraw("k", inbox_id)
    assert withdrawn.row.inbound == accepted.inbound
    found = store.get_outcome(inbox_id)
    assert (found.state, found.note, found.reply) == ("done", "withdrawn", withdrawn.reply)
    assert (found.reply.status, found.reply.metadata) == ("withdrawn", {"t": 1})
    assert sql("SELECT body FROM inbox") == [[None]]
    assert store.open_inbox() == []
    assert store.accept(accepted.inbound).duplicate


def test_only_an_open_message_of_the_key_is_withdrawn(store):
    accepted = accept(store, "a")
    inbox_id = accepted.receipt.inbox_id
    assert store.withdraw("other", inbox_id) is None
    assert store.withdraw("k", inbox_id + 1) is None
    commit(store, reply_to(accepted), accepted)
    assert store.withdraw("k", inbox_id) is None
    assert replies(store, accepted)[0].status == "complete"


# Messages that nobody asked for


def said(text, chat="c"):
    return [Outbound(f"web/{chat}", {"text": text, "session_id": "", "chat_id": chat})]


def test_a_post_creates_a_session_and_appends_to_it(store):
    source = Source("web", "bot", "c", "group", user_id="u")
    first = store.post("k", "hello", source, said("hello"))
    session_id = store.get_route("k").session_id
    session = store.get_session(session_id)
    assert (session.source, session.chat_id, session.user_id) == ("web", "c", "u")
    assert (session.session_key, session.message_count) == ("k", 1)
    assert (first.before.revision, first.head) == (0, session.head)
    second = store.post("k", "again", Source())
    assert second.before == first.head
    assert store.load(session_id).messages == [first.message, second.message]
    [row] = store.pending_outbox()
    assert (row.turn_id, row.body["session_id"], row.lane) == (0, session_id, "web/c")


def test_a_post_is_stored_completely_or_not_at_all(store, sql):
    with pytest.raises(TypeError):
        store.post("k", "hello", Source("web"), [Outbound("lane", {"text": object()})])
    for table in ("routes", "sessions", "all_messages", "outbox"):
        assert sql(f"SELECT count(*) FROM {table}") == [[0]]


def test_a_post_follows_a_session_that_was_ended(store):
    accepted = accept(store, "a")
    commit(store, reply_to(accepted), accepted)
    store.end_session(accepted.receipt.session_id, "session_reset")
    posted = store.post("k", "hello", Source())
    assert posted.head.session_id != accepted.receipt.session_id
    assert posted.epoch == accepted.receipt.epoch + 1


def test_the_last_source_is_that_of_the_last_reply_else_that_of_the_session(store, world):
    assert store.last_source("k") is None
    source = Source("web", "bot", "c", "group", "7", "u")
    store.post("k", "hello", source)
    assert store.last_source("k") == Source("web", "", "c", "group", "7", "u")
    body = {"platform": "web", "account": "bot", "chat_id": "d", "user_id": "u", "text": "yo"}
    store.post("k", "yo", source, [Outbound("lane", body)])
    store.post("other", "yo", source, said("yo"))
    assert store.last_source("k") == Source("web", "bot", "d", user_id="u")


def test_several_outcomes_are_read_at_once(store):
    first, second, third = (accept(store, event) for event in "abc")
    commit(store, reply_to(first), first, second)
    ids = [each.receipt.inbox_id for each in (third, first, second)]
    found = store.get_outcomes([*ids, 999])
    assert found == [store.get_outcome(each) for each in sorted(ids)]
    assert [each.state for each in found] == ["done", "done", "open"]
    assert store.get_outcomes([]) == []


def test_the_open_messages_of_several_conversations(store):
    first, _, third = accept(store, "a", "k"), accept(store, "b", "other"), accept(store, "c", "l")
    fourth = accept(store, "d", "k")
    ids = [
        (key, each.receipt.inbox_id)
        for key, each in zip("klk", (first, third, fourth), strict=True)
    ]
    assert store.open_ids(["l", "k", "unknown"]) == ids
    commit(store, reply_to(first), first)
    assert store.open_ids(["l", "k"]) == ids[1:]
