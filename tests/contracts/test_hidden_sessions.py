"""Sessions of subagents and archived ones: hidden from lists; the former go with their parent."""

from __future__ import annotations

import pytest

from hermes.errors import UnknownSession
from hermes.messages import Message
from hermes.store import Rotation

DAY = 86400


def start(store, session_id, *texts, **fields):
    store.create_session(session_id, "tui", **fields)
    for text in texts:
        store.append_message(session_id, "user", text)


def subagent(store, session_id, parent, *texts):
    start(store, session_id, *texts, parent_session_id=parent, kind="subagent")


def rotate(store, session_id, child_id):
    transcript = store.load(session_id)
    rotation = Rotation(
        session_id=session_id,
        messages=[Message("user", "summary")],
        rotation_id=f"to {child_id}",
        rewrites=transcript.head.rewrites,
        upto=transcript.messages[-1].id if transcript.messages else 0,
        child_session_id=child_id,
    )
    assert store.rotate(rotation).session_id == child_id


def ids(store, **filters):
    return {listed.session.id for listed in store.list_sessions(**filters)}


def kinds(store, **filters):
    found = store.list_sessions(include_subagents=True, include_archived=True)
    return {each.session.id: each.session.kind for each in found}


# Subagents


def test_a_subagent_s_session_is_marked_and_listed_only_if_asked_for(store):
    start(store, "parent", "one")
    subagent(store, "sub", "parent", "two")
    session = store.get_session("sub")
    assert (session.kind, session.parent_session_id) == ("subagent", "parent")
    assert ids(store) == {"parent"}
    assert ids(store, include_archived=True) == {"parent"}
    assert ids(store, include_subagents=True) == {"parent", "sub"}


def test_a_subagent_may_be_without_a_parent(store):
    store.create_session("sub", "tui", kind="subagent")
    assert store.get_session("sub").kind == "subagent"
    assert ids(store) == set()


def test_a_compressed_subagent_stays_hidden(store):
    start(store, "parent", "one")
    subagent(store, "sub", "parent", "two")
    rotate(store, "sub", "sub-2")
    assert ids(store) == {"parent"}
    assert kinds(store) == {"parent": "new", "sub-2": "compression"}
    assert store.get_compression_lineage("sub") == ["sub", "sub-2"]


def test_a_subagent_of_a_compressed_session_does_not_continue_it(store):
    start(store, "parent", "one")
    store.end_session("parent", "compression")
    subagent(store, "sub", "parent", "two")
    assert store.get_compression_tip("parent") == "parent"


def test_search_finds_a_subagent_s_messages_and_says_so(store):
    start(store, "parent", "the heron")
    subagent(store, "sub", "parent", "a heron")
    hits = {hit.session_id: hit.subagent for hit in store.search_messages("heron")}
    assert hits == {"parent": False, "sub": True}


def family(store):
    """A parent with a subagent that was compressed and has a subagent of its own, and others."""
    start(store, "parent", "p1", "p2")
    subagent(store, "sub", "parent", "s1")
    rotate(store, "sub", "sub-2")
    subagent(store, "nested", "sub-2", "n1", "n2")
    start(store, "branch", "b1", parent_session_id="parent", kind="branch")
    start(store, "branch-of-sub", "b2", parent_session_id="sub", kind="branch")
    start(store, "other", "o1")
    subagent(store, "sub-of-other", "other", "o2")


def everything(store, sql):
    return {row[0] for row in sql("SELECT id FROM sessions")}


def test_subagents_are_deleted_with_their_parent(store, sql):
    family(store)
    assert store.delete_session("parent") == 2 + 1 + 1 + 2
    assert everything(store, sql) == {"branch", "branch-of-sub", "other", "sub-of-other"}
    assert store.search_messages("n1 OR s1") == []
    assert store.get_session("branch").parent_session_id is None
    assert store.integrity_check() == []
    assert store.check_search() is None


def test_deleting_a_subagent_leaves_its_parent_and_its_continuation(store, sql):
    family(store)
    assert store.delete_session("sub") == 1
    assert everything(store, sql) >= {"parent", "sub-2", "nested"}
    assert ids(store) == {"parent", "branch", "branch-of-sub", "other"}


def test_a_prune_deletes_subagents_with_their_parent(store, world, sql):
    family(store)
    store.end_session("parent", "closed")
    world.pass_time(91 * DAY)
    preview = store.prune_sessions(dry_run=True)
    pruned = store.prune_sessions()
    assert preview.session_ids == pruned.session_ids
    assert preview.messages == pruned.messages == 2 + 1 + 1 + 2
    assert set(pruned.session_ids) == {"parent", "sub", "sub-2", "nested"}
    assert everything(store, sql) == {"branch", "branch-of-sub", "other", "sub-of-other"}


def test_a_prune_keeps_a_subagent_whose_continuation_is_open(store, world, sql):
    family(store)  # `sub` has ended by compression, and its parent is open
    world.pass_time(91 * DAY)
    assert store.prune_sessions().session_ids == ()
    store.end_session("sub-2", "done")
    world.pass_time(91 * DAY)
    assert set(store.prune_sessions().session_ids) == {"sub", "sub-2", "nested"}
    assert "parent" in everything(store, sql)


def say(store, session_id):
    store.append_message(session_id, "user", "said today")


def use(store, session_id):
    store.switch("key", session_id, any_key=True)


def end(store, session_id):
    store.end_session(session_id, "done")


@pytest.mark.parametrize("needed", [say, use, end])
@pytest.mark.parametrize("which", ["sub-2", "nested"])
def test_a_prune_keeps_a_conversation_with_a_subagent_that_is_needed(
    store, world, sql, needed, which
):
    family(store)
    start(store, "done", "d1")
    for each in ("parent", "done"):
        store.end_session(each, "closed")
    world.pass_time(91 * DAY)
    needed(store, which)
    before = everything(store, sql)
    assert store.prune_sessions(dry_run=True).session_ids == ("done",)
    assert store.prune_sessions().session_ids == ("done",)
    assert everything(store, sql) == before - {"done"}
    assert store.get_session("sub").parent_session_id == "parent"


def test_a_prune_deletes_a_conversation_once_its_subagents_are_no_longer_needed(store, world, sql):
    family(store)
    store.end_session("parent", "closed")
    world.pass_time(91 * DAY)
    say(store, "nested")
    use(store, "nested")
    world.pass_time(91 * DAY)
    assert store.prune_sessions().session_ids == ()
    store.switch("key", "other", any_key=True)
    assert set(store.prune_sessions().session_ids) == {"parent", "sub", "sub-2", "nested"}


def test_a_subagent_that_no_model_answered_is_no_orphaned_continuation(store, world):
    start(store, "parent", "one")
    store.end_session("parent", "compression")
    subagent(store, "sub", "parent", "two")
    world.pass_time(9 * DAY)
    assert store.finalize_orphaned_compression_sessions() == 0
    assert store.get_session("sub").ended_at is None


def test_an_empty_session_with_a_subagent_is_no_ghost(store, world):
    start(store, "parent")
    store.end_session("parent", "tui_close")
    subagent(store, "sub", "parent", "two")
    world.pass_time(2 * DAY)
    assert store.prune_empty_ghost_sessions() == 0
    assert store.get_session("sub") is not None


# Archived conversations


def test_an_archived_conversation_is_listed_only_if_asked_for(store, world):
    start(store, "a", "the heron")
    start(store, "b", "two")
    store.archive_session("a")
    assert store.get_session("a").archived_at == world.now
    assert ids(store) == {"b"}
    assert ids(store, include_subagents=True) == {"b"}
    assert ids(store, include_archived=True) == {"a", "b"}
    assert [hit.session_id for hit in store.search_messages("heron")] == ["a"]
    store.unarchive_session("a")
    assert store.get_session("a").archived_at is None
    assert ids(store) == {"a", "b"}


@pytest.mark.parametrize("named", ["a", "b", "c"])
def test_a_whole_lineage_is_archived_and_later_sessions_of_it_too(store, named):
    start(store, "a", "one")
    rotate(store, "a", "b")
    rotate(store, "b", "c")
    store.archive_session(named)
    assert all(store.get_session(each).archived_at is not None for each in "abc")
    rotate(store, "c", "d")
    assert ids(store) == set()
    store.unarchive_session(named)
    assert ids(store) == {"d"}


def test_an_archived_session_is_neither_ended_nor_deleted(store, world):
    start(store, "a", "one")
    store.archive_session("a")
    world.pass_time(200 * DAY)
    assert store.prune_sessions().session_ids == ()
    assert store.append_message("a", "user", "two").head.message_count == 2


def test_an_archived_session_that_is_due_is_pruned_like_any_other(store, world):
    start(store, "a", "one")
    store.archive_session("a")
    store.end_session("a", "closed")
    world.pass_time(91 * DAY)
    assert store.prune_sessions().session_ids == ("a",)


@pytest.mark.parametrize("verb", ["archive_session", "unarchive_session"])
def test_only_a_session_of_the_key_is_archived_if_a_key_is_given(store, sql, verb):
    start(store, "own", "one", session_key="k")
    start(store, "foreign", "two", session_key="other")
    start(store, "shared", "three", session_key="other")
    sql(
        "INSERT INTO shared_sessions (session_key, session_no) "
        "SELECT 'k', no FROM sessions WHERE id = 'shared'"
    )
    for session_id in ("own", "shared"):
        getattr(store, verb)(session_id, session_key="k")
    for session_id in ("foreign", "nobody"):
        with pytest.raises(UnknownSession):
            getattr(store, verb)(session_id, session_key="k")
    assert store.get_session("foreign").archived_at is None


# Exports


def test_both_marks_survive_an_export(store, sql):
    family(store)
    store.archive_session("other")
    lines = [store.export_session(row[0]) for row in sql("SELECT id FROM sessions ORDER BY no")]
    before = kinds(store)
    archived_at = store.get_session("other").archived_at
    for session_id in everything(store, sql):
        store.delete_session(session_id)
    assert store.import_sessions(reversed(lines)).sessions == len(lines)
    assert kinds(store) == before
    assert store.get_session("other").archived_at == archived_at
    assert ids(store) == {"parent", "branch", "branch-of-sub"}
    assert store.delete_session("parent") == 2 + 1 + 1 + 2
