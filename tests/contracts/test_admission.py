"""Paired principals and pairing requests: a code is valid once and for an hour."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from hermes.messages import (
    Inbound,
    InboxReply,
    Outbound,
    Pairing,
    PairingRejected,
    Principal,
    Source,
)
from hermes.store import SessionStore

HOUR = 3600.0
FIVE_MINUTES = 300.0
SALT = "00" * 16
ALICE = Source("telegram", "bot", "42", "dm", None, "42", "Alice")
BOB = Source("telegram", "bot", "43", "dm", None, "43", "Bob")
CONSOLE = Source("console", user_id="operator")
OTHER = Source("telegram", "bot", "1", user_id="1")


def said(text="ask for AAAA-0001"):
    return [Outbound("lane", {"text": text})]


def ask(store, source=ALICE, code="AAAA-0001", **options):
    options.setdefault("salt", SALT)
    options.setdefault("say", said(f"ask for {code}"))
    return store.request_pairing(source, f"k:{source.user_id}", code, **options)


def texts(store):
    return [row.body["text"] for row in store.pending_outbox()]


def user(source=ALICE):
    return source.platform, source.account, source.user_id


def test_nobody_is_paired_at_first(store):
    assert store.find_principal(*user()) is None
    assert store.principals() == []
    assert store.pairings() == []


def test_an_unknown_user_gets_a_code_that_pairs_it_once(store, world):
    assert ask(store)
    now = world.now
    waiting = Pairing(ALICE, "k:42", now, now + HOUR)
    assert store.pairings() == [waiting]
    assert store.find_principal(*user()) is None
    assert store.approve_pairing("AAAA-0001", "user", CONSOLE) == waiting
    assert store.find_principal(*user()) == "user"
    assert store.principals() == [Principal(*user(), "user", "Alice", now)]
    assert store.pairings() == []
    assert store.approve_pairing("AAAA-0001", "user", CONSOLE) == PairingRejected(4)


def test_a_code_can_pair_an_operator_and_the_latest_pairing_wins(store, world):
    ask(store)
    store.approve_pairing("AAAA-0001", "operator", CONSOLE)
    assert store.find_principal(*user()) == "operator"
    world.pass_time(1)
    ask(store, replace(ALICE, user_name="Al"), "AAAA-0002")
    store.approve_pairing("AAAA-0002", "user", CONSOLE)
    assert store.principals() == [Principal(*user(), "user", "Al", world.now)]


def test_pairing_a_guest_is_refused_and_changes_nothing(store):
    ask(store)
    with pytest.raises(Exception, match="role"):
        store.approve_pairing("AAAA-0001", "guest", CONSOLE)
    assert len(store.pairings()) == 1
    assert store.principals() == []


@pytest.mark.parametrize(
    "other",
    [
        ("telegram", "bot", "420"),
        ("telegram", "bot2", "42"),
        ("telegram", "", "42"),
        ("signal", "bot", "42"),
        ("Telegram", "bot", "42"),
        ("telegram", "bot", "４２"),
        ("telegram", "bot", " 42"),
        ("telegram", "bot", "Alice"),
        ("telegram", "bot", "U"),
        ("telegram", "bot", ""),
        ("telegram", "bot", "42\x00"),
    ],
)
def test_a_principal_is_identified_by_platform_account_and_id(store, other):
    ask(store)
    store.approve_pairing("AAAA-0001", "user", CONSOLE)
    ask(store, replace(ALICE, user_id="u"), "AAAA-0002")
    store.approve_pairing("AAAA-0002", "user", CONSOLE)
    assert store.find_principal(*other) is None


def test_the_code_is_not_stored_in_the_pairings_table(store, sql):
    ask(store, say=())
    found = sql("SELECT * FROM pairings")
    assert "AAAA" not in json.dumps(found)
    assert "0001" not in json.dumps(found).replace(SALT, "")


def test_the_same_code_with_another_salt_has_another_digest(store, sql):
    ask(store, ALICE, "AAAA-0001", salt="01" * 16)
    ask(store, BOB, "AAAA-0001", salt="02" * 16)
    first, second = sql("SELECT digest FROM pairings")
    assert first != second


def test_a_pairing_request_and_its_notice_are_committed_together(store):
    ask(store)
    assert texts(store) == ["ask for AAAA-0001"]
    [row] = store.pending_outbox()
    assert (row.session_key, row.lane, row.turn_id) == ("k:42", "lane", 0)
    assert store.open_inbox() == []
    assert store.get_route("k:42") is None
    with pytest.raises(TypeError):
        ask(store, BOB, "AAAA-0002", say=[Outbound("lane", {"text": object()})])
    assert [each.source for each in store.pairings()] == [ALICE]
    assert len(store.pending_outbox()) == 1


def test_a_pending_user_is_not_notified_again_and_its_code_stays_valid(store, world):
    ask(store)
    world.pass_time(HOUR - 1)
    assert not ask(store, code="AAAA-0002")
    assert texts(store) == ["ask for AAAA-0001"]
    assert isinstance(store.approve_pairing("AAAA-0002", "user", CONSOLE), PairingRejected)
    assert isinstance(store.approve_pairing("AAAA-0001", "user", CONSOLE), Pairing)


def test_a_code_expires_after_an_hour_and_a_new_one_can_be_requested(store, world):
    ask(store)
    world.pass_time(HOUR)
    assert store.pairings() == []
    assert store.approve_pairing("AAAA-0001", "user", CONSOLE) == PairingRejected(4)
    assert store.find_principal(*user()) is None
    assert ask(store, code="AAAA-0002")
    assert texts(store) == ["ask for AAAA-0001", "ask for AAAA-0002"]
    assert isinstance(store.approve_pairing("AAAA-0002", "user", CONSOLE), Pairing)


def test_at_most_three_users_get_a_code_within_five_minutes(store, world, sql):
    for n in range(3):
        assert ask(store, replace(ALICE, user_id=f"s{n}"), f"AAAA-000{n}")
        world.pass_time(1)
    assert not ask(store, BOB, "BBBB-0000")
    assert len(texts(store)) == 3
    assert ask(store, replace(BOB, account="bot2"), "BBBB-0001")
    assert ask(store, replace(BOB, platform="signal"), "BBBB-0002")
    world.pass_time(FIVE_MINUTES - 4)
    assert not ask(store, BOB, "BBBB-0003")
    world.pass_time(1)  # since the first request
    assert ask(store, BOB, "BBBB-0003")
    assert not ask(store, ALICE, "BBBB-0004")
    waiting = [each.source.user_id for each in store.pairings()]
    assert waiting == ["s0", "s1", "s2", "43", "43", "43"], "every request is kept"
    assert isinstance(store.approve_pairing("AAAA-0000", "user", CONSOLE), Pairing)
    world.pass_time(2 * HOUR)
    ask(store)
    assert sql("SELECT count(*) FROM pairings") == [[1]]  # expired requests are deleted


def test_repeated_requests_of_unknown_users_do_not_block_others_for_long(store, world):
    """Three at a time, as often as they like; a fourth user still gets a code."""
    for minute in range(60):
        for n in range(3):
            ask(store, replace(ALICE, user_id=f"s{n}"), f"AAAA-{minute:02}0{n}")
        assert ask(store, replace(BOB, user_id=f"b{minute}"), f"BBBB-00{minute:02}") is (
            minute >= 5
        ), minute
        if minute >= 5:
            store.unpair("telegram", f"b{minute}")
        world.pass_time(60)


def test_the_number_of_pending_requests_is_bounded(store, world):
    for second in range(0, 2 * int(HOUR), 30):
        ask(store, replace(ALICE, user_id=f"s{second}"), "AAAA-0001")
        assert len(store.pairings()) <= 36
        world.pass_time(30)
    assert len(texts(store)) == 72


# Wrong codes


def test_five_wrong_codes_lock_pairing_for_an_hour(store, world):
    ask(store)
    wrong = [store.approve_pairing(f"ZZZZ-000{n}", "user", CONSOLE) for n in range(5)]
    assert wrong == [
        PairingRejected(4),
        PairingRejected(3),
        PairingRejected(2),
        PairingRejected(1),
        PairingRejected(0, HOUR),
    ]
    world.pass_time(60)
    locked = PairingRejected(0, HOUR - 60)
    assert store.approve_pairing("AAAA-0001", "user", CONSOLE) == locked
    assert store.approve_pairing("ZZZZ-0009", "user", CONSOLE) == locked
    assert store.find_principal(*user()) is None
    world.pass_time(HOUR - 60)
    ask(store, BOB, "BBBB-0001")
    assert isinstance(store.approve_pairing("BBBB-0001", "user", CONSOLE), Pairing)


def test_wrong_codes_that_are_dated_in_the_future_do_not_lock_pairing(store, world):
    world.now += 31 * 24 * HOUR
    for n in range(5):
        store.approve_pairing(f"ZZZZ-000{n}", "user", CONSOLE)
    world.now -= 31 * 24 * HOUR  # the clock was wrong
    ask(store)
    assert isinstance(store.approve_pairing("AAAA-0001", "user", CONSOLE), Pairing)


def test_codes_that_are_dated_in_the_future_neither_block_others_nor_pair_anybody(store, world):
    world.now += 365 * 24 * HOUR
    for n in range(3):
        assert ask(store, replace(ALICE, user_id=f"{n}"), f"CCCC-000{n}")
    world.now -= 365 * 24 * HOUR  # the clock was wrong
    assert store.pairings() == []
    assert store.approve_pairing("CCCC-0000", "user", CONSOLE) == PairingRejected(4)
    assert ask(store)
    assert ask(store, replace(ALICE, user_id="0"), "CCCC-0009")
    assert isinstance(store.approve_pairing("CCCC-0009", "user", CONSOLE), Pairing)


def test_a_code_stays_valid_if_the_clock_is_set_back_by_less_than_an_hour(store, world):
    for n in range(3):
        assert ask(store, replace(ALICE, user_id=f"{n}"), f"CCCC-000{n}")
    world.now -= HOUR - 1
    assert len(store.pairings()) == 3
    assert not ask(store, replace(ALICE, user_id="0"), "CCCC-0009")
    assert ask(store, BOB, "BBBB-0001")
    assert isinstance(store.approve_pairing("CCCC-0000", "user", CONSOLE), Pairing)


def test_another_operator_is_not_locked_out(store):
    ask(store)
    for n in range(5):
        store.approve_pairing(f"ZZZZ-000{n}", "user", CONSOLE)
    assert isinstance(store.approve_pairing("AAAA-0001", "user", OTHER), Pairing)


def test_a_right_code_or_an_hour_resets_the_count_of_wrong_codes(store, world):
    ask(store)
    for n in range(4):
        store.approve_pairing(f"ZZZZ-000{n}", "user", CONSOLE)
    store.approve_pairing("AAAA-0001", "user", CONSOLE)
    assert store.approve_pairing("ZZZZ-0000", "user", CONSOLE) == PairingRejected(4)
    assert store.approve_pairing("ZZZZ-0000", "user", CONSOLE) == PairingRejected(3)
    world.pass_time(HOUR)
    assert store.approve_pairing("ZZZZ-0000", "user", CONSOLE) == PairingRejected(4)


def test_pairings_requests_and_locks_survive_a_restart(path, world):
    with SessionStore(path, clock=world.clock) as store:
        ask(store)
        ask(store, BOB, "BBBB-0001")
        store.approve_pairing("AAAA-0001", "operator", CONSOLE)
        for n in range(5):
            store.approve_pairing(f"ZZZZ-000{n}", "user", CONSOLE)
    with SessionStore(path, clock=world.clock) as store:
        assert store.find_principal(*user()) == "operator"
        assert store.approve_pairing("BBBB-0001", "user", CONSOLE) == PairingRejected(0, HOUR)
        assert isinstance(store.approve_pairing("BBBB-0001", "user", OTHER), Pairing)
        assert store.integrity_check() == []


# Pairing, answer and welcome in one transaction


def test_a_pairing_its_answer_and_the_welcome_are_committed_together(store):
    ask(store, say=())
    command = store.accept(Inbound("op", "e1", "/pair AAAA-0001")).receipt

    def answer(found):
        assert isinstance(found, Pairing)
        return InboxReply(session_key="op", inbox_ids=[command.inbox_id], outbox=said("Done."))

    def welcome(found):
        return said(f"Welcome, {found.source.user_id}.")

    def failing(found):
        raise ValueError("no welcome")

    with pytest.raises(ValueError, match="no welcome"):
        store.approve_pairing("AAAA-0001", "user", CONSOLE, answer=answer, welcome=failing)
    assert store.find_principal(*user()) is None
    assert len(store.open_inbox("op")) == 1
    store.approve_pairing("AAAA-0001", "user", CONSOLE, answer=answer, welcome=welcome)
    assert store.open_inbox("op") == []
    assert texts(store) == ["Done.", "Welcome, 42."]
    assert [row.session_key for row in store.pending_outbox()] == ["op", "k:42"]


def test_a_wrong_code_is_answered_and_sends_no_welcome(store):
    ask(store, say=())
    heard = []

    def answer(found):
        heard.append(found)
        return InboxReply(session_key="op", inbox_ids=(), outbox=said("Wrong."))

    store.approve_pairing("ZZZZ-0000", "user", CONSOLE, answer=answer, welcome=said)
    assert heard == [PairingRejected(4)]
    assert texts(store) == ["Wrong."]


# Removal


def test_a_principal_is_removed_from_every_account_and_no_other_principal_is(store):
    ours = [ALICE, replace(ALICE, account="bot2"), replace(ALICE, platform="signal"), BOB]
    for n, source in enumerate(ours):
        ask(store, source, f"AAAA-000{n}")
        store.approve_pairing(f"AAAA-000{n}", "user", CONSOLE)
    assert store.unpair("telegram", "42") == 2
    assert [store.find_principal(*user(each)) for each in ours] == [None, None, *["user"] * 2]
    assert store.unpair("telegram", "42") == 0
    assert store.unpair("telegram", "Bob") == 0


def test_removal_deletes_a_pending_request_and_invalidates_its_code(store):
    ask(store)
    assert store.unpair("telegram", "42") == 1
    assert isinstance(store.approve_pairing("AAAA-0001", "user", CONSOLE), PairingRejected)


def test_a_removal_answers_its_command_in_the_same_transaction(store):
    command = store.accept(Inbound("op", "e1", "/unpair telegram 42")).receipt
    ids = [command.inbox_id]
    store.unpair(
        "telegram",
        "42",
        answer=lambda number: InboxReply(session_key="op", inbox_ids=ids, outbox=said(f"{number}")),
    )
    assert texts(store) == ["0"]
    assert store.open_inbox("op") == []


def test_principals_are_listed_in_order_and_up_to_a_limit(store):
    for n in range(4):
        ask(store, replace(ALICE, user_id=f"{n}"), f"AAAA-000{n}")
        store.approve_pairing(f"AAAA-000{n}", "user", CONSOLE)
    assert [each.user_id for each in store.principals()] == ["0", "1", "2", "3"]
    assert len(store.principals(limit=2)) == 2
