"""Branches of conversations that API clients name, and messages that must follow another one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hermes.errors import HistoryChanged
from hermes.messages import ApiRequest, Inbound, Message, Reply, Source, TurnCommit

SOURCE = Source("http", "tok_1", "ann", user_id="tok_1")


def inbound(number, key="k", **options):
    request = ApiRequest(
        id=f"resp_{number}", credential="tok_1", path="/v1/x", digest="d", **options
    )  # fmt: skip
    return Inbound(key, request.id, f"text {number}", source=SOURCE, request=request)


def talk(store, number, key="k"):
    """Store a message and its answer; return the ids of both rows."""
    accepted = store.accept_request(inbound(number, key))
    receipt = accepted.receipt
    done = store.commit_turn(
        TurnCommit(
            session_key=key, session_id=receipt.session_id, epoch=receipt.epoch,
            revision=accepted.head.revision, inbox_ids=[receipt.inbox_id],
            rows=[Message("user", f"text {number}"), Message("assistant", f"answer {number}")],
            reply=Reply(text="", session_id="", turn_id=receipt.inbox_id),
        )
    )  # fmt: skip
    return [row.id for row in done.rows]


def texts(store, key):
    return [row.content for row in store.get_history(key)]


def test_a_branch_has_the_messages_up_to_one_and_those_of_the_client(store):
    first, _ = talk(store, 1), talk(store, 2)
    last = store.open_branch("b", SOURCE, [Message("user", "new")], upto=first[1])
    assert texts(store, "b") == ["text 1", "answer 1", "new"]
    assert store.get_history("b")[-1].id == last
    assert texts(store, "k") == ["text 1", "answer 1", "text 2", "answer 2"]
    parent, child = (store.get_route(key).session_id for key in ("k", "b"))
    session = store.get_session(child)
    assert (session.kind, session.parent_session_id, session.session_key) == ("branch", parent, "b")


def test_a_branch_may_begin_before_the_first_message(store):
    talk(store, 1)
    assert store.open_branch("b", SOURCE, of="k") == 0
    assert texts(store, "b") == []
    session = store.get_session(store.get_route("b").session_id)
    assert session.parent_session_id == store.get_route("k").session_id


def test_a_conversation_may_begin_with_messages_of_the_client(store):
    store.open_branch("k", SOURCE, [Message("user", "a"), Message("assistant", "b")])
    assert texts(store, "k") == ["a", "b"]
    session = store.get_session(store.get_route("k").session_id)
    assert (session.kind, session.parent_session_id) == ("new", None)
    talk(store, 1)
    assert texts(store, "k") == ["a", "b", "text 1", "answer 1"]


def test_a_branch_has_the_title_of_its_origin_with_a_number(store):
    first = talk(store, 1)
    store.set_title("k", "Plums")
    store.open_branch("b", SOURCE, upto=first[1])
    assert store.get_title("b").text == "Plums #2"


def test_a_conversation_with_messages_is_no_branch(store):
    ids = talk(store, 1)
    with pytest.raises(HistoryChanged):
        store.open_branch("k", SOURCE, upto=ids[1])
    store.accept_request(inbound(2, "b"))
    with pytest.raises(HistoryChanged):
        store.open_branch("b", SOURCE, upto=ids[1])
    assert texts(store, "k") == ["text 1", "answer 1"]


def test_branches_are_found_by_the_beginning_of_their_keys(store, world):
    for key in ("k", "k%1Fa", "k%1Fb", "kx", "j"):
        world.pass_time(1)
        talk(store, key, key)
    assert store.list_branches("k%1F") == ["k%1Fb", "k%1Fa"]
    assert store.list_branches("k%1F", 1) == ["k%1Fb"]


def test_a_message_is_accepted_only_after_the_one_that_it_follows(store):
    with pytest.raises(HistoryChanged):
        store.accept_request(inbound(1, follows=7))
    assert store.open_inbox() == []
    accepted = store.accept_request(inbound(1, follows=0))
    assert store.accept_request(inbound(1, follows=0)).duplicate
    with pytest.raises(HistoryChanged):
        store.accept_request(inbound(2, follows=0))  # the first one waits
    store.withdraw("k", accepted.receipt.inbox_id)
    ids = talk(store, 3)
    for wrong in (0, ids[0]):
        with pytest.raises(HistoryChanged):
            store.accept_request(inbound(4, follows=wrong))
    store.accept_request(inbound(4, follows=ids[1]))


def test_a_message_that_follows_nothing_in_particular_is_always_accepted(store):
    talk(store, 1)
    store.accept_request(inbound(2))
    store.accept_request(replace(inbound(3), text="x"))
    assert len(store.open_inbox("k")) == 2
