"""`accept` and `commit_turn`: an inbound message becomes durable, and then a finished turn does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from msgspec.structs import replace

from hermes.errors import EventConflict, NotInLineage, Overloaded
from hermes.messages import (
    Accepted,
    Committed,
    Discarded,
    ExpiryPolicy,
    Head,
    Inbound,
    Message,
    Outbound,
    Source,
    TurnCommit,
    Usage,
)
from hermes.store import Rotation
from hermes.store.conversations import routes

PAIR = (Message("user", "hi"), Message("assistant", "yo"))
IDLE = ExpiryPolicy(mode="idle", idle_minutes=10)


def inbound(event="e1", key="k", **options):
    return Inbound(key, event, f"text of {event}", **options)


def turn(accepted, *more, **changes):
    """The turn that answers these accepted messages, the last of them seen with its head."""
    receipt = accepted.receipt
    finished = TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=[a.receipt.inbox_id for a in (accepted, *more)],
        rows=PAIR,
        outbox=[Outbound("chat", {"text": "yo"})],
    )
    return replace(finished, **changes)


def elsewhere(path, code):
    """Run code on the same file in another process."""
    program = (
        f"import sys\nfrom hermes.store import *\nwith SessionStore(sys.argv[1]) as s:\n    {code}"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)


def open_ids(store, key="k"):
    return [row.inbox_id for row in store.open_inbox(key)]


def texts(store, session_id):
    return [message.content for message in store.load(session_id).messages]


def written(store, done):
    """Whether the answer shows the last rows as they are stored."""
    stored = store.load(done.head.session_id).messages
    return done.rows and stored[-len(done.rows) :] == list(done.rows)


def test_accepting_creates_a_route_and_an_inbox_row_but_no_session(store, world):
    source = Source("telegram", "bot", "c1", user_id="u1")
    accepted = store.accept(inbound(source=source))
    route = store.get_route("k")
    receipt = accepted.receipt
    assert (receipt.session_id, receipt.epoch) == (route.session_id, 1)
    assert (route.platform, route.chat_type, route.user_id) == ("telegram", "dm", "u1")
    assert accepted == Accepted(
        receipt, Head(route.session_id), inbound(source=source), route=accepted.route
    )
    assert accepted.route.session_id == route.session_id
    assert store.get_session(route.session_id) is None
    [row] = store.open_inbox("k")
    assert (row.inbox_id, row.inbound, row.attempts) == (
        receipt.inbox_id,
        inbound(source=source),
        0,
    )


def test_the_same_event_always_gets_the_first_receipt(store, world):
    first = store.accept(inbound())
    world.pass_time(5)
    again = store.accept(inbound())
    assert (again.receipt, again.duplicate) == (first.receipt, True)
    store.commit_turn(turn(first))
    store.new_session("k")
    later = store.accept(replace(inbound(), text="changed", session_key="other"))
    assert (later.receipt, later.duplicate) == (first.receipt, True)
    assert open_ids(store) == []
    other_account = inbound(source=Source("embedded", "second account"))
    assert store.accept(other_account).duplicate is False


def test_an_event_of_one_conversation_is_unique_in_it(store, sql):
    mine = inbound(per_conversation=True)
    receipt = store.accept(mine).receipt
    other = store.accept(replace(mine, session_key="other")).receipt
    submitted = store.accept(inbound()).receipt
    assert len({receipt.inbox_id, other.inbox_id, submitted.inbox_id}) == 3
    for again in (mine, replace(mine, session_key="other"), inbound()):
        assert store.accept(again).duplicate
    assert sql("SELECT scope FROM inbox ORDER BY id") == [["k"], ["other"], [""]]


def test_the_same_event_with_another_content_is_a_conflict(store):
    mine = inbound(per_conversation=True)
    accepted = store.accept(mine)
    changes = [{"text": "other"}, {"parts": ({"type": "text"},)}]
    for change in changes:
        with pytest.raises(EventConflict, match="event 'e1' of k has another text"):
            store.accept(replace(mine, **change))
    store.commit_turn(turn(accepted))
    for change in changes:
        with pytest.raises(EventConflict):
            store.accept(replace(mine, **change))
    assert store.accept(mine).receipt == accepted.receipt


def test_a_platform_may_send_an_event_again_in_another_form(store):
    first = store.accept(inbound()).receipt
    again = store.accept(replace(inbound(), text="edited"))
    assert (again.receipt, again.duplicate) == (first, True)


def test_too_many_open_rows_are_refused_before_anything_is_stored(store):
    for n in range(3):
        store.accept(inbound(f"e{n}"), max_queued=3)
    with pytest.raises(Overloaded, match="3 messages already wait"):
        store.accept(inbound("e3"), max_queued=3)
    assert len(open_ids(store)) == 3
    assert store.accept(inbound("e0"), max_queued=3).duplicate is True
    assert store.accept(inbound("e3", key="other"), max_queued=3).duplicate is False


def test_a_command_is_accepted_and_answered_without_a_session_row(store):
    accepted = store.accept(inbound(command=True))
    done = store.commit_turn(turn(accepted, rows=()))
    assert isinstance(done, Committed)
    assert store.get_session(accepted.receipt.session_id) is None
    assert open_ids(store) == []


def test_a_turn_is_committed_atomically(store, world):
    accepted = store.accept(inbound(source=Source("telegram", user_id="u")))
    world.pass_time(2)
    call = Usage(model="m", input_tokens=10, output_tokens=2, cost=0.5)
    done = store.commit_turn(turn(accepted, usage=[call]))
    session_id = accepted.receipt.session_id
    assert done == Committed(Head(session_id, 2, 1, 0), 1, rows=done.rows)
    assert written(store, done)
    session = store.get_session(session_id)
    assert (session.source, session.session_key, session.user_id) == ("telegram", "k", "u")
    assert (session.api_call_count, session.input_tokens, session.cost) == (1, 10, 0.5)
    assert texts(store, session_id) == ["hi", "yo"]
    assert open_ids(store) == []
    [reply] = store.pending_outbox()
    assert (reply.turn_id, reply.lane, reply.body) == (
        accepted.receipt.inbox_id,
        "chat",
        {"text": "yo"},
    )


def test_every_accepted_text_is_stored_even_if_a_platform_id_comes_again(store):
    """Ids start again with a new bot token, and an edited message keeps its id."""
    revision = 0
    for number, text in enumerate(("first", "edited", "after a new token")):
        accepted = store.accept(inbound(f"e{number}", platform_message_id="1"))
        said = [Message("user", text, platform_message_id="1"), Message("assistant", "ok")]
        done = store.commit_turn(turn(accepted, rows=said, revision=revision))
        revision = done.head.revision
    session_id = done.head.session_id
    everything = ["first", "ok", "edited", "ok", "after a new token", "ok"]
    assert texts(store, session_id) == everything
    assert texts(store, store.branch(session_id)) == everything
    exported = store.export_session(session_id)
    store.delete_session(session_id)
    store.import_sessions([exported])
    assert texts(store, session_id) == everything


def test_a_turn_without_rotation_leaves_the_route_and_moves_its_activity(store, world):
    accepted = store.accept(inbound())
    before = store.get_route("k")
    world.pass_time(7)
    store.commit_turn(turn(accepted))
    assert store.get_route("k") == replace(before, last_active=world.now)


def test_committing_twice_discards_the_second(store):
    accepted = store.accept(inbound())
    store.commit_turn(turn(accepted))
    again = store.commit_turn(turn(accepted))
    assert isinstance(again, Discarded)
    assert len(texts(store, accepted.receipt.session_id)) == 2
    assert len(store.pending_outbox()) == 1


def test_a_turn_cannot_finish_the_rows_of_another_key(store):
    ours = store.accept(inbound())
    theirs = store.accept(inbound("e2", key="other"))
    mixed = turn(ours, inbox_ids=[ours.receipt.inbox_id, theirs.receipt.inbox_id])
    assert isinstance(store.commit_turn(mixed), Discarded)
    assert len(open_ids(store, "other")) == 1


def test_a_moved_fence_discards_the_whole_turn_and_the_input_stays_open(store):
    accepted = store.accept(inbound())
    route = store.new_session("k")
    done = store.commit_turn(turn(accepted))
    assert done == Discarded(
        "the conversation was moved to another session", route.session_id, route.epoch
    )
    assert open_ids(store) == [accepted.receipt.inbox_id]
    assert store.pending_outbox() == []
    assert store.get_session(accepted.receipt.session_id) is None


def test_rows_of_other_writers_come_before_ours_and_the_result_says_so(store, path):
    first = store.accept(inbound())
    store.commit_turn(turn(first))
    accepted = store.accept(inbound("e2"))
    session_id = accepted.receipt.session_id
    elsewhere(path, f"s.append_message({session_id!r}, 'user', 'theirs')")
    done = store.commit_turn(turn(accepted))
    assert done == Committed(Head(session_id, 5, 3, 0), 1, foreign=True, rows=done.rows)
    assert written(store, done)
    assert texts(store, session_id) == ["hi", "yo", "theirs", "hi", "yo"]


def test_a_turn_is_stored_at_the_tip_if_another_process_compressed_the_session(store, path):
    first = store.accept(inbound())
    store.commit_turn(turn(first))
    accepted = store.accept(inbound("e2"))
    session_id = accepted.receipt.session_id
    elsewhere(
        path,
        f"s.rotate(Rotation(session_id={session_id!r}, messages=[], rotation_id='r', rewrites=0, "
        "upto=0, child_session_id='child'))",
    )
    done = store.commit_turn(turn(accepted))
    assert done == Committed(Head("child", 4, 2, 0), 2, foreign=False, moved=True, rows=done.rows)
    assert written(store, done)
    route = store.get_route("k")
    assert (route.session_id, route.epoch) == ("child", 2)
    assert texts(store, "child") == ["hi", "yo", "hi", "yo"]


@pytest.mark.parametrize("how", ["end_session(ID, 'user_exit')", "delete_session(ID)", "switch"])
def test_a_turn_is_discarded_if_another_process_ended_the_session_and_the_input_gets_a_new_one(
    store, path, how
):
    first = store.accept(inbound())
    store.commit_turn(turn(first))
    accepted = store.accept(inbound("e2"))
    session_id = accepted.receipt.session_id
    code = "s.new_session('k')" if how == "switch" else f"s.{how.replace('ID', repr(session_id))}"
    elsewhere(path, code)
    done = store.commit_turn(turn(accepted))
    assert isinstance(done, Discarded)
    route = store.get_route("k")
    assert route.session_id != session_id
    assert (done.session_id, done.epoch) == (route.session_id, route.epoch)
    assert open_ids(store) == [accepted.receipt.inbox_id]
    head = store.head(route.session_id)
    again = turn(accepted, session_id=done.session_id, epoch=done.epoch, revision=head.revision)
    assert isinstance(store.commit_turn(again), Committed)
    assert texts(store, route.session_id) == ["hi", "yo"]


def test_an_accident_does_not_end_a_conversation(store, path):
    first = store.accept(inbound())
    store.commit_turn(turn(first))
    session_id = first.receipt.session_id
    elsewhere(path, f"s.end_session({session_id!r}, 'agent_close')")
    accepted = store.accept(inbound("e2"))
    assert accepted.receipt.session_id == session_id
    assert isinstance(store.commit_turn(turn(accepted)), Committed)


def test_accept_follows_a_compression_and_starts_a_new_session_after_an_end(store):
    first = store.accept(inbound())
    store.commit_turn(turn(first))
    session_id = first.receipt.session_id
    store.rotate(
        Rotation(
            session_id=session_id,
            messages=[Message("user", "s")],
            rotation_id="r",
            rewrites=0,
            upto=store.load(session_id).messages[-1].id,
            child_session_id="child",
        )
    )
    second = store.accept(inbound("e2"))
    assert (second.receipt.session_id, second.head) == ("child", Head("child", 1, 1, 0))
    store.end_session("child", "user_exit")
    third = store.accept(inbound("e3"))
    assert third.receipt.session_id not in {"child", session_id}
    assert third.head == Head(third.receipt.session_id)


def compress(store, session_id, child):
    upto = store.load(session_id).messages[-1].id
    summary = [Message("user", "s")]
    store.rotate(
        Rotation(
            session_id=session_id,
            messages=summary,
            rotation_id=child,
            rewrites=0,
            upto=upto,
            child_session_id=child,
        )
    )


@pytest.mark.parametrize("theirs", [False, True])
def test_a_turn_is_stored_in_a_continuation_to_which_a_message_moved_the_route(store, theirs):
    store.commit_turn(turn(store.accept(inbound())))
    accepted = store.accept(inbound("e2"))
    if theirs:
        store.append_message(accepted.receipt.session_id, "user", "theirs")
    compress(store, accepted.receipt.session_id, "child")
    later = store.accept(inbound("e3"))
    done = store.commit_turn(turn(accepted))
    assert done == Committed(Head("child", 3, 2, 0), 2, foreign=theirs, moved=True, rows=done.rows)
    assert texts(store, "child") == ["s", "hi", "yo"]
    assert open_ids(store) == [later.receipt.inbox_id]


@pytest.mark.parametrize("change", [{"rotated_to": "own-child"}, {"rewind_to": 1}], ids=str)
def test_a_turn_that_changes_its_session_is_not_stored_in_a_continuation(store, change):
    store.commit_turn(turn(store.accept(inbound())))
    accepted = store.accept(inbound("e2"))
    compress(store, accepted.receipt.session_id, "child")
    store.accept(inbound("e3"))
    assert isinstance(store.commit_turn(turn(accepted, **change)), Discarded)
    assert texts(store, "child") == ["s"]


def test_a_turn_is_discarded_if_its_route_left_the_continuation_and_came_back(store):
    store.commit_turn(turn(store.accept(inbound())))
    accepted = store.accept(inbound("e2"))
    compress(store, accepted.receipt.session_id, "child")
    store.create_session("other", session_key="k")
    for target in ("other", "child"):
        store.switch("k", target)
        assert isinstance(store.commit_turn(turn(accepted)), Discarded)
    assert texts(store, "child") == ["s"]


def test_a_rotation_by_the_agent_is_followed(store):
    first = store.accept(inbound())
    store.commit_turn(turn(first))
    accepted = store.accept(inbound("e2"))
    old = accepted.receipt.session_id
    done = store.commit_turn(turn(accepted, rotated_to="own-child"))
    assert done == Committed(Head("own-child", 2, 1, 0), 2, moved=True, rows=done.rows)
    assert written(store, done)
    assert store.get_session(old).end_reason == "compression"
    child = store.get_session("own-child")
    assert (child.kind, child.parent_session_id) == ("compression", old)
    assert store.get_route("k").session_id == "own-child"


@pytest.mark.parametrize("named", [None, "", "same"])
def test_an_agent_that_names_no_other_session_changes_nothing(store, named):
    accepted = store.accept(inbound())
    same = accepted.receipt.session_id
    done = store.commit_turn(turn(accepted, rotated_to=same if named == "same" else named))
    assert (done.head.session_id, done.epoch, done.moved) == (same, 1, False)


def test_an_agent_cannot_move_to_another_conversation(store):
    store.create_session("foreign", "tui")
    accepted = store.accept(inbound())
    with pytest.raises(NotInLineage, match="another conversation"):
        store.commit_turn(turn(accepted, rotated_to="foreign"))
    assert open_ids(store) == [accepted.receipt.inbox_id]
    assert store.get_session(accepted.receipt.session_id) is None


def test_an_agent_cannot_move_to_a_session_that_another_key_has_reserved(store):
    reserved = store.accept(inbound("e2", key="other")).receipt.session_id
    accepted = store.accept(inbound())
    with pytest.raises(NotInLineage, match="another conversation"):
        store.commit_turn(turn(accepted, rotated_to=reserved))
    assert store.get_session(reserved) is None


def test_a_rotation_by_the_agent_takes_the_rows_of_other_writers_with_it(store):
    first = store.accept(inbound())
    store.commit_turn(turn(first))
    accepted = store.accept(inbound("e2"))
    session_id = accepted.receipt.session_id
    seen = store.load(session_id).messages[-1].id
    store.append_message(session_id, "user", "theirs")
    done = store.commit_turn(turn(accepted, rotated_to="own-child", upto=seen))
    assert done.foreign
    assert texts(store, "own-child") == ["theirs", "hi", "yo"]


def test_a_conversation_with_open_messages_does_not_expire(store, world):
    first = store.accept(inbound("e1"), policy=IDLE)
    store.commit_turn(turn(first, policy=IDLE))
    waiting = store.accept(inbound("e2"), policy=IDLE)
    world.pass_time(3600)
    assert store.sweep_expired() == []
    late = store.accept(inbound("e3"), policy=IDLE)
    assert (late.expired, late.receipt.session_id) == (None, waiting.receipt.session_id)


def test_a_route_that_has_moved_since_it_was_found_overdue_does_not_expire(store, world):
    first = store.accept(inbound("e1"), policy=IDLE)
    done = store.commit_turn(turn(first, policy=IDLE))
    world.pass_time(3600)
    assert store.transact(lambda tx: routes.expire(tx, "k", done.epoch - 1)) is None
    assert store.transact(lambda tx: routes.expire(tx, "k", done.epoch)) == done.head.session_id


def test_attempts_are_counted_without_a_separate_request(store):
    first = store.accept(inbound("e1"))
    second = store.accept(inbound("e2"))
    third = store.accept(inbound("e3"))
    assert [row.attempts for row in store.open_inbox("k")] == [0, 0, 0], "nobody starts a turn"
    waiting = [second.receipt.inbox_id, third.receipt.inbox_id]
    store.commit_turn(turn(first, next_inbox_ids=waiting))
    assert [row.attempts for row in store.open_inbox("k")] == [1, 1]
    store.start_inbox(waiting)
    assert [row.attempts for row in store.open_inbox()] == [2, 2]
    store.restore_attempts({first.receipt.inbox_id: 0, waiting[1]: 1})
    assert [row.attempts for row in store.open_inbox()] == [2, 1]
    assert store.park_inbox(waiting[:1], "three failures") == 1
    assert store.park_inbox(waiting[:1], "again") == 0
    assert open_ids(store) == waiting[1:]


def test_several_messages_become_one_turn_named_after_the_first(store):
    accepted = [store.accept(inbound(f"e{n}")) for n in range(3)]
    store.commit_turn(turn(*accepted))
    [reply] = store.pending_outbox("chat")
    assert reply.turn_id == accepted[0].receipt.inbox_id
    assert open_ids(store) == []


def test_a_finished_message_keeps_its_receipt_and_not_its_text(store, sql):
    accepted = store.accept(inbound())
    assert json.loads(sql("SELECT body FROM inbox")[0][0])["text"] == "text of e1"
    store.commit_turn(turn(accepted))
    assert sql("SELECT state, body FROM inbox") == [["done", None]]


def test_open_rows_come_in_inbox_order_and_in_pages(store):
    ids = [store.accept(inbound(f"e{n}", key=f"k{n % 2}")).receipt.inbox_id for n in range(6)]
    assert [row.inbox_id for row in store.open_inbox()] == ids
    assert [row.inbox_id for row in store.open_inbox("k1", after=ids[1])] == [ids[3], ids[5]]
    assert [row.inbox_id for row in store.open_inbox(limit=2)] == ids[:2]


# Expiry


def boundaries_of(store):
    """All boundaries, delivered or not."""
    return store.snapshot(
        lambda tx: tx.all("SELECT event, session_id, reason FROM boundaries ORDER BY id")
    )


def test_without_a_policy_nothing_expires(store, world):
    accepted = store.accept(inbound())
    store.commit_turn(turn(accepted))
    world.pass_time(10**8)
    assert store.sweep_expired() == []
    later = store.accept(inbound("e2"))
    assert (later.receipt.session_id, later.expired) == (accepted.receipt.session_id, None)


def test_accept_expires_an_overdue_route_and_starts_a_new_session(store, world):
    accepted = store.accept(inbound(), policy=IDLE)
    store.commit_turn(turn(accepted))
    old = accepted.receipt.session_id
    world.pass_time(601)
    later = store.accept(inbound("e2"), policy=IDLE)
    assert later.expired == old != later.receipt.session_id
    assert store.get_session(old).end_reason == "session_expired"
    assert boundaries_of(store) == [
        ("on_session_finalize", old, "session_expired"),
        ("on_session_reset", later.receipt.session_id, "session_expired"),
    ]
    route = store.get_route("k")
    assert (route.expires_at, route.notice) == (world.now + 600, "expired")


def test_a_committed_turn_clears_the_notice(store, world):
    store.commit_turn(turn(store.accept(inbound(), policy=IDLE)))
    world.pass_time(601)
    later = store.accept(inbound("e2"), policy=IDLE)
    assert store.get_route("k").notice == "expired"
    store.commit_turn(turn(later))
    assert store.get_route("k").notice is None


def test_activity_moves_the_moment_of_expiry(store, world):
    accepted = store.accept(inbound(), policy=IDLE)
    store.commit_turn(turn(accepted))
    for n in range(3):
        world.pass_time(599)
        accepted = store.accept(inbound(f"more{n}"), policy=IDLE)
        assert accepted.expired is None
        store.commit_turn(turn(accepted, policy=IDLE))
    assert store.get_route("k").expires_at == world.now + 600


def test_a_sweep_expires_each_overdue_session_exactly_once(store, world):
    for key in ("k1", "k2", "busy"):
        accepted = store.accept(inbound(f"{key}e", key=key), policy=IDLE)
        if key != "busy":
            store.commit_turn(turn(accepted))
    world.pass_time(300)
    fresh = store.accept(inbound("young", key="young"), policy=IDLE)
    store.commit_turn(turn(fresh))
    world.pass_time(301)
    ids = [store.get_route(key).session_id for key in ("k1", "k2")]
    assert store.sweep_expired() == ids
    assert store.sweep_expired() == []
    finalized = [b for b in boundaries_of(store) if b[0] == "on_session_finalize"]
    assert [session_id for _, session_id, _ in finalized] == ids
    assert store.get_route("k1").expires_at is None


# Invalid and unusual input


@pytest.mark.parametrize("key", ["", "x" * 1001, "line\nbreak", "nul\0"])
def test_an_invalid_key_is_refused_in_one_sentence(store, key):
    with pytest.raises(ValueError, match="a session_key is 1 to 1000 printable characters"):
        store.accept(inbound(key=key))
    with pytest.raises(ValueError, match="a session_key is"):
        store.new_session(key)


def test_a_lone_surrogate_does_not_lose_the_message(store):
    broken = replace(inbound(), text="half \ud83d here")
    accepted = store.accept(broken)
    [row] = store.open_inbox("k")
    assert row.inbound.text == "half ? here"
    rows = [Message("assistant", "so \ud800", reasoning="\udfff hm")]
    store.commit_turn(turn(accepted, rows=rows))
    [message] = store.load(accepted.receipt.session_id).messages
    assert (message.content, message.reasoning) == ("so ?", "? hm")


def test_a_null_character_is_replaced_and_loses_no_message(store):
    source = Source("telegram", user_id="u\0", user_name="\0")
    broken = replace(inbound(source=source), text="nul \0 here", event_id="e\0")
    accepted = store.accept(broken)
    assert store.accept(broken).duplicate
    [row] = store.open_inbox("k")
    assert (row.inbound.text, row.inbound.event_id) == ("nul \ufffd here", "e\ufffd")
    assert (row.inbound.source.user_id, row.inbound.source.user_name) == ("u\ufffd", "\ufffd")
    rows = [Message("assistant", "so \0", platform_message_id="p\0", reasoning="\\\0 hm")]
    store.commit_turn(turn(accepted, rows=rows))
    session_id = accepted.receipt.session_id
    [message] = store.load(session_id).messages
    assert (message.content, message.reasoning) == ("so \ufffd", "\\\ufffd hm")
    again = store.append_message(session_id, "assistant", "so", platform_message_id="p\0")
    assert (again.duplicate, again.message_id) == (True, message.id)


def test_json_that_is_nested_too_deeply_is_refused(store):
    deep: dict[str, object] = {}
    for _ in range(200):
        deep = {"deeper": deep}
    store.create_session("a", "x")
    with pytest.raises(ValueError, match="nested more than 100 levels"):
        store.append_message("a", "user", parts=[deep])
    with pytest.raises(ValueError, match="nested more than 100 levels"):
        store.accept(inbound(parts=(deep,)))
    assert store.load("a").messages == []


@pytest.mark.parametrize("session_id", ["", "x" * 201, "a\0b", "a\nb"])
def test_an_invalid_id_is_refused_in_one_sentence(store, session_id):
    with pytest.raises(ValueError, match="a session id is 1 to 200 printable characters"):
        store.create_session(session_id, "x")


OPENAI_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_a_message_of_a_wrong_shape_is_refused_and_the_session_stays_readable(store):
    store.create_session("a", "x")
    with pytest.raises(ValueError, match="field of the wrong type"):
        store.append_message("a", "assistant", tool_calls=[OPENAI_CALL])
    with pytest.raises(ValueError, match="field of the wrong type"):
        store.append_messages("a", [Message("assistant", reasoning=7)])
    with pytest.raises(ValueError, match="field of the wrong type"):
        store.accept(Inbound("k", 7, "an int for an event id"))
    with pytest.raises(ValueError, match="needs an event_id"):
        store.accept(Inbound("k", "", "which one is it?"))
    assert store.load("a").messages == []
    assert store.open_inbox() == []


def test_a_row_damaged_by_another_program_does_not_break_search(store, sql, new_rows):
    store.create_session("a", "x")
    store.append_message("a", "assistant", "plum", tool_name="clock")
    sql(f"UPDATE {new_rows} SET extra = '{{\"tool_calls\": 7}}'")
    assert [hit.snippet for hit in store.search_messages("plum")] == [">>>plum<<<"]


def test_a_lone_surrogate_in_a_name_does_not_lose_the_message(store):
    source = Source("telegram", user_id="u\ud800", user_name="\udfff")
    store.accept(inbound(source=source))
    [row] = store.open_inbox("k")
    assert (row.inbound.source.user_id, row.inbound.source.user_name) == ("u?", "?")


def test_a_turn_without_messages_has_no_fence_and_is_refused(store):
    accepted = store.accept(inbound())
    with pytest.raises(ValueError, match="inbox_ids"):
        store.commit_turn(turn(accepted, inbox_ids=[]))


def test_the_source_of_a_message_is_stored_with_its_session(store):
    source = Source("telegram", "bot", "chat-1", "group", "topic-2", "u")
    accepted = store.accept(inbound(source=source))
    store.commit_turn(turn(accepted))
    session = store.get_session(accepted.receipt.session_id)
    source = (
        session.source,
        session.chat_id,
        session.chat_type,
        session.thread_id,
        session.user_id,
    )
    assert source == ("telegram", "chat-1", "group", "topic-2", "u")


def test_a_conversation_that_was_resumed_does_not_expire_at_the_next_message(store, world):
    accepted = store.accept(inbound(), policy=IDLE)
    store.commit_turn(turn(accepted))
    old = accepted.receipt.session_id
    world.pass_time(5000)
    store.switch("k", old)
    later = store.accept(inbound("e2"), policy=IDLE)
    assert (later.receipt.session_id, later.expired) == (old, None)


def test_expiry_ends_the_tip_of_what_another_process_compressed(store, world, path):
    accepted = store.accept(inbound(), policy=IDLE)
    store.commit_turn(turn(accepted))
    elsewhere(
        path,
        f"s.rotate(Rotation(session_id={accepted.receipt.session_id!r}, messages=[], "
        "rotation_id='r', rewrites=0, upto=0, child_session_id='child'))",
    )
    world.pass_time(601)
    later = store.accept(inbound("e2"), policy=IDLE)
    assert later.expired == "child"
    assert store.get_session("child").end_reason == "session_expired"
    assert boundaries_of(store)[0] == ("on_session_finalize", "child", "session_expired")


def test_active_routes_do_not_keep_others_from_expiring(store, world):
    for n in range(101):
        store.accept(inbound(f"busy{n}", key=f"busy{n}"), policy=IDLE)
    world.pass_time(1)
    accepted = store.accept(inbound("quiet", key="quiet"), policy=IDLE)
    store.commit_turn(turn(accepted))
    world.pass_time(601)
    assert store.sweep_expired() == [accepted.receipt.session_id]
