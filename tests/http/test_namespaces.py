"""Which conversations belong to a token: no name reaches another namespace."""

from __future__ import annotations

import string
from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, example, given, strategies as st

from hermes.adapters.http.credentials import Caller
from hermes.messages import Token
from hermes.session_keys import MAX_LENGTH, background_key

# What could be mistaken for a separator, an escape, or a pattern.
HOSTILE = st.text("a:%*?[]3AbB!-\\/.~ é\U0001f600\n\x00", max_size=25)
NAMESPACES = (HOSTILE | st.text(string.printable, max_size=100)).filter(
    lambda text: text.strip() and len(text.encode()) <= 100
)
NAMES = (
    HOSTILE
    | st.text(max_size=50)
    | st.sampled_from(["x" * size for size in (900, 950, 1000, 1100)])
)


def caller(namespace, *keys, id_="tok_1", roles=("user",)):
    return Caller(
        Token(id=id_, name="n", namespace=namespace, roles=roles, keys=keys, created_at=0.0)
    )


@given(NAMESPACES, NAMES)
def test_a_caller_owns_its_conversations(namespace, name):
    assume(name)
    own = caller(namespace)
    assert own.owns(own.key(name))
    assert own.owns(background_key(own.key(name), 7))
    assert len(own.key(name)) <= MAX_LENGTH
    assert caller(namespace, id_="tok_2").key(name) == own.key(name)


@given(NAMESPACES, NAMESPACES, NAMES)
@example("a", "ab", "b:c")
@example("a", "a:b", "b:c")
@example("a", "a%3Ab", "c")
@example("a%", "a%25", "c")
@example("*", "a", "c")
@example("a", "A", "c")
@example("é", "e\u0301", "c")
@example("a" * 99, "a" * 100, "x" * 1100)
def test_no_name_reaches_another_namespace(one, other, name):
    assume(one != other)
    key = caller(one).key(name)
    assert not caller(other).owns(key)
    assert not caller(other).owns(background_key(key, 7))


@given(NAMESPACES, NAMES, NAMES)
def test_different_names_are_different_conversations(namespace, one, other):
    assume(one != other)
    own = caller(namespace)
    assert own.key(one) != own.key(other)


@pytest.mark.parametrize(
    "key",
    [
        "", "agent", "agent:main:http:dm:a", "agent:main:http:dm:ab:c", "agent:main:http:dm::a:c",
        "agent:other:http:dm:a:c", "agent:main:http:group:a:c", "agent:main:telegram:dm:a:c",
        "agent:main:http:dm:A:c", " agent:main:http:dm:a:c", "agent:main:http:dm:%61:c",
    ],
)  # fmt: skip
def test_keys_that_only_resemble_its_own_do_not_belong_to_a_caller(key):
    assert caller("a").owns("agent:main:http:dm:a:c")
    assert not caller("a").owns(key)


def test_a_pattern_adds_keys_outside_the_namespace():
    own = caller("a", "agent:main:telegram:*", "agent:main:http:dm:b:name%3Ax")
    assert own.owns("agent:main:telegram:dm:42")
    assert own.owns("agent:main:http:dm:b:name%3Ax")
    assert not own.owns("agent:main:http:dm:b:name%3Axy")
    assert not own.owns("agent:main:signal:dm:42")
    assert not own.owns("xagent:main:telegram:dm:42")


@given(NAMESPACES, NAMES, st.lists(HOSTILE, max_size=3))
def test_a_pattern_adds_nothing_but_what_it_matches(namespace, name, patterns):
    assume(namespace != "a")
    key = caller(namespace).key(name)
    expected = any(fnmatchcase(key, pattern) for pattern in patterns)
    assert caller("a", *patterns).owns(key) == expected


@pytest.mark.parametrize(
    ("roles", "has"),
    [
        (("user",), {"user"}),
        (("operator",), {"user", "operator"}),
        (("metrics",), {"metrics"}),
        (("user", "metrics"), {"user", "metrics"}),
        (("operator", "metrics"), {"user", "operator", "metrics"}),
        ((), set()),
    ],
)
def test_operator_includes_user_and_nothing_includes_metrics(roles, has):
    own = caller("a", roles=roles)
    assert {role for role in ("user", "operator", "metrics", "") if own.has_role(role)} == has
