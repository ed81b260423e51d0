"""`session_key`: the documented forms, and that no two conversations share a key."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, strategies as st

from hermes.messages import Source
from hermes.session_keys import MAX_LENGTH, session_key
from hermes.store.conversations import routes


def key(*, profile=None, shared=False, threads_per_user=False, **source):
    source = Source(**{"platform": "telegram", **source})
    return session_key(source, profile=profile, shared=shared, threads_per_user=threads_per_user)


def meaning(source, profile, shared, threads_per_user):
    """The parts that count, each under its name; an empty id is none."""
    chat, thread, user = (x or None for x in (source.chat_id, source.thread_id, source.user_id))
    place = (profile or "main", source.platform, source.chat_type)
    if source.chat_type == "dm":
        return (*place, chat or user, thread)
    counts = not shared and (thread is None or threads_per_user)
    return (*place, chat, thread, user if counts else None)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"chat_id": "c1"}, "agent:main:telegram:dm:c1"),
        ({"chat_id": "c1", "user_id": "u1"}, "agent:main:telegram:dm:c1"),
        ({"chat_id": "c1", "thread_id": "t"}, "agent:main:telegram:dm:c1:t"),
        ({"user_id": "u1"}, "agent:main:telegram:dm:u1"),
        ({"user_id": "u1", "thread_id": "t"}, "agent:main:telegram:dm:u1:t"),
        ({}, "agent:main:telegram:dm"),
        ({"chat_type": "group", "chat_id": "g", "user_id": "u1"}, "agent:main:telegram:group:g:u1"),
        ({"chat_type": "group", "chat_id": "g"}, "agent:main:telegram:group:g"),
        ({"chat_type": "channel"}, "agent:main:telegram:channel"),
        (
            {"chat_type": "group", "chat_id": "-1001234", "user_id": "@a_b-c.d+e/f"},
            "agent:main:telegram:group:-1001234:@a_b-c.d+e/f",
        ),
    ],
)
def test_common_keys_read_as_documented(source, expected):
    assert key(**source) == expected


def test_a_profile_has_keys_of_its_own():
    group = {"chat_type": "group", "chat_id": "g", "user_id": "ALT"}
    assert key(**group, profile="coder") == "agent:coder:telegram:group:g:ALT"
    assert key(**group, profile="") == key(**group) == "agent:main:telegram:group:g:ALT"


def test_a_shared_chat_has_one_key_for_all_who_speak_in_it():
    group = {"chat_type": "group", "chat_id": "g"}
    assert key(**group, user_id="u1", shared=True) == "agent:main:telegram:group:g"
    assert key(**group, user_id="u1") != key(**group, user_id="u2")


def test_a_thread_is_shared_unless_it_is_configured_per_user():
    thread = {"chat_type": "group", "chat_id": "g", "thread_id": "t"}
    assert key(**thread, user_id="u1") == key(**thread, user_id="u2")
    assert key(**thread, user_id="u1") == "agent:main:telegram:group:g:t:"
    own = key(**thread, user_id="u1", threads_per_user=True)
    assert own == "agent:main:telegram:group:g:t:u1"
    assert key(**thread, user_id="u1", threads_per_user=True, shared=True) == key(**thread)


def test_a_thread_is_never_mistaken_for_a_chat_or_a_participant():
    group = {"chat_type": "group"}
    assert key(**group, chat_id="g", thread_id="x") != key(**group, chat_id="g", user_id="x")
    assert key(**group, thread_id="x") != key(**group, chat_id="x")
    assert key(thread_id="x") == "agent:main:telegram:dm::x" != key(chat_id="x")


def test_direct_messages_with_an_empty_chat_id_are_kept_apart_by_user():
    assert key(chat_id="", user_id="u1") == "agent:main:telegram:dm:u1"


@pytest.mark.parametrize(
    ("chat", "written"),
    [
        ("a:b", "a%3Ab"),
        ("a%3Ab", "a%253Ab"),
        (" ", "%20"),
        ("a\n\x00", "a%0A%00"),
        ("ü", "%C3%BC"),
        ("\ud83d", "%ED%A0%BD"),
        ("\u200b", "%E2%80%8B"),
    ],
)
def test_whatever_is_not_visible_ascii_is_escaped(chat, written):
    assert key(chat_id=chat) == f"agent:main:telegram:dm:{written}"


def test_among_all_small_sources_only_those_that_mean_the_same_share_a_key():
    parts = [None, "", "x", "x:x", ":", "%", "%3A", "*"]
    kinds = ["dm", "group", "", "dm:x"]
    meanings = {}
    for chat, thread, user in itertools.product(parts, repeat=3):
        for kind, shared, own in itertools.product(kinds, [False, True], [False, True]):
            source = Source("p", "", chat, kind, thread, user)
            made = session_key(source, shared=shared, threads_per_user=own)
            meant = meaning(source, None, shared, own)
            assert meanings.setdefault(made, meant) == meant
    assert len(meanings) == len(set(meanings.values()))


PARTS = st.none() | st.text(alphabet=":%3Aax \n\u00e9\ud800", max_size=4) | st.text(max_size=400)
ADDRESSES = st.tuples(
    st.builds(
        Source,
        platform=st.text(max_size=3) | st.just("telegram"),
        chat_id=PARTS,
        chat_type=st.sampled_from(["dm", "group", "channel"]) | st.text(max_size=3),
        thread_id=PARTS,
        user_id=PARTS,
    ),
    PARTS,
    st.booleans(),
    st.booleans(),
)


def of(address):
    source, profile, shared, threads_per_user = address
    return session_key(source, profile=profile, shared=shared, threads_per_user=threads_per_user)


@given(one=ADDRESSES, other=ADDRESSES)
@example(
    one=(Source("p", "", "x", "group", None, "y"), None, False, False),
    other=(Source("p", "", "x", "group", "y", "u"), None, False, False),
)
def test_two_keys_are_equal_exactly_if_they_mean_the_same(one, other):
    assert (of(one) == of(other)) == (meaning(*one) == meaning(*other))


@given(address=ADDRESSES)
def test_the_store_takes_every_key(address):
    assert routes.require_key(of(address)) == of(address)


def test_the_longest_key_is_as_long_as_the_store_takes_it():
    assert MAX_LENGTH == routes.MAX_KEY
    prefix = "agent:main:telegram:dm:"
    longest = "x" * (MAX_LENGTH - len(prefix))
    assert key(chat_id=longest) == prefix + longest
    longer = key(chat_id=longest + "x")
    assert len(longer) == MAX_LENGTH
    assert longer.startswith(prefix + "x" * 800)
    assert routes.require_key(longer) == longer


def test_keys_that_are_too_long_differ_where_only_their_ends_do():
    long = "x" * 5000
    assert len({key(chat_id=long), key(chat_id=long + "y"), key(chat_id=long, thread_id="y")}) == 3


def test_nobody_can_choose_an_id_that_looks_like_the_digest_of_a_long_key():
    long = key(chat_id="x" * 5000)
    chosen = long.removeprefix("agent:main:telegram:dm:")
    assert key(chat_id=chosen) != long
