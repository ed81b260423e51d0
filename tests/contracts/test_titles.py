"""Titles and lineage."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from hermes.errors import AmbiguousTitle, UnknownSession
from hermes.messages import Title
from hermes.store import Rotation
from hermes.store.conversations.titles import MAX_LENGTH, sanitize_title


def rotate(store, parent, child, **options):
    head = store.head(parent)
    done = Rotation(
        session_id=parent,
        child_session_id=child,
        messages=[],
        rotation_id=child,
        rewrites=head.rewrites,
        upto=0,
        **options,
    )
    return store.rotate(done)


@pytest.mark.parametrize(
    ("given_title", "kept"),
    [
        ("  My \t chat\r\nhere ", "My chat here"),
        ("a\x00b\u200bc\u202ed\ufeffe\ufffcf\ud800g", "abcdefg"),
        ("\u200b\x07 ", None),
        ("", None),
        (None, None),
        ("x" * 100, "x" * 100),
        ("日本語 タイトル", "日本語 タイトル"),
    ],
)
def test_a_title_is_cleaned(given_title, kept):
    assert sanitize_title(given_title) == kept


@given(st.text())
def test_a_clean_title_is_short_visible_and_stays_as_it_is(text):
    try:
        clean = sanitize_title(text)
    except ValueError as error:
        assert "max 100" in str(error)  # noqa: PT017
        return
    if clean is not None:
        assert 0 < len(clean) <= MAX_LENGTH
        assert clean == " ".join(clean.split()) == sanitize_title(clean)
        clean.encode()


def test_a_title_that_is_too_long_is_refused_with_its_length(store):
    store.create_session("a", "tui")
    with pytest.raises(ValueError, match=r"Title too long \(101 chars, max 100\)"):
        store.set_session_title("a", "x" * 101)


def test_a_title_is_set_and_cleared_and_an_unknown_session_has_none(store):
    store.create_session("a", "tui")
    assert store.set_session_title("a", " My  chat ") is True
    assert store.get_session("a").title == "My chat"
    assert store.set_session_title("a", "") is True
    assert store.get_session("a").title is None
    assert store.set_session_title("nobody", "My chat") is False


def test_a_title_in_use_is_refused_naming_its_holder(store):
    store.create_session("a", "tui")
    store.create_session("b", "tui")
    store.set_session_title("a", "Chat")
    with pytest.raises(ValueError, match="Title 'Chat' is already in use by session a"):
        store.set_session_title("b", "Chat")
    assert store.set_session_title("a", "Chat") is True


def test_a_title_moves_only_from_a_compression_ancestor(store):
    store.create_session("a", "tui")
    store.set_session_title("a", "Chat")
    rotate(store, "a", "b")
    rotate(store, "b", "c")
    assert store.set_session_title("c", "Chat") is True
    titles = [store.get_session(i).title for i in ("a", "b", "c")]
    assert titles == [None, "Chat #2", "Chat"]
    with pytest.raises(ValueError, match="in use by session c"):
        store.set_session_title("a", "Chat")
    branch = store.branch("c", title="Else")
    with pytest.raises(ValueError, match="in use by session c"):
        store.set_session_title(branch, "Chat")


def test_an_automatic_title_never_overwrites(store):
    store.create_session("a", "tui")
    store.create_session("b", "tui")
    assert store.set_auto_title_if_empty("a", "Auto") is True
    assert store.set_auto_title_if_empty("a", "Other") is False
    assert store.set_auto_title_if_empty("nobody", "Other") is False
    assert store.set_auto_title_if_empty("b", " \u200b") is False
    assert store.set_auto_title_if_empty("b", "Auto") is True
    assert store.get_session("a").title == "Auto"
    assert store.get_session("b").title == "Auto #2"


def test_an_automatic_title_that_is_too_long_is_cut(store):
    for session_id in ("a", "b"):
        store.create_session(session_id, "tui")
        assert store.set_auto_title_if_empty(session_id, "x" * 99 + "  " + "y" * 50) is True
    assert store.get_session("a").title == "x" * 99
    assert store.get_session("b").title == "x" * 97 + " #2"


def test_an_automatic_title_goes_to_the_tip_of_the_conversation(store):
    store.create_session("a", "tui")
    rotate(store, "a", "b")
    assert store.set_auto_title_if_empty("a", "Auto") is True
    assert [store.get_session(i).title for i in ("a", "b")] == [None, "Auto"]


def test_numbering_continues_above_the_highest_number_in_use(store):
    assert store.get_next_title_in_lineage("Chat") == "Chat"
    assert store.get_next_title_in_lineage("Chat #7") == "Chat"
    for n, title in enumerate(["Chat", "Chat #2", "Chat #10", "Chat #x", "Chat # 99", "Chatter"]):
        store.create_session(f"s{n}", "tui")
        store.set_session_title(f"s{n}", title)
    assert store.get_next_title_in_lineage("Chat") == "Chat #11"
    assert store.get_next_title_in_lineage("Chat #2") == "Chat #11"
    assert store.get_next_title_in_lineage("Other #3") == "Other"


def test_an_exact_title_wins_over_a_numbered_one(store):
    """hermes-agent prefers the highest number; this is a deliberate difference."""
    for n, title in enumerate(["Chat", "Chat #2", "Chat #10", "100%_x"]):
        store.create_session(f"s{n}", "tui")
        store.set_session_title(f"s{n}", title)
    assert store.resolve_session_by_title("Chat") == "s0"
    assert store.resolve_session_by_title("Chat #2") == "s1"
    assert store.resolve_session_by_title("100%_x") == "s3"
    assert store.resolve_session_by_title("100__x") is None
    store.set_session_title("s0", None)
    assert store.resolve_session_by_title("Chat") == "s2"


def test_a_title_is_followed_to_the_tip_of_its_lineage(store):
    store.create_session("a", "tui")
    store.set_session_title("a", "Chat")
    rotate(store, "a", "b")
    store.create_session("other", "tui")
    store.set_session_title("other", "Chat #9")
    assert store.resolve_session_by_title("Chat") == "b"
    store.set_session_title("a", None)
    rotate(store, "other", "later")
    store.set_session_title("later", None)
    assert store.resolve_session_by_title("Chat") == "later"


# Titles per key


@pytest.fixture
def keyed(store):
    """A store with one session of each of two keys."""
    store.create_session("a", "tui", session_key="k1")
    store.create_session("b", "tui", session_key="k2")
    return store


def test_a_title_may_be_used_once_by_each_key(keyed):
    assert keyed.set_session_title("a", "Chat")
    assert keyed.set_session_title("b", "Chat")
    for session_id in ("c", "d"):
        keyed.create_session(session_id, "tui")
    assert keyed.set_session_title("c", "Chat")
    with pytest.raises(ValueError, match="Title 'Chat' is already in use by session c"):
        keyed.set_session_title("d", "Chat")
    assert [keyed.get_session(i).title for i in "abc"] == ["Chat"] * 3


@pytest.fixture
def shared(keyed):
    """The two keys, of which k1 has its own session "Chat" and has been moved to that of k2."""
    keyed.set_session_title("a", "Chat")
    keyed.switch("k1", "b", any_key=True)
    return keyed


@pytest.mark.parametrize("key", ["k1", "k2"])
def test_a_title_for_a_shared_session_is_refused_if_any_of_its_keys_has_it(shared, key):
    shared.switch(key, "b")
    in_use = "Title 'Chat' is already in use by session a"
    with pytest.raises(ValueError, match=in_use):
        shared.set_title(key, "Chat")
    with pytest.raises(ValueError, match=in_use):
        shared.set_session_title("b", "Chat")
    assert shared.get_session("b").title is None


def test_a_title_is_refused_if_a_shared_session_has_it(shared):
    shared.set_title("k1", "Plans")
    shared.set_title("k1", "Plans")
    in_use = "Title 'Plans' is already in use by session b"
    with pytest.raises(ValueError, match=in_use):
        shared.set_session_title("a", "Plans")
    with pytest.raises(ValueError, match=in_use):
        shared.new_session("k1", title="Plans")
    with pytest.raises(ValueError, match=in_use):
        shared.branch("a", title="Plans", session_key="k1")
    shared.create_session("c", "tui", session_key="k3")
    assert shared.set_session_title("c", "Plans")


def test_a_title_of_a_shared_session_moves_from_its_compression_ancestor(shared):
    shared.set_title("k1", "Plans")
    rotate(shared, "b", "child")
    assert shared.set_title("k1", "Plans") == ("child", Title("Plans"))
    assert shared.get_session("b").title is None


def test_titles_that_hermes_makes_skip_those_of_shared_sessions(shared):
    shared.set_session_title("b", "Plans")
    assert shared.get_next_title_in_lineage("Plans", session_key="k1") == "Plans #2"
    shared.create_session("c", "tui", session_key="k1")
    assert shared.set_auto_title_if_empty("c", "Plans")
    assert shared.get_session("c").title == "Plans #2"


def test_titles_that_hermes_makes_for_a_shared_session_skip_those_of_all_its_keys(shared):
    assert shared.set_auto_title_if_empty("b", "Chat")
    assert shared.get_session("b").title == "Chat #2"
    shared.create_session("c", "tui", session_key="k1")
    shared.set_session_title("c", "Chat #3")
    rotate(shared, "b", "child")
    assert shared.get_session("child").title == "Chat #4"


def test_a_pending_title_for_a_shared_session_skips_those_of_all_its_keys(shared):
    shared.transact(
        lambda tx: tx.run("UPDATE routes SET pending_title = 'Chat' WHERE session_key = 'k1'")
    )
    assert shared.apply_pending_title("k1") == "Chat #2"


@pytest.mark.parametrize("target", ["b", "child"])
def test_sharing_a_session_numbers_the_titles_that_the_key_has(keyed, target):
    keyed.set_session_title("b", "Chat")
    rotate(keyed, "b", "child")
    keyed.create_session("c", "tui", session_key="k1")
    keyed.set_session_title("a", "Chat")
    keyed.set_session_title("c", "Chat #2")
    keyed.switch("k1", target, any_key=True)
    titles = [keyed.get_session(i).title for i in ("a", "c", "b", "child")]
    assert titles == ["Chat", "Chat #2", "Chat #3", "Chat #4"]
    assert keyed.resolve_session_by_title("Chat", session_key="k1") == "a"
    assert keyed.resolve_session_by_title("Chat", session_key="k2") == "child"


def test_sharing_a_session_keeps_a_title_that_nobody_else_has(keyed):
    keyed.set_session_title("a", "Other")
    keyed.set_session_title("b", "Chat")
    rotate(keyed, "b", "child")
    for _ in range(2):
        keyed.switch("k1", "b", any_key=True)
    keyed.switch("k2", "b", any_key=True)
    assert [keyed.get_session(i).title for i in ("b", "child")] == ["Chat", "Chat #2"]


def test_a_number_for_a_shared_title_is_unused_by_all_its_keys(keyed):
    """k3 shares the session already, and has the next number."""
    keyed.set_session_title("b", "Chat")
    keyed.switch("k3", "b", any_key=True)
    keyed.create_session("c", "tui", session_key="k3")
    keyed.set_session_title("c", "Chat #2")
    keyed.set_session_title("a", "Chat")
    keyed.switch("k1", "b", any_key=True)
    assert keyed.get_session("b").title == "Chat #3"


def test_a_shared_session_without_a_key_that_gets_one_keeps_its_title(keyed):
    keyed.create_session("c", "tui")
    keyed.set_session_title("c", "Plans")
    keyed.switch("k1", "c", any_key=True)
    keyed.create_session("c", session_key="k1")
    assert (keyed.get_session("c").session_key, keyed.get_session("c").title) == ("k1", "Plans")


def force_title(store, session_id, title):
    """Set a title that the store would refuse, as an earlier version did."""
    sql = "UPDATE sessions SET title = ? WHERE id = ?"
    store.transact(lambda tx: tx.run(sql, title, session_id))


@pytest.mark.parametrize("title", ["Chat", "Chat #2"])
def test_a_title_that_a_key_sees_twice_is_ambiguous(shared, title):
    for session_id in ("a", "b"):
        force_title(shared, session_id, title)
    with pytest.raises(
        AmbiguousTitle, match=r"'Chat': a \(key k1\), b \(key k2\); use an id$"
    ) as e:
        shared.switch("k1", "Chat")
    assert e.value.session_ids == ("a", "b")
    assert pickle.loads(pickle.dumps(e.value)).session_ids == ("a", "b")
    with pytest.raises(AmbiguousTitle):
        shared.switch("k1", "Chat", any_key=True)
    assert shared.resolve_session_by_title("Chat", session_key="k2") == "b"
    assert shared.get_route("k1").session_id == "b"


def test_the_highest_number_counts_among_own_and_shared_sessions(shared):
    shared.set_session_title("a", "Talk #2")
    shared.set_session_title("b", "Talk #3")
    assert shared.resolve_session_by_title("Talk", session_key="k1") == "b"


def test_a_title_is_not_ambiguous_within_one_lineage(shared):
    rotate(shared, "b", "child")
    force_title(shared, "b", "Talk")
    force_title(shared, "child", "Talk #2")
    shared.transact(lambda tx: tx.run("UPDATE sessions SET session_key = 'k9' WHERE id = 'child'"))
    force_title(shared, "child", "Talk")
    assert shared.resolve_session_by_title("Talk", session_key="k1") == "child"


def test_a_title_is_resolved_for_one_key_and_ambiguous_without_it(keyed):
    for session_id in ("a", "b"):
        keyed.set_session_title(session_id, "Chat")
    assert keyed.resolve_session_by_title("Chat", session_key="k1") == "a"
    assert keyed.resolve_session_by_title("Chat", session_key="k2") == "b"
    assert keyed.resolve_session_by_title("Chat", session_key="k3") is None
    assert keyed.find("Chat", session_key="k2").session_id == "b"
    for ask in (keyed.resolve_session_by_title, keyed.find):
        with pytest.raises(AmbiguousTitle, match=r"'Chat': a \(key k1\), b \(key k2\);"):
            ask("Chat")


def test_numbered_titles_of_two_keys_are_ambiguous(keyed):
    keyed.set_session_title("a", "Chat #2")
    keyed.set_session_title("b", "Chat #3")
    assert keyed.resolve_session_by_title("Chat", session_key="k1") == "a"
    with pytest.raises(AmbiguousTitle):
        keyed.resolve_session_by_title("Chat")


def test_an_ambiguous_title_lists_at_most_ten_matches(store):
    for number in range(12):
        session_id = store.create_session(f"s{number}", "tui", session_key=f"k{number}")
        store.set_session_title(session_id, "Chat")
    with pytest.raises(AmbiguousTitle, match=r"s9 \(key k9\), 2 more; use an id"):
        store.resolve_session_by_title("Chat")


def test_numbers_are_counted_per_key(keyed):
    keyed.set_session_title("a", "Chat")
    keyed.set_session_title("b", "Chat #7")
    assert keyed.get_next_title_in_lineage("Chat") == "Chat #8"
    assert keyed.get_next_title_in_lineage("Chat", session_key="k1") == "Chat #2"
    assert keyed.get_next_title_in_lineage("Chat", session_key="k2") == "Chat #8"
    assert keyed.get_next_title_in_lineage("Chat", session_key="k3") == "Chat"
    rotate(keyed, "a", "child")
    assert keyed.get_session("child").title == "Chat #2"
    assert keyed.set_auto_title_if_empty(keyed.create_session("c", session_key="k1"), "Chat")
    assert keyed.get_session("c").title == "Chat #3"


def test_a_prefix_needs_to_be_unique_among_the_sessions_of_the_key_only(store):
    store.create_session("2026-a", session_key="k1")
    store.create_session("2026-b", session_key="k2")
    assert store.resolve_session_id("2026") is None
    assert store.resolve_session_id("2026", session_key="k1") == "2026-a"
    assert store.resolve_session_id("2026-b", session_key="k1") is None


def test_a_session_that_gets_a_key_keeps_its_title_with_a_number(keyed):
    keyed.set_session_title("a", "Chat")
    keyed.create_session("c", "tui")
    keyed.set_session_title("c", "Chat")
    keyed.create_session("c", session_key="k1")
    assert (keyed.get_session("c").session_key, keyed.get_session("c").title) == ("k1", "Chat #2")


def test_a_branch_with_a_title_in_use_is_refused_and_an_unnamed_one_gets_a_number(keyed):
    keyed.set_session_title("a", "Chat")
    with pytest.raises(ValueError, match="Title 'Chat' is already in use by session a"):
        keyed.branch("a", title="Chat")
    assert keyed.get_session(keyed.branch("a")).title == "Chat #2"
    other = keyed.branch("a", session_key="k2")
    assert keyed.get_session(other).title == "Chat #3", "it must not look like the original"
    assert keyed.get_session(keyed.branch("a", title="Chat", session_key="k3")).title == "Chat"


def test_an_import_numbers_a_title_of_the_same_key_only(keyed, tmp_path):
    for session_id in ("a", "b"):
        keyed.set_session_title(session_id, "Chat")
    lines = [keyed.export_session(i).replace('"Chat"', '"Talk"') for i in ("a", "b")]
    keyed.delete_session("b")
    keyed.create_session("c", session_key="k2")
    keyed.set_session_title("c", "Talk")
    keyed.delete_session("a")
    keyed.import_sessions(lines)
    assert [keyed.get_session(i).title for i in ("a", "b")] == ["Talk", "Talk #2"]


def test_rotations_number_the_title_and_a_clash_never_fails_one(store):
    store.create_session("a", "tui")
    store.set_session_title("a", "x" * 99)
    for parent, child in (("a", "b"), ("b", "c"), ("c", "d")):
        rotate(store, parent, child)
    titles = [store.get_session(i).title for i in "abcd"]
    assert len(set(titles)) == 4
    assert all(title is not None and len(title) <= MAX_LENGTH for title in titles)


def test_a_title_shortened_for_its_number_skips_one_that_is_in_use(store):
    long = "x" * 98
    for session_id, title in (("a", long), ("taken", "x" * 97 + " #2")):
        store.create_session(session_id, "tui")
        store.set_session_title(session_id, title)
    rotate(store, "a", "b")
    assert store.get_session("b").title == "x" * 97 + " #3"


def test_tip_root_and_lineage_agree_for_every_session_of_a_lineage(store):
    store.create_session("a", "tui")
    for parent, child in (("a", "b"), ("b", "c")):
        rotate(store, parent, child)
    branch = store.branch("b")
    for session_id in ("a", "b", "c"):
        assert store.get_compression_lineage(session_id) == ["a", "b", "c"]
        assert store.get_compression_tip(session_id) == "c"
        assert store.get_conversation_root(session_id) == "a"
    assert store.get_compression_lineage(branch) == [branch]
    assert store.get_compression_tip("nobody") == "nobody"
    assert store.get_conversation_root("nobody") == "nobody"
    assert store.get_compression_lineage("nobody") == []


def test_a_prefix_resolves_only_if_it_is_unique(store):
    for session_id in ("20260101_a", "20260101_ab", "20270101_z", "%_"):
        store.create_session(session_id, "tui")
    assert store.resolve_session_id("20260101_a") == "20260101_a"
    assert store.resolve_session_id("20260101") is None
    assert store.resolve_session_id("2027") == "20270101_z"
    assert store.resolve_session_id("%") == "%_"
    assert store.resolve_session_id("2028") is None
    assert store.resolve_session_id("") is None


def test_a_conversation_is_resumed_by_id_prefix_or_title_at_its_tip(store):
    store.create_session("alpha", "tui")
    store.set_session_title("alpha", "Chat")
    rotate(store, "alpha", "beta")
    for target in ("alpha", "al", "Chat", "Chat #2", "beta"):
        store.new_session("k")
        assert store.switch("k", target, any_key=True).session_id == "beta"
    with pytest.raises(UnknownSession, match="gamma"):
        store.switch("k", "gamma", any_key=True)
