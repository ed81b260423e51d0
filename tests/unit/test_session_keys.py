"""`session_key`: the documented forms, and that no two conversations share a key."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, strategies as st

from hermes.messages import Source
from hermes.session_keys import MAX_LENGTH, chat_of, session_key
from hermes.store.conversations import routes


def key(*, profile=None, shared=False, threads_per_user=False, **source):
    source = Source(**{"platform": "telegram", **source})
    return session_key(source, profile=profile, shared=shared, threads_per_user=threads_per_user)


def meaning(source, profile, shared, threads_per_user):
    """Return the parts that the key depends on; an empty id is a missing one."""
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
def test_common_keys_have_the_documented_form(source, expected):
    assert key(**source) == expected


def test_each_profile_has_its_own_keys():
    group = {"chat_type": "group", "chat_id": "g", "user_id": "ALT"}
    assert key(**group, profile="coder") == "agent:coder:telegram:group:g:ALT"
    assert key(**group, profile="") == key(**group) == "agent:main:telegram:group:g:ALT"


def test_a_shared_chat_has_one_key_for_all_participants():
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


def test_direct_messages_with_an_empty_chat_id_are_separated_by_user():
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
def test_everything_except_visible_ascii_is_escaped(chat, written):
    assert key(chat_id=chat) == f"agent:main:telegram:dm:{written}"


def test_small_sources_share_a_key_only_if_they_mean_the_same():
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
def test_two_keys_are_equal_exactly_if_their_sources_mean_the_same(one, other):
    assert (of(one) == of(other)) == (meaning(*one) == meaning(*other))


@given(address=ADDRESSES)
def test_the_store_accepts_every_key(address):
    assert routes.require_key(of(address)) == of(address)


def test_the_length_limit_is_that_of_the_store():
    assert MAX_LENGTH == routes.MAX_KEY
    prefix = "agent:main:telegram:dm:"
    longest = "x" * (MAX_LENGTH - len(prefix))
    assert key(chat_id=longest) == prefix + longest
    longer = key(chat_id=longest + "x")
    assert len(longer) == MAX_LENGTH
    assert longer.startswith(prefix + "x" * 800)
    assert routes.require_key(longer) == longer


def test_long_keys_differ_even_if_only_their_ends_differ():
    long = "x" * 5000
    assert len({key(chat_id=long), key(chat_id=long + "y"), key(chat_id=long, thread_id="y")}) == 3


def test_an_id_cannot_imitate_the_digest_of_a_long_key():
    long = key(chat_id="x" * 5000)
    chosen = long.removeprefix("agent:main:telegram:dm:")
    assert key(chat_id=chosen) != long


# Two accounts of one platform


parts = st.text(alphabet="ab:%/", max_size=4)


@given(st.lists(parts, min_size=6, max_size=6))
def test_two_accounts_with_a_profile_each_never_share_a_conversation(ids):
    account, chat, user, *other = ids
    first = Source("telegram", f"a{account}", chat, "group", None, user)
    second = Source("telegram", f"a{other[0]}", other[1], "group", None, other[2])
    same = session_key(first, profile=first.account) == session_key(second, profile=second.account)
    assert same == (ids[:3] == ids[3:])


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (Source("telegram", chat_id="42", user_id="42"), {}),
        (Source("telegram", chat_id="4:2%", thread_id="t 1"), {}),
        (Source("console", chat_id="console"), {}),
        (Source("telegram", chat_id="-1", chat_type="group", user_id="7"), {}),
        (Source("telegram", chat_id="-1", chat_type="group", user_id="7"), {"shared": True}),
        (Source("x", chat_id="-1", chat_type="channel", thread_id="3"), {}),
        (
            Source("x", chat_id="-1", chat_type="group", thread_id="3", user_id="7"),
            {"threads_per_user": True},
        ),
    ],
)
def test_a_key_names_its_chat(source, options):
    chat = chat_of(session_key(source, **options))
    found = (chat.platform, chat.chat_type, chat.chat_id, chat.thread_id)
    assert found == (source.platform, source.chat_type, source.chat_id, source.thread_id)


@pytest.mark.parametrize(
    "key",
    ["", "me", "agent:main:telegram:dm", "agent:main:telegram:dm:", "agent:main:x:dm:1:2:3",
     "agent:main:x:group:1:2:3:4", session_key(Source("x", chat_id="c" * 2000))],
)  # fmt: skip
def test_other_keys_name_no_chat(key):
    with pytest.raises(ValueError, match="not the session key of a chat"):
        chat_of(key)
