"""Rules, rates and codes, without a runtime; and what an adapter of a network may touch."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, strategies as st

from hermes.actors.admission import pairing
from hermes.actors.admission.access import (
    AccessPolicy,
    PlatformRules,
    principal_of,
    require_rules,
    user_of,
)
from hermes.actors.admission.rate_limit import RateLimit, RateLimiter
from hermes.actors.session.commands import COMMANDS
from hermes.messages import ROLES, Source, may
from hermes.session_keys import session_key

ROOT = Path(__file__).parents[2]
RULES = PlatformRules(operators=["1"], users=[42, "b"], chats=["-100"])


def source(user_id=None, chat_id=None, **fields):
    return Source(platform="telegram", user_id=user_id, chat_id=chat_id, **fields)


# Rules


def test_each_is_what_the_rules_say_and_everybody_else_is_nobody():
    assert RULES.role_of(source("1")) == "operator"
    assert RULES.role_of(source("42")) == RULES.role_of(source("b")) == "user"
    assert RULES.role_of(source("2")) is None
    assert RULES.role_of(source()) is None


def test_a_chat_that_is_named_makes_guests_and_takes_nothing_from_others():
    assert RULES.role_of(source("2", "-100", chat_type="group")) == "guest"
    assert RULES.role_of(source(None, "-100", chat_type="channel")) == "guest"
    assert RULES.role_of(source("42", "-100", chat_type="group")) == "user"
    assert RULES.role_of(source("42", "-200", chat_type="group")) == "user"
    assert RULES.role_of(source("2", "-200", chat_type="group")) is None
    assert RULES.role_of(source("-100", "5")) is None
    assert RULES.role_of(source("2", "42")) is None


def test_where_it_is_open_everybody_else_is_a_guest():
    everybody = attrs.evolve(RULES, open=True)
    assert everybody.role_of(source("2")) == everybody.role_of(source()) == "guest"
    assert everybody.role_of(source("1")) == "operator"


LOOKALIKES = ["B", " b", "b ", "ｂ", "в", "b\u200b", "b\u0301", "b\x00", "", "%62", "b:", "*"]


@pytest.mark.parametrize("user_id", LOOKALIKES)
def test_an_id_that_only_looks_like_another_is_another(user_id):
    assert RULES.role_of(source(user_id)) is None


@given(st.text(max_size=5), st.text(max_size=5))
def test_only_the_very_same_id_is_let_in(named, written):
    try:
        rules = PlatformRules(users=[named])
    except ValueError:
        return
    assert (rules.role_of(source(written)) == "user") == (written == named)


@given(name=st.text(max_size=9))
def test_what_somebody_calls_himself_is_not_looked_at(name):
    assert RULES.role_of(source("2", user_name=name)) is None
    assert RULES.role_of(source("42", user_name=name)) == "user"


@pytest.mark.parametrize("user_id", ["", None, "\ud800", "b\udfff", "x" * 201])
def test_what_cannot_be_written_down_exactly_is_nobodys_id(user_id):
    written = source(user_id)
    assert user_of(written) is None
    assert principal_of(written) is None
    assert user_of(source("x" * 200)) == "x" * 200


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ("42", "as a list"),
        ([""], "platform's own"),
        ([" 42"], "platform's own"),
        ([True], "platform's own"),
        ([4.2], "platform's own"),
        (["*"], "open = true"),
    ],
)
@pytest.mark.parametrize("field", ["operators", "users", "chats"])
def test_ids_that_could_mean_something_else_are_refused(field, ids, why):
    with pytest.raises(ValueError, match=why):
        PlatformRules(**{field: ids})


def test_rules_for_one_account_come_before_those_of_the_platform():
    ours, theirs = PlatformRules(users=["1"]), PlatformRules(users=["2"])
    access = AccessPolicy(rules={"slack": ours, ("slack", "T2"): theirs})
    assert access.rules_of(Source("slack", "T1")) is ours
    assert access.rules_of(Source("slack", "T2")) is theirs
    assert access.rules_of(Source("slack/T2")) is None
    assert access.rules_of(Source("signal", "T2")) is None


def test_a_terminal_needs_no_rules_and_no_network_can_be_one():
    access = AccessPolicy(local=frozenset({"console", "stdio"}))
    assert access.is_local(Source("console", user_id="operator"))
    assert access.is_local(Source("stdio", user_id="operator"))
    assert not access.is_local(Source("console", user_id="Operator"))
    assert not access.is_local(Source("console"))
    assert not access.is_local(Source("telegram", user_id="operator"))
    for name in ("console", ("console", "x")):
        with pytest.raises(ValueError, match="operator's own"):
            AccessPolicy(rules={name: PlatformRules(open=True)})


# The rule for starting


@pytest.mark.parametrize(
    "rules",
    [
        PlatformRules(users=["1"]),
        PlatformRules(operators=["1"]),
        PlatformRules(chats=["1"]),
        PlatformRules(open=True),
        PlatformRules(pairing=True),
    ],
)
def test_a_network_starts_with_somebody_named_with_pairing_asked_for_or_open(rules):
    assert require_rules("telegram", rules) is rules


@pytest.mark.parametrize("rules", [None, PlatformRules(), PlatformRules(pairing=False)])
def test_without_any_of_it_a_network_does_not_start(rules):
    with pytest.raises(ValueError, match=r"telegram would let nobody in: .* open = true"):
        require_rules("telegram", rules)


def test_who_was_let_in_before_is_reason_enough_where_there_are_rules():
    assert require_rules("telegram", PlatformRules(), paired=True) == PlatformRules()
    with pytest.raises(ValueError, match="nobody"):
        require_rules("telegram", None, paired=True)


def test_no_network_can_call_itself_the_console():
    with pytest.raises(ValueError, match="terminal"):
        require_rules("console", PlatformRules(open=True))


# Roles


def test_a_role_may_what_those_before_it_may():
    assert [may(a, b) for a in ROLES for b in ROLES] == [
        *(True, False, False), *(True, True, False), *(True, True, True),
    ]  # fmt: skip


def test_what_costs_or_permits_something_is_not_for_guests():
    for_guests = {name for name, each in COMMANDS.items() if each.role == "guest"}
    assert for_guests == {"new", "retry", "undo", "stop", "queue", "steer", "help", "whoami"}
    for_operators = {name for name, each in COMMANDS.items() if each.role == "operator"}
    assert for_operators == {"pair", "unpair"}


# Codes


def test_a_code_has_forty_bits_and_no_look_alikes():
    assert len(set(pairing.ALPHABET)) == 32
    assert not set("ILOU") & set(pairing.ALPHABET)
    codes = {pairing.new_code() for _ in range(2000)}
    assert len(codes) == 2000
    assert all(
        re.fullmatch(rf"[{pairing.ALPHABET}]{{4}}-[{pairing.ALPHABET}]{{4}}", c) for c in codes
    )
    for place in (0, 1, 2, 3, 5, 6, 7, 8):
        assert {code[place] for code in codes} == set(pairing.ALPHABET)


@pytest.mark.parametrize("typed", ["AB01-EF10", "ab01-ef10", "ABO1EFIO", "abol-eflo", "AB01–EF10"])
def test_a_code_is_read_however_it_was_typed(typed):
    assert pairing.read_code(typed) == "AB01-EF10"


@pytest.mark.parametrize(
    "typed", ["", "AB01", "AB01-EF1", "AB01-EF10X", "UUUU-UUUU", "AB01-EF1٣", "A B01EF10"]
)
def test_what_cannot_be_a_code_is_none(typed):
    assert pairing.read_code(typed) is None


@given(st.text(max_size=12))
def test_anything_can_be_typed(typed):
    code = pairing.read_code(typed)
    assert code is None or pairing.read_code(code) == code


@given(st.text())
def test_what_a_stranger_calls_himself_cannot_harm_a_terminal(name):
    shown = pairing.describe(source("42", user_name=name))
    assert shown.isprintable()
    assert len(shown) < 250
    assert not name or "unverified" in shown


# Rates


class Hands:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_bucket_is_full_at_first_empties_and_fills_again():
    clock = Hands()
    buckets = RateLimiter(RateLimit(per_minute=60, burst=3), clock)
    took = [buckets.take(buckets.of("a")) for _ in range(5)]
    assert took == [True, True, True, False, False]
    clock.now += 0.9
    assert not buckets.take(buckets.of("a"))
    clock.now += 0.2
    assert buckets.take(buckets.of("a"))
    assert not buckets.take(buckets.of("a"))
    clock.now += 1000
    assert [buckets.take(buckets.of("a")) for _ in range(4)] == [True, True, True, False]


def test_a_bucket_goes_by_when_something_was_sent_and_no_time_flows_twice():
    buckets = RateLimiter(RateLimit(per_minute=60, burst=1), Hands())
    took = [buckets.take(buckets.of("a", at)) for at in (1e9, 1e9 + 1, 1e9 + 1, 1e9 + 2)]
    assert took == [True, True, False, True]
    for at in (5.0, 1e9 + 2, 5.0, 1e9 + 2):  # an edit of something old, again and again
        assert not buckets.take(buckets.of("a", at))


def test_one_bucket_is_not_anothers():
    buckets = RateLimiter(RateLimit(burst=1), Hands())
    assert buckets.take(buckets.of("a"))
    assert not buckets.take(buckets.of("a"))
    assert buckets.take(buckets.of("b"))


def test_buckets_are_bounded_and_the_least_used_go_first():
    buckets = RateLimiter(RateLimit(burst=1), Hands(), limit=3)
    for name in ("a", "b", "c"):
        assert buckets.take(buckets.of(name))
    buckets.of("a")
    buckets.of("d")
    assert len(buckets) == 3
    assert not buckets.take(buckets.of("a"))
    assert buckets.take(buckets.of("b"))


def test_it_is_told_once_a_minute():
    clock = Hands()
    buckets = RateLimiter(RateLimit(), clock)
    told = []
    for _ in range(5):
        told.append(buckets.may_tell(buckets.of("a")))
        clock.now += 25
    assert told == [True, False, False, True, False]


def test_a_clock_that_goes_back_gives_nothing():
    clock = Hands()
    buckets = RateLimiter(RateLimit(burst=1), clock)
    buckets.take(buckets.of("a"))
    clock.now -= 50
    assert not buckets.take(buckets.of("a"))


@pytest.mark.parametrize("rates", [{"per_minute": 0}, {"per_minute": -1}, {"burst": 0}])
def test_rates_that_would_let_nothing_through_are_refused(rates):
    with pytest.raises(ValueError, match="above zero"):
        RateLimit(**rates)


async def test_the_clock_is_trios(autojump_clock):
    buckets = RateLimiter(RateLimit(per_minute=60, burst=1))
    assert buckets.take(buckets.of("a"))
    assert not buckets.take(buckets.of("a"))
    await trio.sleep(1.01)
    assert buckets.take(buckets.of("a"))


# Two accounts of one platform


parts = st.text(alphabet="ab:%/", max_size=4)


@given(st.lists(parts, min_size=6, max_size=6))
def test_with_a_profile_for_each_account_two_never_share_a_conversation(ids):
    account, chat, user, *other = ids
    first = Source("telegram", f"a{account}", chat, "group", None, user)
    second = Source("telegram", f"a{other[0]}", other[1], "group", None, other[2])
    same = session_key(first, profile=first.account) == session_key(second, profile=second.account)
    assert same == (ids[:3] == ids[3:])


# What an adapter of a network may touch

LOCAL = {"console", "jsonrpc"}
"""Adapters that are the operator's own: they may do with conversations what he may."""
FOR_NETWORKS = {"submit", "events", "statistics", "remember", "recall"}
"""The last two keep an adapter's own notes, and touch no conversation."""


def touched(code):
    """The verbs of a runtime that a module mentions."""
    return {
        node.attr
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute)
        and getattr(node.value, "attr", getattr(node.value, "id", "")) in {"runtime", "_runtime"}
    }


def test_an_adapter_of_a_network_submits_and_listens_and_does_nothing_else():
    for path in (ROOT / "hermes" / "adapters").rglob("*.py"):
        name = path.relative_to(ROOT / "hermes" / "adapters").parts[0].removesuffix(".py")
        if name not in LOCAL:
            assert touched(path.read_text()) <= FOR_NETWORKS, path


def test_what_is_looked_for_is_found():
    code = "self.runtime.submit(x); runtime.switch(k, t); self._runtime.history(k); other.close()"
    assert touched(code) == {"submit", "switch", "history"}
