"""Responses in the store: added with their messages, answered with them, deleted with sessions."""

from __future__ import annotations

import functools

import pytest

from hermes.messages import ApiRequest, Inbound, InboxReply, Message, Reply, Source, TurnCommit
from hermes.store import SessionStore
from hermes.store.responses.rows import RETRY_SECONDS
from tests.support.folders import quick_folder

KEY = "agent:main:http:dm:ann:conv_1"
PATH = "/v1/responses"


def request(name, *, process="p1", digest="body", **options):
    options = {"credential": "tok_1", "path": PATH, **options}
    return ApiRequest(id=f"resp_{name}", digest=digest, process=process, **options)


def accept(store, name, key=KEY, event=None, **options):
    source = Source("http", "tok_1", "ann", user_id="tok_1")
    sent = request(name, **options)
    return store.accept(Inbound(key, event or sent.id, f"text of {name}", source, request=sent))


def reply_to(accepted, status="complete"):
    session_id, turn_id = accepted.receipt.session_id, accepted.receipt.inbox_id
    return Reply(text="yo", session_id=session_id, turn_id=turn_id, status=status)


def commit(store, accepted):
    route, head = store.route_head(accepted.receipt.session_key)
    turn = TurnCommit(
        session_key=accepted.receipt.session_key,
        session_id=route.session_id,
        epoch=route.epoch,
        revision=head.revision,
        inbox_ids=[accepted.receipt.inbox_id],
        rows=[Message("user", "hi"), Message("assistant", "yo")],
        reply=reply_to(accepted),
    )
    return store.commit_turn(turn)


def attach(store, process="p1", digest="body"):
    found = store.attach_response("tok_1", PATH, digest, process)
    return None if found is None else found.id


def cut(store, name, process="p1"):
    assert store.end_connection(f"resp_{name}", process, complete=False)


def test_a_response_is_added_with_its_message_and_has_its_reply(store, world):
    accepted = accept(store, "a", idempotency_key="k", echo={"model": "hermes"})
    found = store.get_response("resp_a")
    assert found == store.find_response("tok_1", "k")
    assert found == store.response_to(accepted.receipt.inbox_id)
    assert (found.session_key, found.session_id) == (KEY, accepted.receipt.session_id)
    assert (found.echo, found.created_at) == ({"model": "hermes"}, world.now)
    assert (found.connection, found.reply, found.closed_at) == ("open", None, None)
    world.pass_time(1)
    done = commit(store, accepted)
    found = store.get_response("resp_a")
    assert found.closed_at == world.now
    assert found.reply == done.reply
    assert found.reply.messages is not None


def test_a_key_belongs_to_one_credential(store):
    accept(store, "a", idempotency_key="k")
    accept(store, "b", idempotency_key="k", credential="tok_2")
    assert store.find_response("tok_1", "k").id == "resp_a"
    assert store.find_response("tok_2", "k").id == "resp_b"
    assert store.find_response("tok_3", "k") is None


def test_a_second_message_with_a_key_is_not_stored(store, sql):
    first = accept(store, "a", event="key:k", idempotency_key="k")
    again = accept(store, "b", event="key:k", idempotency_key="k")
    assert again.duplicate
    assert again.receipt == first.receipt
    assert store.response_to(again.receipt.inbox_id).id == "resp_a"
    assert sql("SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM responses)") == [[1, 1]]


def test_a_refused_message_has_no_response(store):
    accept(store, "a")
    with pytest.raises(Exception, match="wait for"):
        store.accept(Inbound(KEY, "e", "text", request=request("b", digest="b")), max_queued=1)
    assert store.get_response("resp_b") is None
    assert attach(store, "p2", "b") is None


def test_a_withdrawn_message_ends_its_response(store):
    accepted = accept(store, "a")
    store.withdraw(KEY, accepted.receipt.inbox_id)
    assert store.get_response("resp_a").reply.status == "withdrawn"


def test_a_parked_message_ends_its_response(store):
    accepted = accept(store, "a")
    answer = InboxReply(
        session_key=KEY,
        inbox_ids=[accepted.receipt.inbox_id],
        reply=reply_to(accepted, "refused"),
    )
    store.park_inbox(answer.inbox_ids, "begun too often", answer=answer)
    assert store.get_response("resp_a").reply.status == "refused"


def test_messages_that_a_command_cancels_all_have_its_reply(store):
    waiting = [accept(store, name) for name in "abc"]
    command = store.accept(Inbound(KEY, "stop", "/stop"))
    dropped = reply_to(waiting[0], "refused")
    store.answer(
        InboxReply(
            session_key=KEY,
            inbox_ids=[each.receipt.inbox_id for each in (*waiting, command)],
            reply=reply_to(command, "command"),
            dropped=dropped,
        )
    )
    assert [store.get_response(f"resp_{name}").reply for name in "abc"] == [dropped] * 3


def test_a_retry_attaches_to_the_oldest_lost_request(store):
    for name in "abc":
        accept(store, name)
    cut(store, "b")
    cut(store, "a")
    assert [attach(store) for _ in range(3)] == ["resp_a", "resp_b", None]


def test_a_response_that_may_have_been_written_is_attached_to_last(store, world):
    """If a process died, responses of turns that had ended may have been written, or not."""
    accepted = {name: accept(store, name) for name in "abcde"}
    for name in "cda":
        world.pass_time(1)
        commit(store, accepted[name])
    cut(store, "c")
    found = [attach(store, "p2") for _ in "abcdef"]
    assert found == ["resp_c", "resp_b", "resp_e", "resp_a", "resp_d", None]


def test_of_turns_that_ended_at_once_the_last_response_is_attached_to_first(store):
    for name in "ab":
        commit(store, accept(store, name))
    assert [attach(store, "p2") for _ in "ab"] == ["resp_b", "resp_a"]


def test_the_response_that_was_being_written_is_attached_to_last(store, world):
    """Equal requests are open, and the process died while the response to one was written."""
    accepted = {name: accept(store, name) for name in "abcd"}
    for name in "ba":
        assert store.begin_answer(f"resp_{name}", "p1")
        world.pass_time(1)
    commit(store, accepted["a"])
    commit(store, accepted["c"])
    found = [attach(store, "p2") for _ in "abcde"]
    assert found == ["resp_d", "resp_c", "resp_b", "resp_a", None]
    # The retries wait now: nothing was written to them.
    assert not store.begin_answer("resp_a", "p1")
    cut(store, "a", "p2")
    assert [attach(store, "p3") for _ in "ab"] == ["resp_a", "resp_b"]


def test_what_was_cut_is_attached_to_before_what_may_have_been_written(store):
    for name in "ab":
        accept(store, name)
    assert attach(store, "p1") is None
    cut(store, "b")
    assert [attach(store, "p2") for _ in "ab"] == ["resp_b", "resp_a"]


@pytest.mark.parametrize(
    "other", [{"credential": "tok_2"}, {"path": "/v1/chat/completions"}, {"digest": "other"}]
)
def test_a_retry_does_not_attach_to_another_request(store, other):
    accept(store, "a", **other)
    cut(store, "a")
    assert attach(store) is None


def test_a_retry_without_a_key_does_not_attach_to_a_request_with_one(store):
    """Retries of that request have its key: this one is the retry of another request."""
    accept(store, "a", idempotency_key="k")
    cut(store, "a")
    assert attach(store) is None
    assert attach(store, "p2") is None


def test_a_retry_attaches_while_the_turn_runs_and_after_it(store):
    accepted = accept(store, "a")
    cut(store, "a")
    assert attach(store) == "resp_a"
    cut(store, "a")
    commit(store, accepted)
    assert store.attach_response("tok_1", PATH, "body", "p1").reply.text == "yo"


def test_a_response_that_was_written_in_full_is_never_attached_to(store):
    accept(store, "a")
    assert store.end_connection("resp_a", "p1", complete=True)
    assert attach(store) is None
    assert attach(store, "p2") is None


def test_only_the_last_connection_ends(store):
    accept(store, "a")
    cut(store, "a")
    assert attach(store, "p2") == "resp_a"
    assert not store.end_connection("resp_a", "p1", complete=True)
    assert store.get_response("resp_a").connection == "open"
    assert store.end_connection("resp_a", "p2", complete=True)
    assert not store.end_connection("resp_a", "p2", complete=False)
    assert store.get_response("resp_a").connection == "complete"


@pytest.mark.parametrize(("later", "found"), [(0, "resp_a"), (0.5, None)])
def test_a_retry_attaches_within_a_minute_of_the_cut(store, world, later, found):
    accept(store, "a")
    world.pass_time(1000)
    cut(store, "a")
    world.pass_time(RETRY_SECONDS + later)
    assert attach(store) == found


@pytest.mark.parametrize(("later", "found"), [(0, "resp_a"), (0.5, None)])
def test_a_retry_attaches_within_a_minute_of_the_last_sign_of_life(store, world, later, found):
    store.record_process("p1")
    accept(store, "a")
    world.pass_time(1000)
    store.record_process("p1")
    world.pass_time(RETRY_SECONDS + later)
    store.record_process("p2")
    assert attach(store, "p2") == found


@pytest.mark.parametrize(("later", "found"), [(0, "resp_a"), (0.5, None)])
def test_an_accepted_request_is_a_sign_of_life(store, world, later, found):
    store.record_process("p1")
    world.pass_time(4)
    accept(store, "a")
    world.pass_time(RETRY_SECONDS + later)
    assert attach(store, "p2") == found


def test_a_process_that_was_forgotten_died_long_ago(store, world):
    store.record_process("p1")
    accept(store, "a")
    world.pass_time(11 * RETRY_SECONDS)
    store.record_process("p2")
    assert attach(store, "p2") is None


def test_items_are_replaced(store):
    accept(store, "a")
    assert store.record_items("resp_a", [{"id": "1"}])
    assert store.record_items("resp_a", [{"id": "2"}, {"id": "3"}])
    assert store.get_response("resp_a").items == ({"id": "2"}, {"id": "3"})
    assert not store.record_items("resp_b", [])


def test_items_are_replaced_only_if_they_are_the_expected_ones(store):
    accept(store, "a")
    first, second = [{"index": 1, "item": {"text": 'é"', "at": 0.1}}], [{"block": 2}]
    assert not store.record_items("resp_a", first, before=second)
    assert store.record_items("resp_a", first, before=[])
    assert not store.record_items("resp_a", second, before=[])
    assert store.get_response("resp_a").items == (*first,)
    assert store.record_items("resp_a", second, before=store.get_response("resp_a").items)
    assert store.get_response("resp_a").items == (*second,)


def test_deleting_a_response_keeps_its_messages(store):
    commit(store, accepted := accept(store, "a"))
    assert store.delete_response("resp_a")
    assert not store.delete_response("resp_a")
    assert len(store.load(accepted.receipt.session_id).messages) == 2


def test_the_responses_of_a_session_without_messages_are_deleted_by_their_key(store):
    withdrawn = accept(store, "a")
    store.withdraw(KEY, withdrawn.receipt.inbox_id)
    accept(store, "b")
    other = accept(store, "c", key=f"{KEY}2")
    store.withdraw(f"{KEY}2", other.receipt.inbox_id)
    assert store.delete_responses(KEY) == 1
    assert [store.get_response(f"resp_{name}") is None for name in "abc"] == [True, False, False]
    assert store.delete_responses("agent:main:http:dm:ann:none") == 0


def test_the_responses_of_a_session_are_listed_by_their_key_and_path(store):
    for name in "ab":
        commit(store, accept(store, name))
    commit(store, accept(store, "c", path="/v1/chat/completions"))
    commit(store, accept(store, "d", key=f"{KEY}2"))
    accept(store, "e")
    found = store.list_responses(KEY, PATH)
    assert found == [store.get_response("resp_a"), store.get_response("resp_b")]


def test_deleting_a_session_deletes_its_responses(store):
    accepted = accept(store, "a", idempotency_key="k")
    commit(store, accepted)
    accept(store, "b", key=f"{KEY}2")
    store.delete_session(accepted.receipt.session_id)
    assert store.get_response("resp_a") is None
    assert store.find_response("tok_1", "k") is None
    assert store.get_response("resp_b") is not None


def test_a_message_whose_session_was_deleted_is_still_answered(store):
    commit(store, accept(store, "a"))
    accepted = accept(store, "b")
    store.delete_session(accepted.receipt.session_id)
    assert store.get_response("resp_a") is None
    commit(store, accepted)
    found = store.get_response("resp_b")
    assert found.reply.text == "yo"
    assert found.session_id == found.reply.session_id != accepted.receipt.session_id


def test_a_response_belongs_to_the_session_of_its_turn(store):
    accepted = accept(store, "a")
    store.new_session(KEY)
    commit(store, accepted)
    found = store.get_response("resp_a")
    assert found.session_id == found.reply.session_id != accepted.receipt.session_id
    store.delete_session(found.session_id)
    assert store.get_response("resp_a") is None


def test_pruning_deletes_the_responses_of_old_sessions(store, world):
    commit(store, accept(store, "a"))
    store.new_session(KEY)
    commit(store, accept(store, "b"))
    world.pass_time(2 * 86400)
    store.prune_sessions(older_than_days=1)
    assert store.get_response("resp_a") is None
    assert store.get_response("resp_b") is not None


def test_a_response_lives_longer_than_its_receipt(store, world, sql):
    commit(store, accept(store, "a"))
    world.pass_time(60 * 86400)
    store.forget_closed()
    assert sql("SELECT count(*) FROM inbox") == [[0]]
    assert store.get_response("resp_a").reply.text == "yo"


def test_a_later_message_never_gets_the_response_of_a_forgotten_one(store, world):
    commit(store, first := accept(store, "a"))
    world.pass_time(60 * 86400)
    store.forget_closed()
    second = accept(store, "b", digest="b")
    assert second.receipt.inbox_id != first.receipt.inbox_id
    assert store.response_to(second.receipt.inbox_id).id == "resp_b"


def test_responses_are_not_exported(store):
    """An export is a transcript, without what belongs to the server that wrote it."""
    commit(store, accepted := accept(store, "a", idempotency_key="k"))
    lines = list(store.export_lines(accepted.receipt.session_id))
    assert not [line for line in lines if "resp_" in line]
    with quick_folder() as folder, SessionStore(folder / "other.db") as other:
        other.import_sessions(lines)
        assert len(other.load(accepted.receipt.session_id).messages) == 2
        ask = functools.partial(other.snapshot, lambda tx: tx.all("SELECT id FROM responses"))
        assert ask() == []
