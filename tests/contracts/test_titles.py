"""Titles and lineage."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from hermes.errors import UnknownSession
from hermes.store import Rotation
from hermes.store.conversations.titles import MAX_LENGTH, sanitize_title


async def rotate(store, parent, child, **options):
    head = await store.head(parent)
    done = Rotation(
        session_id=parent,
        child_session_id=child,
        messages=[],
        rotation_id=child,
        rewrites=head.rewrites,
        upto=0,
        **options,
    )
    return await store.rotate(done)


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


async def test_a_title_that_is_too_long_is_refused_with_its_length(store):
    await store.create_session("a", "tui")
    with pytest.raises(ValueError, match=r"Title too long \(101 chars, max 100\)"):
        await store.set_session_title("a", "x" * 101)


async def test_a_title_is_set_and_cleared_and_an_unknown_session_has_none(store):
    await store.create_session("a", "tui")
    assert await store.set_session_title("a", " My  chat ") is True
    assert (await store.get_session("a")).title == "My chat"
    assert await store.set_session_title("a", "") is True
    assert (await store.get_session("a")).title is None
    assert await store.set_session_title("nobody", "My chat") is False


async def test_a_title_in_use_is_refused_naming_its_holder(store):
    await store.create_session("a", "tui")
    await store.create_session("b", "tui")
    await store.set_session_title("a", "Chat")
    with pytest.raises(ValueError, match="Title 'Chat' is already in use by session a"):
        await store.set_session_title("b", "Chat")
    assert await store.set_session_title("a", "Chat") is True


async def test_a_title_moves_from_a_compression_ancestor_and_from_nobody_else(store):
    await store.create_session("a", "tui")
    await store.set_session_title("a", "Chat")
    await rotate(store, "a", "b")
    await rotate(store, "b", "c")
    assert await store.set_session_title("c", "Chat") is True
    titles = [(await store.get_session(i)).title for i in ("a", "b", "c")]
    assert titles == [None, "Chat #2", "Chat"]
    with pytest.raises(ValueError, match="in use by session c"):
        await store.set_session_title("a", "Chat")
    branch = await store.branch("c", title="Else")
    with pytest.raises(ValueError, match="in use by session c"):
        await store.set_session_title(branch, "Chat")


async def test_an_automatic_title_never_overwrites(store):
    await store.create_session("a", "tui")
    await store.create_session("b", "tui")
    assert await store.set_auto_title_if_empty("a", "Auto") is True
    assert await store.set_auto_title_if_empty("a", "Other") is False
    assert await store.set_auto_title_if_empty("nobody", "Other") is False
    assert await store.set_auto_title_if_empty("b", " \u200b") is False
    assert await store.set_auto_title_if_empty("b", "Auto") is True
    assert (await store.get_session("a")).title == "Auto"
    assert (await store.get_session("b")).title == "Auto #2"


async def test_an_automatic_title_is_for_where_the_conversation_goes_on(store):
    await store.create_session("a", "tui")
    await rotate(store, "a", "b")
    assert await store.set_auto_title_if_empty("a", "Auto") is True
    assert [(await store.get_session(i)).title for i in ("a", "b")] == [None, "Auto"]


async def test_numbers_go_on_above_the_highest_in_use(store):
    assert await store.get_next_title_in_lineage("Chat") == "Chat"
    assert await store.get_next_title_in_lineage("Chat #7") == "Chat"
    for n, title in enumerate(["Chat", "Chat #2", "Chat #10", "Chat #x", "Chat # 99", "Chatter"]):
        await store.create_session(f"s{n}", "tui")
        await store.set_session_title(f"s{n}", title)
    assert await store.get_next_title_in_lineage("Chat") == "Chat #11"
    assert await store.get_next_title_in_lineage("Chat #2") == "Chat #11"
    assert await store.get_next_title_in_lineage("Other #3") == "Other"


async def test_a_title_resolves_to_its_highest_number(store):
    for n, title in enumerate(["Chat", "Chat #2", "Chat #10", "100%_x"]):
        await store.create_session(f"s{n}", "tui")
        await store.set_session_title(f"s{n}", title)
    assert await store.resolve_session_by_title("Chat") == "s2"
    assert await store.resolve_session_by_title("Chat #2") == "s1"
    assert await store.resolve_session_by_title("100%_x") == "s3"
    assert await store.resolve_session_by_title("100__x") is None


async def test_rotations_number_the_title_and_a_clash_never_fails_one(store):
    await store.create_session("a", "tui")
    await store.set_session_title("a", "x" * 99)
    for parent, child in (("a", "b"), ("b", "c"), ("c", "d")):
        await rotate(store, parent, child)
    titles = [(await store.get_session(i)).title for i in "abcd"]
    assert len(set(titles)) == 4
    assert all(title is not None and len(title) <= MAX_LENGTH for title in titles)


async def test_a_title_cut_for_its_number_steps_over_one_that_is_taken(store):
    long = "x" * 98
    for session_id, title in (("a", long), ("taken", "x" * 97 + " #2")):
        await store.create_session(session_id, "tui")
        await store.set_session_title(session_id, title)
    await rotate(store, "a", "b")
    assert (await store.get_session("b")).title == "x" * 97 + " #3"


async def test_tip_root_and_lineage_agree_from_every_place_on_the_line(store):
    await store.create_session("a", "tui")
    for parent, child in (("a", "b"), ("b", "c")):
        await rotate(store, parent, child)
    branch = await store.branch("b")
    for session_id in ("a", "b", "c"):
        assert await store.get_compression_lineage(session_id) == ["a", "b", "c"]
        assert await store.get_compression_tip(session_id) == "c"
        assert await store.get_conversation_root(session_id) == "a"
    assert await store.get_compression_lineage(branch) == [branch]
    assert await store.get_compression_tip("nobody") == "nobody"
    assert await store.get_conversation_root("nobody") == "nobody"
    assert await store.get_compression_lineage("nobody") == []


async def test_a_prefix_resolves_only_where_it_is_unique(store):
    for session_id in ("20260101_a", "20260101_ab", "20270101_z", "%_"):
        await store.create_session(session_id, "tui")
    assert await store.resolve_session_id("20260101_a") == "20260101_a"
    assert await store.resolve_session_id("20260101") is None
    assert await store.resolve_session_id("2027") == "20270101_z"
    assert await store.resolve_session_id("%") == "%_"
    assert await store.resolve_session_id("2028") is None
    assert await store.resolve_session_id("") is None


async def test_a_conversation_is_resumed_by_id_prefix_or_title_at_its_tip(store):
    await store.create_session("alpha", "tui")
    await store.set_session_title("alpha", "Chat")
    await rotate(store, "alpha", "beta")
    for target in ("alpha", "al", "Chat", "Chat #2", "beta"):
        await store.new_session("k")
        assert (await store.switch("k", target)).session_id == "beta"
    with pytest.raises(UnknownSession, match="gamma"):
        await store.switch("k", "gamma")
