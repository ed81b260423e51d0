"""Bearer tokens: what makes one valid, and what it lets in."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hermes.messages import Person, Principal, Source, Token
from hermes.store.records import sign_ins

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


# Sessions of the web page

SESSION = Token(id="web_1", name="", namespace="", roles=(), created_at=0.0, client="Firefox")
PERSON = Person(namespace="usr_1", name="Ann", role="user")


def test_a_one_time_token_opens_one_session(store, world):
    store.add_sign_in("once", PERSON)
    assert store.find_sign_in("once") == PERSON
    session = store.sign_in("once", replace(SESSION, expires_at=world.now + DAY), "secret")
    assert (session.platform, session.name, session.namespace) == ("web", "Ann", "usr_1")
    assert (session.roles, session.client, session.created_at) == (("user",), "Firefox", world.now)
    assert store.find_token("secret") == session
    assert store.find_principal("web", "web_1", "usr_1") == "user"
    assert store.find_principal("http", "web_1", "web_1") is None
    assert store.find_sign_in("once") is None
    assert store.sign_in("once", replace(SESSION, id="web_2"), "other") is None
    assert store.sign_in("unknown", replace(SESSION, id="web_2"), "other") is None
    assert store.valid_tokens() == ["web_1"]


@pytest.mark.parametrize("seconds", [60, -60, 1000, -1000])
def test_a_one_time_token_lasts_a_minute_also_if_the_clock_was_wrong(store, world, seconds):
    store.add_sign_in("once", PERSON)
    world.pass_time(seconds)
    assert store.find_sign_in("once") is None
    assert store.sign_in("once", SESSION, "secret") is None
    world.pass_time(-seconds)
    store.add_sign_in("another", PERSON)
    world.pass_time(59)
    assert store.sign_in("another", SESSION, "secret") is not None


def test_one_time_tokens_are_few_and_can_be_cleared(store, world, sql):
    for number in range(sign_ins.MAX_WAITING + 5):
        world.pass_time(0.01)
        store.add_sign_in(f"once {number}", PERSON)
    assert sql("SELECT count(*) FROM sign_ins") == [[sign_ins.MAX_WAITING]]
    assert store.find_sign_in("once 0") is None
    assert store.find_sign_in(f"once {sign_ins.MAX_WAITING + 4}") == PERSON
    store.clear_sign_ins()
    assert sql("SELECT count(*) FROM sign_ins") == [[0]]


def open_session(store, number, person=PERSON):
    store.add_sign_in(f"once {number}", person)
    return store.sign_in(f"once {number}", replace(SESSION, id=f"web_{number}"), f"s{number}")


def test_people_and_tokens_may_have_the_same_name(store):
    store.add_token(replace(ANN, name="Ann"), "digest")
    open_session(store, 1)
    open_session(store, 2)
    assert len(store.valid_tokens()) == 3
    assert store.revoke_token("Ann").id == "tok_1"
    assert store.revoke_token("Ann") is None
    assert store.revoke_token("web_1").id == "web_1"
    assert store.valid_tokens() == ["web_2"]
    assert store.find_principal("web", "web_1", "usr_1") is None
    assert store.find_principal("web", "web_2", "usr_1") == "user"


def test_an_expired_session_is_no_principal(store, world):
    store.add_sign_in("once", PERSON)
    store.sign_in("once", replace(SESSION, expires_at=world.now + DAY), "secret")
    world.pass_time(DAY)
    assert store.find_token("secret") is None
    assert store.find_principal("web", "web_1", "usr_1") is None


def test_a_person_has_a_bounded_number_of_sessions(store, world):
    for number in range(sign_ins.MAX_SESSIONS + 2):
        world.pass_time(1)
        open_session(store, number)
    open_session(store, 1000, replace(PERSON, namespace="usr_2"))
    valid = set(store.valid_tokens())
    assert len(valid) == sign_ins.MAX_SESSIONS + 1
    assert not {"web_0", "web_1"} & valid


def test_sessions_that_ended_long_ago_are_deleted_and_tokens_are_kept(store, world):
    store.add_token(ANN, "digest")
    store.revoke_token("ann")
    open_session(store, 1)
    store.revoke_token("web_1")
    world.pass_time(sign_ins.KEPT_SECONDS + 1)
    open_session(store, 2)
    assert [each.id for each in store.list_tokens()] == ["tok_1", "web_2"]


def test_removing_a_person_revokes_its_sessions(store):
    open_session(store, 1)
    open_session(store, 2)
    open_session(store, 3, replace(PERSON, namespace="usr_2"))
    assert store.unpair("web", "usr_1") == 2
    assert store.valid_tokens() == ["web_3"]
    assert [each.user_id for each in store.principals()] == ["usr_2"]


def test_a_person_who_was_let_in_with_a_code_signs_in_once(store, world):
    source = Source("web", chat_id="usr_1", user_id="usr_1", user_name="Ann")
    assert store.sign_in_paired("usr_1", SESSION, "secret") is None
    assert store.request_pairing(source, "key", "AAAA-0001", salt="00")
    assert store.sign_in_paired("usr_1", SESSION, "secret") is None
    store.approve_pairing("AAAA-0001", "operator", Source("console", user_id="operator"))
    session = store.sign_in_paired("usr_1", SESSION, "secret")
    assert (session.name, session.namespace, session.roles) == ("Ann", "usr_1", ("operator",))
    assert store.sign_in_paired("usr_1", replace(SESSION, id="web_2"), "other") is None
    assert [(each.account, each.role) for each in store.principals()] == [("web_1", "operator")]


def test_a_person_who_was_let_in_signs_in_within_an_hour(store, world):
    source = Source("web", chat_id="usr_1", user_id="usr_1", user_name=None)
    store.request_pairing(source, "key", "AAAA-0001", salt="00")
    store.approve_pairing("AAAA-0001", "user", Source("console", user_id="operator"))
    world.pass_time(3600)
    assert store.sign_in_paired("usr_1", SESSION, "secret") is None
