"""Requests that are not stored: their turn leaves its usage, and is erased after an hour."""

from __future__ import annotations

import apsw
import pytest
from msgspec.structs import replace

from hermes.messages import (
    ApiRequest,
    Attachment,
    Committed,
    Inbound,
    Message,
    Reply,
    Source,
    TurnCommit,
    Usage,
)
from hermes.store import SessionStore
from hermes.store.responses.erasure import erase_unstored

HOUR = 3600.0
KEY = "agent:main:http:dm:ann:temp_" + "0" * 32
OTHER = "agent:main:http:dm:ann:temp_" + "1" * 32
SOURCE = Source("http", "tok_1", "ann", user_id="tok_1")
SECRET = "the plum is blue"


def request(number=1, **options):
    options = {"stored": False, "history": (Message("user", SECRET),), **options}
    return ApiRequest(
        id=f"resp_{number}", credential="tok_1", path="/v1/x", digest="d", **options
    )  # fmt: skip


def accept(store, key=KEY, number=1, **options):
    inbound = Inbound(key, f"resp_{number}", SECRET, source=SOURCE, request=request(number))
    return store.accept(replace(inbound, **options))


def commit(store, accepted, **options):
    receipt = accepted.receipt
    reply = Reply(text=SECRET, session_id=receipt.session_id, turn_id=receipt.inbox_id)
    done = store.commit_turn(
        TurnCommit(
            session_key=receipt.session_key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=0,
            inbox_ids=[receipt.inbox_id],
            usage=[Usage(input_tokens=3, cost=0.5)],
            reply=reply,
            stored=False,
            **options,
        )
    )
    assert isinstance(done, Committed)
    return done


def erase(store, world):
    """Let an hour pass after the first sweep that follows the end."""
    store.forget_closed()
    world.pass_time(HOUR + 1)
    return store.forget_closed()


def test_the_turn_leaves_no_session(store):
    done = commit(store, accept(store))
    assert done.rows == []
    assert done.reply.messages is None
    assert store.list_sessions(include_subagents=True, include_archived=True) == []
    assert store.search_messages("plum") == []
    assert list(store.export_lines()) == []
    assert store.get_response("resp_1").reply.text == SECRET


def test_what_it_has_cost_counts_for_its_user_and_for_today(store, world):
    commit(store, accept(store))
    erase(store, world)
    totals = store.spent("unknown", "http", "tok_1")
    assert (totals.session, totals.principal, totals.day) == (0.0, 0.5, 0.5)
    assert store.spent("unknown", "http", "tok_2").principal == 0.0


def test_it_is_erased_an_hour_after_the_first_sweep_that_follows_its_end(
    store, world, sql, new_rows
):
    accepted = accept(store)
    commit(store, accepted)
    world.pass_time(10 * HOUR)  # no process was running
    assert store.forget_closed() == 0
    world.pass_time(HOUR)
    assert store.forget_closed() == 0
    assert accept(store).duplicate
    world.pass_time(1)
    assert store.forget_closed() == 1
    assert store.get_response("resp_1") is None
    for table in ("responses", "inbox", "routes", "sessions", "messages", new_rows):
        assert sql(f"SELECT count(*) FROM {table}") == [[0]], table
    assert not accept(store).duplicate


def test_one_that_waits_and_one_that_is_stored_are_kept(store, world):
    accept(store)
    stored = Inbound("k", "resp_2", "x", source=SOURCE, request=request(2, stored=True))
    kept = store.accept(stored)
    receipt = kept.receipt
    store.commit_turn(
        TurnCommit(
            session_key="k", session_id=receipt.session_id, epoch=receipt.epoch, revision=0,
            inbox_ids=[receipt.inbox_id], rows=[Message("user", "x")],
            reply=Reply(text="y", session_id="", turn_id=receipt.inbox_id),
        )
    )  # fmt: skip
    assert erase(store, world) == 0
    assert len(store.open_inbox(KEY)) == 1
    assert store.get_response("resp_2").reply.text == "y"


def test_a_clock_that_jumps_erases_nothing_too_early(store, world):
    commit(store, accept(store))
    store.transact(erase_unstored)
    world.now += 365 * 24 * HOUR
    assert store.transact(erase_unstored) == 0
    world.now -= 2 * 365 * 24 * HOUR
    world.pass_time(HOUR + 1)
    assert store.transact(erase_unstored) == 1


def test_after_a_restart_of_the_machine_it_is_erased_within_another_hour(store, world):
    commit(store, accept(store))
    store.forget_closed()
    world.steady = HOUR - 1  # the steady clock starts again
    assert store.forget_closed() == 0
    world.steady = HOUR + 1
    assert store.forget_closed() == 1


def test_one_that_was_parked_or_withdrawn_is_erased_too(store, world):
    first, second = accept(store), accept(store, OTHER, 2)
    store.park_inbox([first.receipt.inbox_id], "begun too often")
    store.withdraw(OTHER, second.receipt.inbox_id)
    assert erase(store, world) == 2


def test_at_most_as_many_as_asked_for_are_erased_at_once(store, world):
    for number in range(3):
        commit(store, accept(store, f"{KEY[:-1]}{number}", number))
    store.forget_closed()
    world.pass_time(HOUR + 1)
    assert [store.forget_closed(limit=2), store.forget_closed(limit=2)] == [2, 1]


@pytest.mark.parametrize(("key", "stored"), [("k", False), (KEY, True)])
def test_only_a_request_that_is_not_stored_has_a_one_off_key(store, key, stored):
    with pytest.raises(ValueError, match="one-off"):
        accept(store, key, request=request(stored=stored))
    assert store.open_inbox() == []


# Files


def put(store, text, key=KEY):
    return store.put_file(Attachment(data=text.encode(), name="a.txt"), session_key=key)


def test_the_files_of_its_history_are_kept_until_it_is_erased(store, world):
    file = put(store, SECRET)
    history = (Message("user", "look", parts=(file.part,)),)
    accepted = accept(store, request=request(history=history))
    world.pass_time(2 * HOUR)
    store.sweep_files()
    commit(store, accepted)
    store.sweep_files()
    assert store.get_file(file.id, session_key=KEY)[0] == file
    assert erase(store, world) == 1
    assert store.sweep_files() == 1


def test_a_history_cannot_name_a_file_of_another_conversation(store):
    file = put(store, SECRET, "other")
    history = (Message("user", "look", parts=(file.part,)),)
    with pytest.raises(LookupError, match="no file"):
        accept(store, request=request(history=history))


# The bytes of the file


def bytes_of(path):
    return b"".join(p.read_bytes() for p in path.parent.rglob("*") if p.is_file())


@pytest.mark.sqlite_only("a deleted row stays in the file of SQLite until then")
def test_a_vacuum_removes_what_was_erased_from_the_file(path, world):
    with SessionStore(path, clock=world.clock) as store:
        commit(store, accept(store))
        assert SECRET.encode() in bytes_of(path)
        assert erase(store, world) == 1
    db = apsw.Connection(str(path))
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    assert SECRET.encode() not in bytes_of(path)
