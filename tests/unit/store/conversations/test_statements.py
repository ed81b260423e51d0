"""The SQL of a turn: few statements, compiled once, and no table is scanned."""

from __future__ import annotations

from contextlib import contextmanager

import apsw
import pytest

from hermes.messages import Inbound, Message, Outbound, TurnCommit
from hermes.store import SessionStore
from hermes.store.conversations.messages import FIND_PLATFORM_MESSAGE


@pytest.fixture
def store(path, world):
    with SessionStore(path, clock=world.clock) as opened:
        yield opened


@contextmanager
def recorded(store):
    """Record the first word of each statement that runs during the block."""
    statements = []
    store._db.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda event: statements.append(event["sql"].split()[0])
    )
    try:
        yield statements
    finally:
        store._db.trace_v2(0, None)


def take_turn(store, key, number, revision, **inbound):
    """Accept a message and commit its turn, each in a list of recorded statements."""
    message = Inbound(key, f"{key} {number}", "hello", **inbound)
    with recorded(store) as accepting:
        accepted = store.accept(message)
    turn = TurnCommit(
        session_key=key,
        session_id=accepted.route.session_id,
        epoch=accepted.route.epoch,
        revision=revision,
        inbox_ids=[accepted.receipt.inbox_id],
        rows=[
            Message("user", "hello", platform_message_id=message.platform_message_id),
            Message("assistant", "an answer"),
        ],
        outbox=[Outbound("lane", {"text": "an answer"})],
    )
    with recorded(store) as committing:
        committed = store.commit_turn(turn)
    return accepting, committing, committed.head.revision


def test_a_later_turn_reads_the_route_once_per_transaction(store):
    _, _, revision = take_turn(store, "k", 1, 0)
    accepting, committing, _ = take_turn(store, "k", 2, revision)
    assert accepting == ["BEGIN", *["SELECT"] * 3, "UPDATE", "INSERT", "COMMIT"]
    assert sorted(committing) == sorted(
        ["BEGIN", *["SELECT"] * 2, *["UPDATE"] * 3, *["INSERT"] * 3, "COMMIT"]
    )


def test_no_statement_is_compiled_again_for_another_conversation(store):
    """SQLite would do so for joins if plans depended on the bound values."""
    compiled = []

    def authorize(*details):  # asked whenever a statement is compiled
        compiled.append(details)
        return apsw.SQLITE_OK

    store._db.authorizer = authorize
    revisions = {}
    for key in ("a", "b"):
        *_, revisions[key] = take_turn(store, key, 1, 0, platform_message_id="1")
    *_, revisions["a"] = take_turn(store, "a", 2, revisions["a"], platform_message_id="2")
    compiled.clear()
    for key, revision in revisions.items():
        take_turn(store, key, 3, revision, platform_message_id="3")
    store._db.authorizer = None
    assert compiled == []


def test_a_platform_message_is_found_by_index(store):
    plan = store.snapshot(
        lambda tx: tx.all(f"EXPLAIN QUERY PLAN {FIND_PLATFORM_MESSAGE}", "s", "p")
    )
    steps = [step for *_, step in plan]
    assert [step for step in steps if step.startswith("SCAN")] == []
    assert [step for step in steps if "platform_messages (<expr>=?" in step]
    assert [step for step in steps if "platform_arrivals (<expr>=?" in step]
