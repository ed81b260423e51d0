"""Maintenance: what is cleaned up, pruned and deleted, and what is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hermes.errors import StoreError
from hermes.messages import (
    Committed,
    Discarded,
    Inbound,
    Message,
    Outbound,
    Pruned,
    TurnCommit,
    Usage,
)
from hermes.store import Rotation, SessionStore
from hermes.store.maintenance import cleanup

DAY = 86_400.0


def compressed(store, session_id="parent"):
    """A session that ended by compression."""
    store.create_session(session_id, "tui", model="test")
    store.end_session(session_id, "compression")


def orphan(store, world, session_id="orphan", *, days=9, texts=("hello",), **fields):
    """A child of `parent` that started this many days ago."""
    fields.setdefault("parent_session_id", "parent")
    store.create_session(session_id, "tui", started_at=world.now - days * DAY, **fields)
    for text in texts:
        store.append_message(session_id, "user", text)


def rows_and_kinds(store):
    return {one.session.id: one.session.kind for one in store.list_sessions(limit=1000)}


def ends(store, *session_ids):
    """The end reason of each session, or that it was deleted."""
    found = [store.get_session(session_id) for session_id in session_ids]
    return ["gone" if session is None else session.end_reason for session in found]


# Unused continuations


def test_an_old_continuation_that_no_model_answered_is_ended(store, world):
    compressed(store)
    orphan(store, world, texts=("hello", "anybody?"))
    before = store.get_session("orphan")
    assert store.finalize_orphaned_compression_sessions() == 1
    assert store.get_session("orphan") == replace(
        before, ended_at=world.now, end_reason="orphaned_compression"
    )


def test_the_cost_of_its_summary_does_not_keep_a_continuation(store, world):
    compressed(store)
    orphan(store, world)
    store.book("orphan", [Usage("summary", "cheap", input_tokens=400, cost=0.5)])
    assert store.finalize_orphaned_compression_sessions() == 1


def test_a_second_run_finds_nothing_to_end(store, world):
    compressed(store)
    orphan(store, world)
    assert store.finalize_orphaned_compression_sessions() == 1
    ended = store.get_session("orphan")
    world.pass_time(DAY)
    assert store.finalize_orphaned_compression_sessions() == 0
    assert store.get_session("orphan") == ended


def test_a_session_without_a_parent_is_not_a_continuation(store, world):
    orphan(store, world, parent_session_id=None)
    assert store.finalize_orphaned_compression_sessions() == 0
    assert ends(store, "orphan") == [None]


@pytest.mark.parametrize("days", [0, 6.9, 7])
def test_a_continuation_of_this_week_is_left_open(store, world, days):
    compressed(store)
    orphan(store, world, days=days)
    assert store.finalize_orphaned_compression_sessions() == 0
    world.pass_time((7 - days) * DAY + 1)
    assert store.finalize_orphaned_compression_sessions() == 1


def test_a_continuation_that_ended_keeps_its_reason(store, world):
    compressed(store)
    orphan(store, world)
    store.end_session("orphan", "user_exit")
    assert store.finalize_orphaned_compression_sessions() == 0
    assert ends(store, "orphan") == ["user_exit"]


@pytest.mark.parametrize("reason", ["user_exit", "session_reset", None])
def test_a_child_of_a_session_that_was_not_compressed_is_left_alone(store, world, reason):
    store.create_session("parent", "tui")
    if reason is not None:
        store.end_session("parent", reason)
    orphan(store, world)
    assert store.finalize_orphaned_compression_sessions() == 0
    assert ends(store, "orphan") == [None]


def test_an_empty_continuation_is_left_to_the_cleanup_of_empty_sessions(store, world):
    compressed(store)
    orphan(store, world, texts=())
    assert store.finalize_orphaned_compression_sessions() == 0
    assert ends(store, "orphan") == [None]


def test_an_orphan_with_a_title_is_ended_too(store, world):
    compressed(store)
    store.set_session_title("parent", "Chat")
    orphan(store, world)
    store.set_session_title("orphan", "Chat (2)")
    assert store.finalize_orphaned_compression_sessions() == 1
    assert ends(store, "orphan") == ["orphaned_compression"]


def test_a_continuation_that_a_model_answered_is_left_alone(store, world):
    compressed(store)
    orphan(store, world)
    store.update_token_counts("orphan", Usage(input_tokens=1))
    assert store.finalize_orphaned_compression_sessions() == 0


def test_a_continuation_with_a_route_is_left_alone(store, world):
    compressed(store)
    orphan(store, world)
    store.switch("key", "orphan", any_key=True)
    assert store.finalize_orphaned_compression_sessions() == 0
    assert ends(store, "orphan") == [None]


def test_a_branch_of_a_compressed_session_is_left_alone(store, world):
    compressed(store)
    orphan(store, world, kind="branch")
    assert store.finalize_orphaned_compression_sessions() == 0
    assert ends(store, "orphan") == [None]


def test_all_orphans_are_ended_at_once(store, world):
    for number in range(5):
        compressed(store, f"p{number}")
        orphan(store, world, f"o{number}", parent_session_id=f"p{number}")
    assert store.finalize_orphaned_compression_sessions() == 5
    assert ends(store, *(f"o{n}" for n in range(5))) == ["orphaned_compression"] * 5


# Empty sessions of terminals


def ghost(store, world, session_id="ghost", *, source="tui", days=2.0, end="tui_close"):
    store.create_session(session_id, source, started_at=world.now - days * DAY)
    if end is not None:
        store.end_session(session_id, end)


def test_an_old_empty_terminal_session_is_deleted(store, world):
    ghost(store, world)
    assert store.prune_empty_ghost_sessions() == 1
    assert store.get_session("ghost") is None
    assert store.prune_empty_ghost_sessions() == 0


def test_a_terminal_session_that_is_open_is_kept(store, world):
    ghost(store, world, end=None)
    assert store.prune_empty_ghost_sessions() == 0


def test_an_empty_session_of_another_source_is_kept(store, world):
    ghost(store, world, source="telegram")
    assert store.prune_empty_ghost_sessions() == 0


@pytest.mark.parametrize("days", [0, 0.9, 1])
def test_an_empty_terminal_session_of_today_is_kept(store, world, days):
    ghost(store, world, days=days)
    assert store.prune_empty_ghost_sessions() == 0
    world.pass_time((1 - days) * DAY + 1)
    assert store.prune_empty_ghost_sessions() == 1


def test_a_terminal_session_with_a_title_is_kept(store, world):
    ghost(store, world)
    store.set_session_title("ghost", "Later")
    assert store.prune_empty_ghost_sessions() == 0


@pytest.mark.parametrize("rewound", [False, True])
def test_a_terminal_session_that_was_written_to_is_kept(store, world, rewound):
    ghost(store, world, end=None)
    said = store.append_message("ghost", "user", "hello")
    if rewound:
        store.rewind("ghost", said.message_id)
    store.end_session("ghost", "tui_close")
    assert store.prune_empty_ghost_sessions() == 0


def test_an_empty_terminal_session_with_a_route_is_kept(store, world):
    ghost(store, world, end=None)
    store.switch("key", "ghost", any_key=True)
    store.end_session("ghost", "tui_close")
    assert store.prune_empty_ghost_sessions() == 0
    assert store.get_route("key").session_id == "ghost"


# Deleting


@pytest.fixture
def talk(store):
    """A session `a` with four rows, one of them rewound."""
    store.create_session("a", "tui", system_prompt="be kind")
    for text in ("plum one", "plum two", "plum three"):
        last = store.append_message("a", "user", text)
    store.rewind("a", last.message_id)
    store.append_message("a", "assistant", "plum four")
    store.update_token_counts("a", Usage(input_tokens=1))
    return store


TABLES = {
    "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'meta' "
    "AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'search%' AND name NOT LIKE 'stems%'",
    "postgres": "SELECT tablename FROM pg_tables WHERE schemaname = 'public' "
    "AND tablename NOT IN ('meta', 'hermes_schema', 'writers')",
}


def rows_left(sql, engine):
    """Row counts of all non-empty tables, except those of the engine and its full-text index."""
    tables = sql(TABLES[engine])
    counts = [f"SELECT '{table}', count(*) FROM {table}" for [table] in tables]
    return {table: count for table, count in sql(" UNION ALL ".join(counts)) if count}


@pytest.mark.parametrize("indexed", [False, True])
def test_deleting_a_session_deletes_everything_that_belongs_to_it(talk, sql, engine, indexed):
    if indexed:
        assert len(talk.search_messages("plum")) == 3
    assert talk.try_acquire_compression_lock("a", "somebody")
    assert talk.delete_session("a") == 4
    assert talk.get_session("a") is None
    assert talk.list_sessions() == []
    assert talk.search_messages("plum") == []
    assert talk.get_usage("a") == []
    assert talk.get_compression_lock_holder("a") is None
    assert rows_left(sql, engine) == {}
    assert talk.check_search() is None
    assert talk.integrity_check() == []


def test_deleting_an_unknown_session_deletes_nothing(talk):
    assert talk.delete_session("nobody") == 0
    assert talk.get_session("a").message_count == 3


def test_the_id_of_a_deleted_session_may_be_used_again(talk):
    talk.delete_session("a")
    talk.create_session("a", "tui")
    assert talk.get_messages("a", include_rewound=True) == []


def test_children_survive_the_deletion_of_their_parent_and_start_their_own_lineages(talk):
    branch = talk.branch("a")
    head = talk.head("a")
    child = talk.rotate(
        Rotation(
            session_id="a",
            messages=[Message("user", "summary")],
            rotation_id="r",
            rewrites=head.rewrites,
            upto=talk.get_messages("a")[-1].id,
            child_session_id="b",
        )
    )
    assert child.session_id == "b"
    talk.delete_session("a")
    assert rows_and_kinds(talk) == {"b": "import", branch: "branch"}
    assert [talk.get_session(i).parent_session_id for i in ("b", branch)] == [None, None]
    assert talk.get_compression_lineage("b") == ["b"]
    assert [m.content for m in talk.get_messages("b")] == ["summary"]
    assert len(talk.get_messages(branch)) == 3
    assert talk.integrity_check() == []


def test_keys_of_a_deleted_session_start_a_new_one(talk):
    before = [talk.switch(key, "a", any_key=True) for key in ("k1", "k2")]
    talk.delete_session("a")
    after = [talk.get_route(key) for key in ("k1", "k2")]
    assert [route.epoch for route in after] == [route.epoch + 1 for route in before]
    assert len({"a", *(route.session_id for route in after)}) == 3
    accepted = talk.accept(Inbound("k1", "e1", "hello again"))
    assert accepted.receipt.session_id == after[0].session_id
    assert accepted.head.message_count == 0


def test_a_running_turn_is_discarded_if_its_session_is_deleted(talk):
    talk.switch("key", "a", any_key=True)
    accepted = talk.accept(Inbound("key", "e1", "hello"))
    talk.delete_session("a")
    outcome = talk.commit_turn(turn(accepted))
    route = talk.get_route("key")
    assert outcome == Discarded(
        "the conversation was moved to another session", route.session_id, route.epoch
    )
    assert talk.get_session("a") is None
    assert [row.inbox_id for row in talk.open_inbox()] == [accepted.receipt.inbox_id]


def turn(accepted, **fields):
    receipt = accepted.receipt
    return TurnCommit(
        session_key=receipt.session_key,
        session_id=receipt.session_id,
        epoch=receipt.epoch,
        revision=accepted.head.revision,
        inbox_ids=[receipt.inbox_id],
        rows=[Message("user", "hello"), Message("assistant", "hi")],
        **fields,
    )


# Pruning


def ended(store, world, session_id, days, *, source="tui", texts=("one", "two")):
    """A session that ended this many days ago."""
    now, world.now = world.now, world.now - days * DAY
    store.create_session(session_id, source)
    for text in texts:
        store.append_message(session_id, "user", text)
    store.end_session(session_id, "done")
    world.now = now


def test_only_sessions_that_ended_long_ago_are_pruned(store, world):
    ended(store, world, "old", 91)
    ended(store, world, "young", 89)
    ended(store, world, "routed", 91)
    store.create_session("open", "tui", started_at=world.now - 400 * DAY)
    store.switch("key", "routed", any_key=True)
    store.end_session("routed", "done")
    assert store.prune_sessions() == Pruned(("old",), 2, dry_run=False)
    assert sorted(rows_and_kinds(store)) == ["open", "routed", "young"]


def test_the_age_and_the_source_can_be_chosen(store, world):
    ended(store, world, "a", 20, source="tui")
    ended(store, world, "b", 20, source="telegram")
    ended(store, world, "c", 2, source="telegram")
    wanted = Pruned(("b",), 2, dry_run=False)
    assert store.prune_sessions(10, "telegram") == wanted
    assert store.prune_sessions(10, source="discord") == Pruned((), 0, dry_run=False)
    assert sorted(rows_and_kinds(store)) == ["a", "c"]


def test_a_dry_run_reports_what_the_prune_then_deletes(store, world):
    for number in range(45):
        ended(store, world, f"s{number}", 80 + number, texts=("word",) * (number % 3))
    before = rows_and_kinds(store)
    preview = store.prune_sessions(dry_run=True)
    assert preview == Pruned(
        tuple(f"s{n}" for n in range(11, 45)), sum(n % 3 for n in range(11, 45)), dry_run=True
    )
    assert rows_and_kinds(store) == before
    assert store.prune_sessions() == replace(preview, dry_run=False)
    assert sorted(rows_and_kinds(store)) == sorted(f"s{n}" for n in range(11))
    assert store.prune_sessions() == Pruned((), 0, dry_run=False)
    assert store.integrity_check() == []


def test_a_dry_run_counts_messages_as_the_prune_does(store, world):
    store.create_session("a", "tui")
    store.append_message("a", "user", "stays")
    taken = store.append_message("a", "user", "taken back")
    store.rewind("a", taken.message_id)
    store.end_session("a", "done")
    world.pass_time(100 * DAY)
    preview = store.prune_sessions(dry_run=True)
    assert replace(preview, dry_run=False) == store.prune_sessions()


def test_a_pruned_parent_leaves_its_children(store, world):
    ended(store, world, "p", 100)
    store.create_session("child", "tui", parent_session_id="p", kind="branch")
    store.prune_sessions()
    assert rows_and_kinds(store) == {"child": "branch"}


def lineage(store, world, *ages):
    """A conversation that was compressed: each session ended so many days ago, or is open (None).

    Returns the session ids.
    """
    now, ids = world.now, ["root"]
    world.now = now - 400 * DAY
    store.create_session("root", "tui")
    for number, age in enumerate(ages):
        head = store.append_message(ids[-1], "user", f"text {number}")
        if age is not None:
            world.now = now - age * DAY
        if number < len(ages) - 1:
            rotation = Rotation(
                session_id=ids[-1], messages=[], rotation_id=f"r{number}", rewrites=0,
                upto=head.message_id,
            )  # fmt: skip
            ids.append(store.rotate(rotation).session_id)
        elif age is not None:
            store.end_session(ids[-1], "done")
    world.now = now
    return ids


@pytest.mark.parametrize("ages", [(300, None), (300, 200, 10), (300, 200, None)])
def test_the_compressed_past_of_a_conversation_that_is_needed_is_kept(store, world, ages):
    ids = lineage(store, world, *ages)
    ended(store, world, "other", 100)
    assert store.prune_sessions(dry_run=True).session_ids == ("other",)
    assert store.prune_sessions().session_ids == ("other",)
    assert store.get_compression_lineage(ids[-1]) == ids
    assert [len(store.get_messages(each)) for each in ids] == [1] * len(ids)


def test_the_compressed_past_of_a_routed_session_is_kept(store, world):
    ids = lineage(store, world, 300, 200)
    store.switch("key", ids[-1], any_key=True)
    store.end_session(ids[-1], "done")
    world.pass_time(100 * DAY)
    assert store.prune_sessions().session_ids == ()


def test_an_old_lineage_is_pruned_as_a_whole(store, world):
    ids = lineage(store, world, 300, 200, 100)
    assert store.prune_sessions() == Pruned(tuple(ids), 3, dry_run=False)
    assert rows_and_kinds(store) == {}


def test_pruned_text_is_not_found_by_search(store, world):
    ended(store, world, "a", 100, texts=("plum", "plum 梅"))
    assert len(store.search_messages("plum")) == 2
    store.prune_sessions()
    assert store.search_messages("plum") == []
    assert store.check_search() is None


def test_a_prune_runs_in_bounded_steps(store, world):
    for number in range(45):
        store.create_session(f"s{number}", "tui")
        store.end_session(f"s{number}", "done")
    world.pass_time(100 * DAY)
    steps = cleanup.prune_sessions()
    sizes = []
    work = next(steps)
    while True:
        answer = store.transact(work)
        sizes.append(len(answer.session_ids))
        try:
            work = steps.send(answer)
        except StopIteration as stop:
            total = stop.value
            break
    assert sizes == [20, 20, 5, 0]
    assert len(total.session_ids) == 45


# Receipts


def test_receipts_are_deleted_after_thirty_days(store, world):
    accepted = store.accept(Inbound("key", "e1", "hello"))
    assert isinstance(store.commit_turn(turn(accepted)), Committed)
    world.pass_time(30 * DAY)
    assert store.forget_closed() == 0
    assert store.accept(Inbound("key", "e1", "hello")).duplicate
    world.pass_time(1)
    assert store.forget_closed() == 1
    assert not store.accept(Inbound("key", "e1", "hello")).duplicate


def test_open_messages_and_pending_replies_are_never_deleted(store, world):
    first = store.accept(Inbound("key", "e1", "hello"))
    replies = [Outbound("lane", {"text": "hi"})]
    store.commit_turn(turn(first, outbox=replies))
    second = store.accept(Inbound("key", "e2", "waits"))
    world.pass_time(365 * DAY)
    assert store.forget_closed() == 1
    assert [row.inbox_id for row in store.open_inbox()] == [second.receipt.inbox_id]
    assert [row.body for row in store.pending_outbox()] == [{"text": "hi"}]


def test_sent_replies_are_deleted_and_unsent_ones_are_not(store, world, sql):
    accepted = store.accept(Inbound("key", "e1", "hello"))
    replies = [Outbound("lane", {"n": n}) for n in range(4)]
    store.commit_turn(turn(accepted, outbox=replies))
    sent, dead, sending, _ = [row.outbox_id for row in store.pending_outbox()]
    store.mark_sent([sent])
    store.mark_dead([dead], "the chat is gone")
    store.mark_sending([sending])
    world.pass_time(31 * DAY)
    assert store.forget_closed() == 3
    assert sql("SELECT id, state FROM outbox ORDER BY id") == [
        [sending, "sending"],
        [sending + 1, "pending"],
    ]


def test_closed_boundaries_are_deleted_and_pending_ones_are_not(store, world, sql):
    store.new_session("key")
    store.new_session("key")
    first, *rest = [one.boundary_id for one in store.pending_boundaries()]
    store.close_boundary(first)
    world.pass_time(31 * DAY)
    assert store.forget_closed() == 1
    assert [one.boundary_id for one in store.pending_boundaries()] == rest
    assert sql("SELECT count(*) FROM boundaries") == [[len(rest)]]


def test_a_bounded_number_of_rows_is_deleted_at_a_time_oldest_first(store, world):
    for number in range(5):
        accepted = store.accept(Inbound("key", f"e{number}", "hello"))
        store.commit_turn(turn(accepted))
        world.pass_time(1)
    world.pass_time(31 * DAY)
    assert store.forget_closed(limit=2) == 2
    assert store.accept(Inbound("key", "e2", "hello")).duplicate
    assert store.forget_closed(older_than_days=100) == 0
    assert store.forget_closed() == 3


# The file


@pytest.mark.sqlite_only("PostgreSQL frees space by itself")
def test_a_vacuum_frees_space_and_changes_nothing_else(store, path):
    store.create_session("kept", "tui")
    store.append_message("kept", "user", "plum 梅")
    store.create_session("big", "tui")
    for number in range(20):
        store.append_message("big", "user", f"word{number} " * 5000)
    store.index_pending()
    exported = store.export_session("kept")
    store.delete_session("big")
    store.vacuum()
    small = path.stat().st_size
    assert small < 500_000
    assert path.with_name("state.db-wal").stat().st_size == 0
    assert store.export_session("kept") == exported
    assert [hit.snippet for hit in store.search_messages("梅")] == ["plum >>>梅<<<"]
    assert store.check_search() is None
    assert store.integrity_check() == []
    store.append_message("kept", "user", "goes on")


def test_the_check_finds_no_problems_in_a_healthy_file(talk):
    talk.index_pending()
    assert talk.integrity_check() == []


def test_the_check_finds_no_problems_while_another_connection_writes(store, path):
    with SessionStore(path) as other:
        for number in range(100):  # from time to time FTS5 merges what it has
            other.ensure_session("a")
            other.append_message("a", "user", f"word{number}")
            other.index_pending()
            assert store.integrity_check() == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM search_data WHERE id > 10",
        "UPDATE search_data SET block = x'00' WHERE id <> 10",
        "DELETE FROM stems_data WHERE id > 10",
    ],
)
@pytest.mark.sqlite_only("damages an index of FTS5")
def test_the_check_reports_a_damaged_index(talk, sql, damage):
    talk.index_pending()
    assert talk.integrity_check() == []
    sql(damage)
    assert any("fts5" in problem or "search" in problem for problem in talk.integrity_check())


def test_the_check_reports_a_wrong_counter(talk, sql):
    sql("UPDATE sessions SET message_count = 7 WHERE id = 'a'")
    assert talk.integrity_check() == ["the message counter of session a is 7 instead of 3"]


@pytest.mark.sqlite_only("PostgreSQL accepts no such row")
def test_the_check_reports_a_violated_foreign_key(talk, sql):
    sql("UPDATE usage SET session_no = 99")
    [problem] = talk.integrity_check()
    assert problem.startswith("foreign key: ('usage', ")


def test_the_check_reports_rows_that_were_hidden_with_sql(talk, sql):
    talk.index_pending()
    sql("UPDATE messages SET live = 0")
    assert talk.integrity_check() == ["the message counter of session a is 3 instead of 0"]


def test_an_ended_session_accepts_no_rows(talk):
    talk.end_session("a", "done")
    with pytest.raises(StoreError, match="has ended"):
        talk.append_message("a", "user", "too late")
    assert talk.integrity_check() == []
