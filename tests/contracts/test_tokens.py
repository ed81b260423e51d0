"""Bearer tokens: what makes one valid, and what it lets in."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hermes.messages import Principal, Token

DAY = 86_400.0
ANN = Token(id="tok_1", name="ann", namespace="home", roles=("user",), created_at=0.0)


def principal(store, token=ANN):
    return store.find_principal("http", token.id, token.id)


def test_a_token_is_found_by_the_hash_of_its_secret_and_is_a_principal(store, world):
    token = replace(ANN, keys=("agent:main:telegram:*",))
    added = store.add_token(token, "digest")
    assert added == replace(token, created_at=world.now)
    assert store.find_token("digest") == added
    assert store.find_token("another") is None
    assert store.valid_tokens() == ["tok_1"]
    assert store.valid_digests() == ["digest"]
    assert store.list_tokens() == [added]
    assert store.principals() == [Principal("http", "tok_1", "tok_1", "user", "ann", world.now)]


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        (("user",), "user"),
        (("operator",), "operator"),
        (("user", "operator"), "operator"),
        (("metrics", "user"), "user"),
        (("metrics",), None),
    ],
)
def test_the_role_of_its_principal_is_the_highest_and_metrics_is_none(store, roles, role):
    store.add_token(replace(ANN, roles=roles), "digest")
    assert principal(store) == role


def test_a_revoked_token_is_neither_valid_nor_a_principal(store, world):
    store.add_token(ANN, "digest")
    store.add_token(replace(ANN, id="tok_2", name="bob"), "other")
    world.pass_time(5)
    revoked = store.revoke_token("ann")
    assert revoked.revoked_at == world.now
    assert store.find_token("digest") is None
    assert store.valid_tokens() == ["tok_2"]
    assert store.valid_digests() == ["other"]
    assert store.principals()[0].user_id == "tok_2"
    assert principal(store) is None
    assert store.revoke_token("ann") is None
    assert store.list_tokens()[0] == revoked


def test_a_token_can_be_revoked_by_its_id(store):
    store.add_token(ANN, "digest")
    assert store.revoke_token("tok_2") is None
    assert store.revoke_token("tok_1").name == "ann"
    assert store.find_token("digest") is None


def test_an_expired_token_is_neither_valid_nor_a_principal(store, world):
    store.add_token(replace(ANN, expires_at=world.now + DAY), "digest")
    world.pass_time(DAY - 1)
    assert store.find_token("digest") is not None
    assert principal(store) == "user"
    world.pass_time(1)
    assert store.find_token("digest") is None
    assert store.valid_tokens() == []
    assert principal(store) is None
    assert store.principals() == []


def test_the_name_of_an_expired_or_revoked_token_can_be_used_again(store, world):
    store.add_token(replace(ANN, expires_at=world.now + DAY), "first")
    with pytest.raises(ValueError, match="already a token with the name 'ann'"):
        store.add_token(replace(ANN, id="tok_2"), "second")
    world.pass_time(DAY)
    store.add_token(replace(ANN, id="tok_2"), "second")
    store.revoke_token("ann")
    store.add_token(replace(ANN, id="tok_3"), "third")
    assert store.valid_tokens() == ["tok_3"]
    assert [token.revoked_at is None for token in store.list_tokens()] == [False, False, True]
    assert [each.user_id for each in store.principals()] == ["tok_3"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"roles": ()}, "at least one"),
        ({"roles": ("user", "admin")}, "not 'admin'"),
        ({"name": ""}, "name"),
        ({"name": "tok_2"}, "start with"),
        ({"namespace": " "}, "namespace"),
        ({"namespace": "ä" * 51}, "namespace"),
        ({"namespace": "\ud800"}, "namespace"),
        ({"keys": ("",)}, "pattern"),
        ({"keys": ("*",) * 101}, "patterns"),
        ({"expires_at": 1.0}, "expired"),
        ({"expires_at": float("inf")}, "expired"),
        ({"expires_at": float("nan")}, "expired"),
    ],
)
def test_a_token_that_is_not_valid_is_refused_and_nothing_is_stored(store, changes, reason):
    with pytest.raises(ValueError, match=reason):
        store.add_token(replace(ANN, **changes), "digest")
    assert store.list_tokens() == []
    assert store.principals() == []
