"""Conversations as clients of the API see them: lists, states and usage."""

from __future__ import annotations

import pytest

from hermes.messages import Inbound, KnownRows, Message, Source, TurnCommit, Usage


def accept(store, key, text="hello", event_id=None):
    source = Source(platform="http", user_id="tok")
    return store.accept(Inbound(key, event_id or f"{key}:{text}", text, source)).receipt


def answer(store, key, text="hello"):
    receipt = accept(store, key, text)
    rows = [Message("user", text), Message("assistant", f"re: {text}")]
    commit = TurnCommit(
        session_key=key, session_id=receipt.session_id, epoch=receipt.epoch,
        revision=store.head(receipt.session_id).revision, inbox_ids=[receipt.inbox_id], rows=rows,
        usage=[Usage(model="m", input_tokens=1, cost=0.25), Usage(model="n", output_tokens=2)],
    )  # fmt: skip
    store.commit_turn(commit)
    return receipt


def keys(store, **filters):
    return [each.session_key for each in store.list_conversations(**filters)]


def test_conversations_are_found_by_the_beginning_of_their_key(store, world):
    for key in ("a:1", "a:2", "ab:1", "b:1"):
        answer(store, key)
        world.pass_time(1)
    assert keys(store) == ["b:1", "ab:1", "a:2", "a:1"]
    assert keys(store, prefixes=["a:"]) == ["a:2", "a:1"]
    assert keys(store, prefixes=["a:", "b:"]) == ["b:1", "a:2", "a:1"]
    assert keys(store, prefixes=[]) == []
    assert keys(store, keys=["b:1", "x"]) == ["b:1"]


def test_pages_of_conversations_have_each_once(store):
    for number in range(7):  # all at the same time
        answer(store, f"a:{number}")
    seen, before = [], None
    while page := store.list_conversations(before=before, limit=3):
        seen += [each.session_key for each in page]
        before = page[-1].last_active, page[-1].session_key
    assert seen == [f"a:{number}" for number in reversed(range(7))]


def test_an_entry_has_its_title_preview_and_open_messages(store):
    answer(store, "a:1", "the first words")
    accept(store, "a:1", "waits")
    store.set_title("a:1", "Birds")
    [entry] = store.list_conversations(title_contains="bird")
    assert (entry.title, entry.preview, entry.waiting) == ("Birds", "the first words", 1)
    assert (entry.message_count, entry.cost, entry.archived) == (2, 0.25, False)
    assert store.list_conversations(title_contains="fish") == []


def test_a_conversation_without_messages_is_listed_with_a_title_or_settings(store):
    store.set_title("a:1", "Birds")
    store.configure("a:2", model="m")
    store.configure("a:3", model=None)
    assert sorted(keys(store)) == ["a:1", "a:2"]


def test_archived_conversations_are_listed_if_asked_for(store):
    receipt = answer(store, "a:1")
    store.archive_session(receipt.session_id)
    assert keys(store) == []
    assert keys(store, archived=True) == keys(store, archived=None) == ["a:1"]


def test_a_view_has_what_the_reader_does_not_know(store):
    receipt = answer(store, "a:1", "one")
    first = store.get_view("a:1")
    assert [row.content for row in first.rows] == ["one", "re: one"]
    known = KnownRows(receipt.session_id, first.head.rewrites, first.rows[-1].id)
    answer(store, "a:1", "two")
    new = store.get_view("a:1", known=known)
    assert ([row.content for row in new.rows], new.appended) == (["two", "re: two"], True)
    store.rewind(receipt.session_id, new.rows[0].id)
    undone = store.get_view("a:1", known=known)
    assert ([row.content for row in undone.rows], undone.appended) == (["one", "re: one"], False)


def test_a_view_has_the_latest_rows_only(store):
    answer(store, "a:1", "one")
    view = store.get_view("a:1", limit=1)
    assert ([row.content for row in view.rows], view.earlier) == (["re: one"], True)
    assert not store.get_view("a:1", limit=2).earlier
    assert store.get_view("a:2").session_id is None


@pytest.mark.parametrize(
    "change",
    [
        lambda store: answer(store, "a:1", "two"),
        lambda store: accept(store, "a:1", "waits"),
        lambda store: store.set_title("a:1", "Birds"),
        lambda store: store.configure("a:1", model="m"),
        lambda store: store.new_session("a:1"),
        lambda store: store.rewind(*first_row(store)),
        lambda store: store.archive_session(first_row(store)[0]),
        lambda store: store.ask_approval("a:1", "order", "{}"),
        lambda store: store.delete_session(first_row(store)[0]),
    ],
)
def test_the_stamp_of_a_conversation_changes_with_its_state(store, change):
    answer(store, "a:1")
    before = store.conversation_stamps(["a:1", "b:1"])
    assert before == store.conversation_stamps(["a:1"]) == {"a:1": store.get_view("a:1").stamp}
    change(store)
    assert store.conversation_stamps(["a:1"]) != before


def first_row(store):
    view = store.get_view("a:1")
    return view.session_id, view.rows[0].id


def test_usage_is_added_up_by_turn(store):
    first, second = answer(store, "a:1", "one"), answer(store, "a:1", "two")
    used = store.usage_by_turn("a:1")
    assert [turn.turn_id for turn in used] == [second.inbox_id, first.inbox_id]
    assert (used[0].calls, used[0].models, used[0].unpriced) == (2, ("m", "n"), 1)
    assert (used[0].input_tokens, used[0].output_tokens, used[0].cost) == (1, 2, 0.25)
    assert [turn.turn_id for turn in store.usage_by_turn("a:1", limit=1)] == [second.inbox_id]
    assert store.usage_by_turn("b:1") == []


def test_a_branch_has_what_precedes_a_message(store):
    receipt = answer(store, "a:1", "one")
    answer(store, "a:1", "two")
    rows = store.get_view("a:1").rows
    child = store.branch(receipt.session_id, session_key="b:1", before=rows[2].id)
    assert [row.content for row in store.load(child).messages] == ["one", "re: one"]
    assert store.get_view("b:1").session_id == child
    with pytest.raises(ValueError, match="no message 1"):
        store.branch(receipt.session_id, before=1)


def test_a_search_is_limited_to_the_beginnings_of_keys(store):
    for key in ("a:1", "ab:1"):
        answer(store, key, f"heron {key}")
    found = {hit.session_id for hit in store.search_messages("heron", key_prefixes=["a:"])}
    assert found == {store.get_view("a:1").session_id}
    shared = store.get_view("ab:1").session_id
    store.switch("a:2", shared, any_key=True)
    found = {hit.session_id for hit in store.search_messages("heron", key_prefixes=["a:"])}
    assert found == {store.get_view("a:1").session_id, shared}
    assert store.search_messages("heron", key_prefixes=[]) == []
