"""Recorded turns in the store: small rows, shared texts, and nothing left after a deletion."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given as for_all, strategies as st
from msgspec.structs import replace

from bench.store.ours import recorded_calls
from hermes.actors.recording.recorder import ranges_of
from hermes.messages import (
    Content,
    Inbound,
    Message,
    RecordedCall,
    Source,
    StoredMessage,
    TurnCommit,
    TurnEvent,
    TurnRecord,
    Usage,
)
from hermes.store import SessionStore

DAY = 86400.0
TABLES = ("turns", "contents", "session_contents")
SETTINGS = Content.of('{"model":"m"}')
SYSTEM = Content.of("be kind " * 500)
TOOLS = Content.of("[]" * 500)


def call(session_id, **fields):
    return RecordedCall(
        **{
            "settings": SETTINGS, "system": SYSTEM, "tools": TOOLS, "session_id": session_id,
            "rows": 1, "digest": hashlib.sha256(b"body").hexdigest(), "started": 4, "first": 812,
            "duration": 20_345, "usage": Usage("turn", None, None, 12_345, 678, 9012, 0, 0, 0.0123),
            **fields,
        }
    )  # fmt: skip


def take_turn(store, key, number, calls=1, **fields):
    """Commit a turn whose calls were recorded; returns its id and its session."""
    accepted = store.accept(Inbound(key, f"{key} {number}", "hello"))
    receipt = accepted.receipt
    history = (1, accepted.head.message_count) if accepted.head.message_count else ()
    given = {"session_id": receipt.session_id, "history": history, **fields.pop("call", {})}
    made = [call(**given) for _ in range(calls)]
    store.commit_turn(
        TurnCommit(
            session_key=key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=accepted.head.revision,
            inbox_ids=[receipt.inbox_id],
            rows=[Message("user", "hello"), Message("assistant", "hi")],
            record=TurnRecord(
                **{"started_at": receipt.accepted_at, "status": "complete", **fields}, calls=made
            ),
        )
    )
    return receipt.inbox_id, receipt.session_id


def count(sql):
    return {table: sql(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def test_a_turn_is_read_as_it_was_recorded(store):
    first, session_id = take_turn(store, "k", 1)
    event = TurnEvent("tool", "look", 10, 20, failed=True)
    fields = {"injected": Content.of("now"), "hidden_files": ("f",), "error": "Unavailable"}
    second, _ = take_turn(
        store,
        "k",
        2,
        2,
        call=fields,
        events=[event],
        agent="calm",
        error="no",
        repeats=("k", first),
    )
    turn = store.get_past_turn("k", second)
    made = call(session_id, history=(1, 2), **fields)
    assert list(turn.calls) == [made, replace(made)]
    assert list(turn.events) == [event]
    assert (turn.agent, turn.error, turn.repeats, turn.status) == (
        "calm", "no", ("k", first), "complete",
    )  # fmt: skip
    assert [row.content for row in turn.messages] == ["hello", "hi"]
    assert [each.turn_id for each in store.list_turns("k")] == [second, first]
    assert [each.turn_id for each in store.list_turns("k", before=second)] == [first]
    assert [each.turn_id for each in store.list_turns("k", limit=1)] == [second]
    found, rows = store.get_call_rows("k", second, 1)
    assert found == made
    assert ([row.id % 2**32 for row in rows.history], len(rows.turn), rows.missing) == (
        [1, 2], 1, 0,
    )  # fmt: skip


def test_another_key_finds_nothing(store):
    turn_id, _ = take_turn(store, "k", 1)
    take_turn(store, "other", 1)
    assert store.get_past_turn("other", turn_id) is None
    assert store.get_call_rows("other", turn_id, 0) is None
    assert store.get_call_rows("k", turn_id, 1) is None
    assert store.get_call_rows("k", turn_id, -1) is None
    assert store.list_turns("nobody") == []


@pytest.mark.parametrize("calls", [1, 10])
@pytest.mark.sqlite_only("measures the file")
def test_a_call_takes_at_most_300_bytes_beyond_new_texts(path, calls):
    assert recorded_calls(str(path), 200, calls)["call_bytes"] <= 300


@for_all(st.lists(st.integers(1, 60), unique=True).map(sorted))
def test_ranges_name_exactly_the_rows_of_a_history(numbers):
    rows = [StoredMessage(7 * 2**32 + n, "user", "", 0.0) for n in numbers]
    ranges = ranges_of(rows)
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    assert [n for first, last in pairs for n in range(first, last + 1)] == numbers
    assert all(b > a + 1 for a, b in zip(ranges[1::2], ranges[2::2], strict=False))


def test_many_ranges_are_a_text_that_calls_share(store, sql):
    history = tuple(n for first in range(1, 400, 4) for n in (first, first + 1))
    turn_id, _ = take_turn(store, "k", 1, call={"history": history})
    take_turn(store, "k", 2, call={"history": history})
    assert store.get_past_turn("k", turn_id).calls[0].history == history
    assert count(sql)["contents"] == 4
    assert max(length for (length,) in sql("SELECT length(details) FROM turns")) <= 250


def test_a_text_is_kept_while_a_session_uses_it(store, sql):
    _, one = take_turn(store, "one", 1, call={"injected": Content.of("only here")})
    turn_id, two = take_turn(store, "two", 1)
    assert count(sql) == {"turns": 2, "contents": 4, "session_contents": 7}
    store.delete_session(one)
    assert count(sql) == {"turns": 1, "contents": 3, "session_contents": 3}
    assert store.get_past_turn("two", turn_id).calls[0].system == SYSTEM
    store.delete_session(two)
    assert count(sql) == dict.fromkeys(TABLES, 0)


def test_pruning_leaves_nothing(store, sql, world):
    take_turn(store, "k", 1)
    store.new_session("k")
    world.now += 100 * DAY
    assert len(store.prune_sessions(90).session_ids) == 1
    assert count(sql) == dict.fromkeys(TABLES, 0)


def test_cleanup_of_receipts_keeps_recordings(store, world):
    turn_id, _ = take_turn(store, "k", 1)
    world.now += 100 * DAY
    assert store.forget_closed() > 0
    assert store.get_past_turn("k", turn_id).calls[0].system == SYSTEM


def test_a_deleted_session_is_missing_from_the_requests_of_its_continuation(store):
    _, parent = take_turn(store, "k", 1)
    store.end_session(parent, "compression")
    child = store.create_session(None, "x", parent_session_id=parent, kind="compression")
    store.follow_route("k")
    turn_id, session_id = take_turn(store, "k", 2, call={"session_id": parent, "history": (1, 2)})
    assert session_id == child
    assert store.get_past_turn("k", turn_id).calls[0].session_id == parent
    store.delete_session(parent)
    recorded, rows = store.get_call_rows("k", turn_id, 0)
    assert (recorded.session_id, rows.missing, rows.history) == ("", 2, [])


def test_an_export_has_the_conversation_without_recordings(store, sql, path):
    _, session_id = take_turn(store, "k", 1)
    line = store.export_session(session_id)
    assert "be kind" not in line
    store.delete_session(session_id)
    store.import_sessions([line])
    assert count(sql) == dict.fromkeys(TABLES, 0)


@pytest.mark.sqlite_only("a backup is a file")
def test_a_backup_has_the_recordings(store, path):
    turn_id, _ = take_turn(store, "k", 1)
    copy = path.with_name("copy.db")
    store.backup(copy)
    with SessionStore(copy) as other:
        assert other.get_past_turn("k", turn_id) == store.get_past_turn("k", turn_id)


@pytest.mark.parametrize("record", [None, TurnRecord(started_at=1.0, status="failed")])
def test_a_turn_that_belongs_to_no_session_is_not_recorded(store, sql, record):
    accepted = store.accept(Inbound("k", "1", "hello", Source()))
    receipt = accepted.receipt
    store.commit_turn(
        TurnCommit(
            session_key="k", session_id=receipt.session_id, epoch=receipt.epoch,
            revision=accepted.head.revision, inbox_ids=[receipt.inbox_id], record=record,
            stored=False,
        )
    )  # fmt: skip
    assert count(sql) == dict.fromkeys(TABLES, 0)
