"""Access rules, without a runtime."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, strategies as st

from hermes.actors.admission.access import (
    AccessPolicy,
    PlatformRules,
    principal_of,
    require_rules,
    user_of,
)
from hermes.messages import Source

RULES = PlatformRules(operators=["1"], users=[42, "b"], chats=["-100"])


def source(user_id=None, chat_id=None, **fields):
    return Source(platform="telegram", user_id=user_id, chat_id=chat_id, **fields)


def test_users_have_their_configured_role_and_all_others_have_none():
    assert RULES.role_of(source("1")) == "operator"
    assert RULES.role_of(source("42")) == RULES.role_of(source("b")) == "user"
    assert RULES.role_of(source("2")) is None
    assert RULES.role_of(source()) is None


def test_a_configured_chat_makes_its_members_guests_and_lowers_no_role():
    assert RULES.role_of(source("2", "-100", chat_type="group")) == "guest"
    assert RULES.role_of(source(None, "-100", chat_type="channel")) == "guest"
    assert RULES.role_of(source("42", "-100", chat_type="group")) == "user"
    assert RULES.role_of(source("42", "-200", chat_type="group")) == "user"
    assert RULES.role_of(source("2", "-200", chat_type="group")) is None
    assert RULES.role_of(source("-100", "5")) is None
    assert RULES.role_of(source("2", "42")) is None


def test_on_an_open_platform_unknown_users_are_guests():
    everybody = attrs.evolve(RULES, open=True)
    assert everybody.role_of(source("2")) == everybody.role_of(source()) == "guest"
    assert everybody.role_of(source("1")) == "operator"


LOOKALIKES = ["B", " b", "b ", "ｂ", "в", "b\u200b", "b\u0301", "b\x00", "", "%62", "b:", "*"]


@pytest.mark.parametrize("user_id", LOOKALIKES)
def test_an_id_that_looks_similar_is_a_different_id(user_id):
    assert RULES.role_of(source(user_id)) is None


@given(st.text(max_size=5), st.text(max_size=5))
def test_ids_are_compared_exactly(named, written):
    try:
        rules = PlatformRules(users=[named])
    except ValueError:
        return
    assert (rules.role_of(source(written)) == "user") == (written == named)


@given(name=st.text(max_size=9))
def test_user_names_are_ignored(name):
    assert RULES.role_of(source("2", user_name=name)) is None
    assert RULES.role_of(source("42", user_name=name)) == "user"


@pytest.mark.parametrize("user_id", ["", None, "\ud800", "b\udfff", "x" * 201])
def test_an_empty_overlong_or_invalid_id_is_not_usable(user_id):
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
def test_ambiguous_ids_are_refused(field, ids, why):
    with pytest.raises(ValueError, match=why):
        PlatformRules(**{field: ids})


def test_rules_of_an_account_take_precedence_over_those_of_its_platform():
    ours, theirs = PlatformRules(users=["1"]), PlatformRules(users=["2"])
    access = AccessPolicy(rules={"slack": ours, ("slack", "T2"): theirs})
    assert access.rules_of(Source("slack", "T1")) is ours
    assert access.rules_of(Source("slack", "T2")) is theirs
    assert access.rules_of(Source("slack/T2")) is None
    assert access.rules_of(Source("signal", "T2")) is None


def test_local_platforms_need_no_rules_and_accept_none():
    access = AccessPolicy(local=frozenset({"console", "stdio"}))
    assert access.is_local(Source("console", user_id="operator"))
    assert access.is_local(Source("stdio", user_id="operator"))
    assert not access.is_local(Source("console", user_id="Operator"))
    assert not access.is_local(Source("console"))
    assert not access.is_local(Source("telegram", user_id="operator"))
    for name in ("console", ("console", "x")):
        with pytest.raises(ValueError, match="local to the operator"):
            AccessPolicy(rules={name: PlatformRules(open=True)})


# Whether a network platform may start


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
def test_a_network_platform_starts_if_anyone_could_get_in(rules):
    assert require_rules("telegram", rules) is rules


@pytest.mark.parametrize("rules", [None, PlatformRules(), PlatformRules(pairing=False)])
def test_a_network_platform_does_not_start_if_nobody_could_get_in(rules):
    with pytest.raises(ValueError, match=r"telegram would let nobody in: .* open = true"):
        require_rules("telegram", rules)


def test_a_paired_user_is_enough_to_start_if_there_are_rules():
    assert require_rules("telegram", PlatformRules(), paired=True) == PlatformRules()
    with pytest.raises(ValueError, match="nobody"):
        require_rules("telegram", None, paired=True)


def test_a_network_platform_cannot_be_named_console():
    with pytest.raises(ValueError, match="terminal"):
        require_rules("console", PlatformRules(open=True))
