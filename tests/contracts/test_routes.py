"""Routes and the boundaries that moving them writes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hermes.store
from hermes.errors import AmbiguousTitle, UnknownSession
from hermes.messages import Inbound, Message, Title, TurnCommit
from hermes.store import Rotation


def say(store, key="k", event=None):
    """Commit one turn for the key; returns the session."""
    return commit(store, key, event).head.session_id


def commit(store, key="k", event=None):
    """Commit one turn for the key; returns the result."""
    accepted = store.accept(Inbound(key, event or f"{key}-event", "hi"))
    receipt = accepted.receipt
    return store.commit_turn(
        TurnCommit(
            session_key=key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=accepted.head.revision,
            inbox_ids=[receipt.inbox_id],
            rows=[Message("user", "hi")],
        )
    )


def boundaries_of(store):
    """All boundaries, delivered or not."""
    return store.snapshot(
        lambda tx: [
            (event.removeprefix("on_session_"), session_id, reason)
            for event, session_id, reason in tx.all(
                "SELECT event, session_id, reason FROM boundaries ORDER BY id"
            )
        ]
    )


def test_a_new_session_starts_after_the_old_one_is_finalized(store):
    old = say(store)
    before = store.get_route("k")
    route = store.new_session("k", title=" Fresh  start ")
    assert route.session_id != old
    assert route.epoch == before.epoch + 1
    assert route.pending_title == "Fresh start"
    assert boundaries_of(store) == [
        ("finalize", old, "session_reset"),
        ("reset", route.session_id, "session_reset"),
    ]
    assert store.get_session(old).end_reason == "session_reset"
    assert store.get_session(route.session_id) is None
    both = store.snapshot(
        lambda tx: tx.all("SELECT DISTINCT old_session_id, new_session_id FROM boundaries")
    )
    assert both == [(old, route.session_id)]


def test_a_new_session_of_an_unused_key_only_resets(store):
    route = store.new_session("k", platform="cli")
    assert boundaries_of(store) == [("reset", route.session_id, "session_reset")]
    assert route.platform == "cli"


def test_closing_finalizes_and_ends_the_current_session(store):
    old = say(store)
    store.rotate(
        Rotation(
            session_id=old,
            messages=[],
            rotation_id="r",
            rewrites=0,
            upto=0,
            session_key="k",
            epoch=1,
            child_session_id="child",
        )
    )
    assert store.close_session("k", reason="tui_close") == "child"
    assert store.get_session("child").end_reason == "tui_close"
    assert store.get_session(old).end_reason == "compression"
    assert boundaries_of(store) == [("finalize", "child", "tui_close")]
    assert store.get_route("k").session_id not in {old, "child"}
    assert store.close_session("nobody") is None


def test_closing_a_session_without_a_row_finalizes_it_too(store):
    named = store.accept(Inbound("k", "e", "hi")).receipt.session_id
    assert store.close_session("k") == named
    assert boundaries_of(store) == [("finalize", named, "closed")]


def test_a_shutdown_finalizes_and_ends_nothing(store):
    session_id = say(store)
    before = store.get_route("k")
    assert store.finalize("k") == session_id
    assert store.finalize("nobody") is None
    assert boundaries_of(store) == [("finalize", session_id, "shutdown")]
    assert store.get_session(session_id).ended_at is None
    assert store.get_route("k") == before


def test_a_switch_neither_ends_nor_finalizes_what_it_leaves(store):
    first = say(store)
    store.create_session("other", "tui", session_key="k")
    store.end_session("other", "user_exit")
    route = store.switch("k", "other")
    assert (route.session_id, route.epoch) == ("other", 2)
    assert store.get_session(first).ended_at is None
    assert store.get_session("other").ended_at is None
    assert boundaries_of(store) == [("switch", "other", "session_switch")]
    assert store.switch("k", "other") == route
    assert len(boundaries_of(store)) == 1


def test_a_switch_to_the_session_that_ended_here_opens_it_again(store):
    session_id = say(store)
    store.end_session(session_id, "user_exit")
    assert store.switch("k", session_id).session_id == session_id
    assert store.accept(Inbound("k", "next", "hi")).receipt.session_id == session_id


def test_an_exact_title_takes_precedence_over_a_prefix_of_an_id(store):
    for session_id in ("abc-1", "other"):
        store.create_session(session_id, "x", session_key="k")
    store.set_session_title("other", "abc")
    assert store.switch("k", "abc").session_id == "other"
    assert store.switch("k", "abc-").session_id == "abc-1"


# The sessions of a key


def test_a_key_cannot_reach_the_sessions_of_another(store):
    theirs = store.create_session("secret-1", session_key="theirs")
    store.set_session_title(theirs, "Secret plans")
    store.create_session("unowned", "tui")
    say(store)
    before = store.get_route("k")
    for target in (theirs, "secret", "Secret plans", "unowned", "nothing"):
        with pytest.raises(UnknownSession) as refused:
            store.switch("k", target)
        assert str(refused.value) == f"there is no session {target!r}"
        assert store.find(target, session_key="k") is None
    assert store.get_route("k") == before
    assert store.list_sessions(session_key="k")[0].session.id == before.session_id


def test_an_operator_shares_a_session_with_another_key(store):
    theirs = say(store, "theirs")
    store.set_session_title(theirs, "Plans")
    own = say(store)
    assert store.switch("k", "Plans", any_key=True).session_id == theirs
    store.switch("k", own)
    assert store.switch("k", "Plans").session_id == theirs
    assert store.find(theirs, session_key="k").session_keys == ("k", "theirs")
    listed = [each.session.id for each in store.list_sessions(session_key="k")]
    assert sorted(listed) == sorted([own, theirs])
    assert len(store.search_messages("hi", session_key="k")) == 2
    assert [each.session.id for each in store.list_sessions(session_key="theirs")] == [theirs]
    assert len(store.search_messages("hi", session_key="theirs")) == 1


def compress(store, session_id, child):
    rotation = Rotation(
        session_id=session_id, messages=[], rotation_id=child, rewrites=0, upto=0,
        child_session_id=child,
    )  # fmt: skip
    store.rotate(rotation)


@pytest.mark.parametrize("how", ["rotation", "verbs of hermes-agent"])
def test_a_shared_session_stays_shared_after_a_compression(store, how):
    theirs = say(store, "theirs")
    store.switch("k", theirs, any_key=True)
    if how == "rotation":
        compress(store, theirs, "child")
    else:
        store.end_session(theirs, "compression")
        store.create_session("child", parent_session_id=theirs)
    own = store.new_session("k").session_id
    for key in ("k", "theirs"):
        assert store.switch(key, "child").session_id == "child"
        assert store.switch(key, theirs).session_id == "child"
        [listed] = store.list_sessions(session_key=key)
        assert listed.session.id == "child" != own


@pytest.mark.parametrize("how", ["new", "existing", "imported"])
def test_a_continuation_with_another_key_belongs_to_the_key_of_its_parent_too(store, how):
    theirs = say(store, "theirs")
    store.archive_session(theirs)
    store.end_session(theirs, "compression")
    if how == "existing":
        store.create_session("child", session_key="k")
    if how == "imported":
        store.create_session("child", parent_session_id=theirs, session_key="k")
        exported = store.export_session("child")
        store.delete_session("child")
        store.import_sessions([exported])
    else:
        store.create_session("child", parent_session_id=theirs, session_key="k")
    store.append_message("child", "user", "on")
    assert store.follow_route("theirs")[0].session_id == "child"
    for key in ("k", "theirs"):
        assert store.resolve_session_id("child", session_key=key) == "child"
        assert store.switch(key, "child").session_id == "child"
    assert store.get_session("child").archived_at is not None


def test_sharing_a_compressed_session_shares_its_whole_lineage(store):
    theirs = say(store, "theirs")
    compress(store, theirs, "child")
    store.switch("k", "child", any_key=True)
    store.new_session("k")
    assert store.switch("k", theirs).session_id == "child"


def test_a_key_reaches_its_own_title_before_a_shared_one(store):
    theirs = say(store, "theirs")
    store.set_session_title(theirs, "Plans")
    own = say(store)
    store.set_session_title(own, "Plans")
    store.switch("k", theirs, any_key=True)
    assert store.switch("k", "Plans").session_id == own
    assert store.switch("k", "Plans", any_key=True).session_id == own


def test_an_ambiguous_title_moves_nothing(store):
    for key in ("k1", "k2"):
        store.set_session_title(say(store, key), "Plans")
    with pytest.raises(AmbiguousTitle, match="key k1"):
        store.switch("k", "Plans", any_key=True)
    assert store.get_route("k") is None


def test_deleting_a_shared_session_forgets_who_shared_it(store):
    theirs = say(store, "theirs")
    store.switch("k", theirs, any_key=True)
    store.delete_session(theirs)
    assert store.snapshot(lambda tx: tx.all("SELECT * FROM shared_sessions")) == []


# Titles of conversations


def test_a_pending_title_is_given_to_the_session_in_the_transaction_of_its_first_turn(store):
    store.set_pending_title("k", "Mine")
    assert store.apply_pending_title("k") is None  # no row yet: the title stays pending
    assert store.get_title("k") == Title("Mine", pending=True)
    assert commit(store).title == "Mine"
    session_id = store.get_route("k").session_id
    assert store.get_session(session_id).title == "Mine"
    assert store.get_title("k") == Title("Mine")
    assert store.get_route("k").pending_title is None
    assert commit(store, event="next").title is None
    assert store.apply_pending_title("k") is None
    assert store.apply_pending_title("nobody") is None


def test_a_pending_title_that_is_taken_meanwhile_gets_a_number(store):
    store.set_pending_title("k", "Mine")
    store.create_session("holder", "tui", session_key="k")
    store.set_session_title("holder", "Mine")
    assert commit(store).title == "Mine #2"
    assert store.get_title("k") == Title("Mine #2")
    assert store.get_session("holder").title == "Mine"


def test_a_title_in_use_is_refused_before_the_first_message(store):
    session_id = say(store)
    store.set_session_title(session_id, "Mine")
    before = store.get_route("k")
    taken = f"Title 'Mine' is already in use by session {session_id}"
    with pytest.raises(ValueError, match=taken):
        store.new_session("k", title=" Mine ")
    assert store.get_route("k") == before
    fresh = store.new_session("k")
    for ask in (store.set_title, store.set_pending_title):
        with pytest.raises(ValueError, match=taken):
            ask("k", "Mine")
    assert store.get_route("k") == fresh
    assert store.new_session("other", title="Mine").pending_title == "Mine"


def test_the_title_of_a_conversation_is_that_of_the_tip(store):
    session_id = say(store)
    assert store.set_title("k", " Mine ") == (session_id, Title("Mine"))
    compress(store, session_id, "child")
    before = store.get_route("k")
    assert store.get_title("k") == Title("Mine #2")
    assert store.set_title("k", "Mine") == ("child", Title("Mine"))
    assert store.get_session(session_id).title is None
    assert store.get_route("k") == before, "a running turn must not be discarded for a title"
    assert store.set_title("k", None) == ("child", Title(None))


def test_setting_a_title_replaces_a_pending_one(store):
    session_id = say(store)
    store.set_pending_title("k", "Pending")
    assert store.set_title("k", "Mine") == (session_id, Title("Mine"))
    assert store.get_title("k") == Title("Mine")
    assert store.get_title("nobody") == Title(None)
    assert store.set_title("new", "First")[1] == Title("First", pending=True)


def test_a_pending_title_goes_to_the_tip_after_a_rotation(store):
    session_id = say(store)
    store.set_pending_title("k", "Mine")
    store.rotate(
        Rotation(
            session_id=session_id,
            messages=[],
            rotation_id="r",
            rewrites=0,
            upto=0,
            child_session_id="child",
        )
    )
    assert store.apply_pending_title("k") == "Mine"
    assert store.get_session("child").title == "Mine"


def test_a_pending_title_must_be_valid(store):
    with pytest.raises(ValueError, match="too long"):
        store.set_pending_title("k", "x" * 101)
    with pytest.raises(ValueError, match="too long"):
        store.new_session("k", title="x" * 101)
    assert store.get_route("k") is None


def test_a_route_and_its_head_come_from_one_snapshot(store):
    assert store.route_head("k") is None
    assert store.follow_route("k") is None
    session_id = say(store)
    route, head = store.route_head("k")
    assert (route.session_id, head.session_id, head.message_count) == (session_id, session_id, 1)
    assert store.follow_route("k") == (route, head)


def test_the_head_is_that_of_the_tip_and_the_route_follows_when_asked(store):
    session_id = say(store)
    compress(store, session_id, "child")
    route, head = store.route_head("k")
    assert (route.session_id, head.session_id) == (session_id, "child")
    assert store.get_route("k") == route, "a read does not move the route"
    moved, head = store.follow_route("k")
    assert (moved.session_id, moved.epoch, head.session_id) == ("child", route.epoch + 1, "child")
    assert store.find("child").session_keys == ("k",)


def test_a_conversation_is_found_with_its_key_before_the_route_has_followed(store):
    session_id = say(store)
    compress(store, session_id, "child")
    assert store.find(session_id).session_keys == ("k",)


def test_switching_to_the_tip_of_the_current_session_is_no_switch(store):
    session_id = say(store)
    compress(store, session_id, "child")
    assert store.switch("k", session_id).session_id == "child"
    assert boundaries_of(store) == []


def test_a_delivered_boundary_is_closed_once(store):
    store.new_session("k")
    [boundary] = store.pending_boundaries()
    assert store.close_boundary(boundary.boundary_id, "boom") is True
    assert store.close_boundary(boundary.boundary_id) is False
    assert store.pending_boundaries() == []


def test_only_one_function_writes_the_session_id_of_a_route():
    """Every SQL text in the store that writes `routes.session_id` is in `routes.assign_session`."""
    writers = []
    for file in Path(hermes.store.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = " ".join(node.value.split())
                    if "INSERT INTO routes" in text or (
                        "UPDATE routes" in text and "session_id =" in text
                    ):
                        writers.append(f"{file.stem}.{function.name}")
    assert writers == ["routes.assign_session"]


def test_a_conversation_is_found_at_its_tip_by_each_of_its_names(store):
    parent = say(store)
    store.set_session_title(parent, "Plans")
    head = store.head(parent)
    rotation = Rotation(
        session_id=parent,
        messages=[Message("user", "summed up")],
        rotation_id="r",
        rewrites=head.rewrites,
        upto=0,
        session_key="k",
        epoch=store.get_route("k").epoch,
    )
    tip = store.rotate(rotation).session_id
    for name in (parent, tip, "Plans"):
        found = store.find(name)
        assert (found.session_id, found.session.id) == (tip, tip)
        assert (found.lineage, found.session_keys) == ((parent, tip), ("k",))
    assert store.find("nothing") is None


def test_a_conversation_without_a_row_is_found_by_its_full_id(store):
    receipt = store.accept(Inbound("k", "e", "hi")).receipt
    found = store.find(receipt.session_id)
    assert (found.session, found.lineage) == (None, (receipt.session_id,))
    assert found.session_keys == ("k",)
    assert store.find(receipt.session_id[:-1]) is None


def test_a_branch_belongs_to_the_key_whose_route_names_it(store):
    session_id = say(store)
    child = store.branch(session_id, session_key="other")
    assert store.get_session(child).session_key == "other"
    assert store.find(child).session_keys == ("other",)
    unled = store.branch(session_id)
    assert store.get_session(unled).session_key == "k"


# Sessions that were left without a row


def test_a_session_without_a_row_is_found_after_its_key_has_left_it(store):
    first = store.new_session("k").session_id
    second = store.new_session("k").session_id
    store.switch("k", say(store, "other"), any_key=True)
    for session_id in (first, second):
        found = store.find(session_id)
        assert (found.session, found.lineage, found.session_keys) == (None, (session_id,), ("k",))
        assert store.find(session_id, session_key="k") == found
        assert store.find(session_id, session_key="other") is None


def test_a_session_that_was_deleted_is_not_found_after_its_key_has_left_it(store):
    left = store.new_session("k").session_id
    session_id = say(store)
    store.new_session("k")
    store.delete_session(session_id)
    assert store.find(session_id) is None
    store.new_session("k")
    store.create_session(left, "cli")
    store.delete_session(left)
    assert store.find(left) is None


def test_a_session_without_a_row_is_forgotten_like_a_receipt(store, world):
    first = store.new_session("k").session_id
    store.new_session("k")
    world.pass_time(29 * 86400)
    second = store.new_session("other").session_id
    store.new_session("other")
    store.forget_closed()
    assert store.find(first).session_keys == ("k",)
    world.pass_time(2 * 86400)
    store.forget_closed()
    assert store.find(first) is None
    assert store.find(second).session_keys == ("other",)
