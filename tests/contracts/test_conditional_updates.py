"""Decisions that stay right if another writer comes between a statement and the next one.

SQLite serializes writers, so this cannot happen today. Here a change is made on the same connection
just before a statement that writes.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from hermes.messages import ApiRequest, Inbound, Pairing, PairingRejected, Source
from hermes.store.records.access import LOCKOUT_SECONDS, MAX_WRONG_CODES

OPERATOR = Source("console", chat_id="c", user_id="op")
USER = Source("telegram", chat_id="1", user_id="ann")


@contextmanager
def meanwhile(store, statement, *values):
    """Run a statement before the first one that writes in the block."""
    done = []

    def trace(_cursor, sql, _bindings):
        if not done and sql.lstrip().startswith(("INSERT", "UPDATE", "DELETE")):
            done.append(sql)
            store._db.cursor().execute(statement, values)
        return True

    store._db.exec_trace = trace
    try:
        yield
    finally:
        store._db.exec_trace = None
    assert done


@pytest.mark.sqlite_only("real writers race for a PostgreSQL database in a campaign")
def test_a_lease_that_another_holder_acquires_meanwhile_is_not_taken(store, world):
    with meanwhile(store, "INSERT INTO leases VALUES ('s', 'other', 7, ?, 30)", world.steady + 30):
        assert store.acquire_lease("s", "me") is None
    assert store.get_compression_lock_holder("s") == "other"


@pytest.mark.sqlite_only("real writers race for a PostgreSQL database in a campaign")
def test_a_lease_that_is_released_meanwhile_gets_a_new_token(store):
    first = store.acquire_lease("s", "other")
    with meanwhile(store, "UPDATE leases SET holder = NULL, token = token + 1"):
        assert store.acquire_lease("s", "me").token == first.token + 2


def test_tokens_grow_with_every_new_holder_only(store, world):
    assert store.acquire_lease("s", "a").token == 1
    assert store.acquire_lease("s", "a").token == 1
    assert store.acquire_lease("s", "b") is None
    world.pass_time(31)
    assert store.acquire_lease("s", "b").token == 2
    assert store.release_compression_lock("s", "b")
    assert store.acquire_lease("s", "b").token == 3


def wrong(store):
    return store.approve_pairing("ZZZZ-9999", "user", OPERATOR)


@pytest.mark.sqlite_only("real writers race for a PostgreSQL database in a campaign")
def test_wrong_codes_of_another_writer_are_counted(store, world):
    assert wrong(store) == PairingRejected(MAX_WRONG_CODES - 1)
    with meanwhile(store, "UPDATE wrong_codes SET number = number + 1"):
        assert wrong(store) == PairingRejected(MAX_WRONG_CODES - 3)
    with meanwhile(store, "UPDATE wrong_codes SET number = ?", MAX_WRONG_CODES):
        assert wrong(store) == PairingRejected(0, LOCKOUT_SECONDS)


@pytest.mark.parametrize("number", [MAX_WRONG_CODES, MAX_WRONG_CODES + 1])
@pytest.mark.sqlite_only("real writers race for a PostgreSQL database in a campaign")
def test_a_right_code_is_rejected_if_too_many_wrong_ones_came_meanwhile(store, number):
    store.request_pairing(USER, "k", "AAAA-0001", salt="00")
    wrong(store)
    with meanwhile(store, "UPDATE wrong_codes SET number = ?", number):
        result = store.approve_pairing("AAAA-0001", "user", OPERATOR)
    assert isinstance(result, PairingRejected)
    assert store.principals() == []


def test_a_right_code_forgets_the_wrong_ones(store):
    store.request_pairing(USER, "k", "AAAA-0001", salt="00")
    wrong(store)
    assert isinstance(store.approve_pairing("AAAA-0001", "user", OPERATOR), Pairing)
    assert wrong(store) == PairingRejected(MAX_WRONG_CODES - 1)
    assert store.approve_pairing("AAAA-0001", "user", OPERATOR).left == MAX_WRONG_CODES - 2


@pytest.mark.sqlite_only("real writers race for a PostgreSQL database in a campaign")
def test_a_response_that_another_retry_attaches_to_meanwhile_is_left_to_it(store):
    for name in ("resp_a", "resp_b"):
        request = ApiRequest(id=name, credential="t", path="/v1", digest="d", process="p")
        store.accept(Inbound("k", name, "yes", request=request))
        store.end_connection(name, "p", complete=False)
    other = "UPDATE responses SET connection = 'open' WHERE id = 'resp_a'"
    with meanwhile(store, other):
        assert store.attach_response("t", "/v1", "d", "p").id == "resp_b"
