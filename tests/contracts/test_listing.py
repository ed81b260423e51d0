"""`list_sessions`: one line per conversation, in a stable order and in pages."""

from __future__ import annotations

import pytest

from hermes.messages import Message, SessionSummary
from hermes.store import Rotation


def start(store, session_id, *texts, source="tui", **fields):
    store.create_session(session_id, source, **fields)
    for text in texts:
        store.append_message(session_id, "user", text)


def rotate(store, session_id, child_id, *messages):
    """Compress a session into a child."""
    transcript = store.load(session_id)
    rotation = Rotation(
        session_id=session_id,
        messages=messages or [Message("user", f"summary for {child_id}")],
        rotation_id=f"to {child_id}",
        rewrites=transcript.head.rewrites,
        upto=transcript.messages[-1].id if transcript.messages else 0,
        child_session_id=child_id,
    )
    assert store.rotate(rotation).session_id == child_id


def ids(store, **filters):
    return [listed.session.id for listed in store.list_sessions(**filters)]


def previews(store):
    return {listed.session.id: listed.preview for listed in store.list_sessions()}


def test_an_empty_store_lists_nothing(store):
    assert store.list_sessions() == []


def test_a_line_is_the_session_with_its_root_its_start_and_a_preview(store, world):
    began = world.now
    start(store, "a", "hello there")
    session = store.get_session("a")
    assert store.list_sessions() == [SessionSummary(session, "a", began, "hello there")]


def test_a_compressed_conversation_is_one_line_at_its_tip(store, world):
    began = world.now
    start(store, "a", "the very first words")
    for parent, child in (("a", "b"), ("b", "c")):
        world.pass_time(100)
        rotate(store, parent, child)
    tip = store.get_session("c")
    assert store.list_sessions() == [SessionSummary(tip, "a", began, "the very first words")]


def test_a_branch_has_its_own_line(store, world):
    start(store, "a", "shared words")
    rotate(store, "a", "b")
    world.pass_time(10)
    branch = store.branch("b")
    world.pass_time(10)
    store.append_message("b", "user", "going on")
    listed = store.list_sessions()
    assert [(one.session.id, one.root_session_id, one.preview) for one in listed] == [
        ("b", "a", "shared words"),
        (branch, branch, "summary for b"),
    ]
    assert listed[1].started_at == world.now - 10


def test_a_branch_that_was_compressed_is_one_line_too(store):
    start(store, "a", "words")
    branch = store.branch("a")
    rotate(store, branch, "c")
    assert sorted(ids(store)) == ["a", "c"]
    found = {one.session.id: one.root_session_id for one in store.list_sessions()}
    assert found == {"a": "a", "c": branch}


def test_a_continuation_whose_parent_was_deleted_has_its_own_line(store):
    start(store, "a", "words")
    rotate(store, "a", "b")
    store.delete_session("a")
    [listed] = store.list_sessions()
    assert (listed.session.id, listed.root_session_id, listed.preview) == (
        "b",
        "b",
        "summary for b",
    )


def test_a_session_without_a_row_is_not_listed(store):
    store.new_session("key")
    assert store.list_sessions() == []


# Previews


PREVIEWS = [
    ("short", "short"),
    ("x" * 60, "x" * 60),
    ("x" * 61, "x" * 59 + "…"),
    ("one\ntwo\r\n\tthree   four", "one two three four"),
    ("  \n around \n ", "around"),
    ("你" * 61, "你" * 59 + "…"),
    ("word " * 12, ("word " * 12).strip()),
    ("", ""),
    ("x" * 100_000, "x" * 59 + "…"),
    (" " * 300 + "late", "late"),
    ("a\u2028b\x0bc", "a b c"),
]


def test_a_preview_is_one_line_of_at_most_sixty_characters(store):
    for number, (text, _) in enumerate(PREVIEWS):
        start(store, f"s{number}", text)
    wanted = {f"s{number}": preview for number, (_, preview) in enumerate(PREVIEWS)}
    assert previews(store) == wanted


def test_a_preview_is_the_first_thing_the_user_said(store):
    store.create_session("a", "tui")
    store.append_message("a", "system", "rules")
    store.append_message("a", "assistant", "welcome")
    assert previews(store) == {"a": ""}
    store.append_message("a", "user", "first")
    store.append_message("a", "user", "second")
    assert previews(store) == {"a": "first"}


def test_a_preview_shows_the_text_of_structured_parts(store):
    store.create_session("a", "tui")
    parts = [{"type": "image", "url": "x"}, {"type": "text", "text": "what is\nthis?"}]
    store.append_message("a", "user", parts=parts)
    assert previews(store) == {"a": "what is this?"}


def test_a_message_without_text_gives_no_preview(store):
    store.create_session("a", "tui")
    store.append_message("a", "user", parts=[{"type": "image", "url": "x"}])
    store.append_message("a", "user", "now with words")
    assert previews(store) == {"a": "now with words"}


def test_rewound_messages_are_not_shown(store):
    store.create_session("a", "tui")
    first = store.append_message("a", "user", "secret")
    store.rewind("a", first.message_id)
    assert previews(store) == {"a": ""}
    again = store.append_message("a", "user", "scret")
    store.edit_message("a", again.message_id, "harmless")
    assert previews(store) == {"a": "harmless"}
    store.replace_messages("a", [Message("user", "new")])
    assert previews(store) == {"a": "new"}


# Order, filters, pages


def test_the_latest_activity_comes_first(store, world):
    for session_id in ("a", "b", "c"):
        start(store, session_id, "words")
        world.pass_time(10)
    assert ids(store) == ["c", "b", "a"]
    store.append_message("a", "user", "again")
    assert ids(store) == ["a", "c", "b"]
    [listed, *_] = store.list_sessions()
    assert listed.session.last_active == world.now


def test_last_active_moves_with_every_change_of_the_transcript(store, world):
    start(store, "a")
    moments = []
    changes = [
        lambda: store.append_message("a", "user", "one"),
        lambda: store.append_messages("a", [Message("user", "two")]),
        lambda: store.edit_message("a", (2**32) + 1, "three"),
        lambda: store.rewind("a", (2**32) + 4),
        lambda: store.replace_messages("a", []),
    ]
    for change in changes:
        world.pass_time(7)
        change()
        [listed] = store.list_sessions()
        moments.append(listed.session.last_active)
    assert moments == [world.now - 28, world.now - 21, world.now - 14, world.now - 7, world.now]


def test_last_active_does_not_move_without_a_change_of_the_transcript(store, world):
    start(store, "a", "words")
    before = world.now
    world.pass_time(7)
    store.set_session_title("a", "Title")
    store.set_system_prompt("a", "prompt")
    store.end_session("a", "done")
    store.reopen_session("a")
    assert store.get_session("a").last_active == before


def test_last_active_never_moves_backwards(store, world):
    start(store, "a", "words")
    latest = world.now
    world.now -= 3600
    store.append_message("a", "user", "the clock was set back")
    assert store.get_session("a").last_active == latest


def test_conversations_can_be_listed_by_their_start(store, world):
    for session_id in ("a", "b", "c"):
        start(store, session_id, "words")
        world.pass_time(10)
    store.append_message("a", "user", "again")
    assert ids(store, order="started_at") == ["c", "b", "a"]


def test_the_start_of_a_compressed_conversation_is_that_of_its_root(store, world):
    start(store, "a", "words")
    world.pass_time(10)
    start(store, "young", "words")
    world.pass_time(10)
    rotate(store, "a", "b")
    listed = store.list_sessions(order="started_at")
    assert [(one.session.id, one.started_at) for one in listed] == [
        ("young", world.now - 10),
        ("b", world.now - 20),
    ]


def test_another_order_is_refused(store):
    with pytest.raises(ValueError, match="order is 'last_active' or 'started_at', not 'title'"):
        store.list_sessions(order="title")


def test_conversations_that_were_active_at_once_have_an_order(store):
    for number in range(6):
        start(store, f"s{number}", "words")
    assert ids(store) == ["s5", "s4", "s3", "s2", "s1", "s0"]


@pytest.fixture
def shelf(store, world):
    """Conversations that differ in one thing each."""
    start(store, "a", "one", source="telegram", user_id="u1", session_key="k1")
    world.pass_time(1)
    start(store, "b", "one", "two", source="telegram", user_id="u2", session_key="k2")
    world.pass_time(1)
    start(store, "c", source="tui", user_id="u1", session_key="k1")
    store.set_session_title("b", "Trip to Rome")
    store.set_session_title("c", "100% of_it")
    store.end_session("a", "done")
    return store


FILTERS = [
    ({}, ["c", "b", "a"]),
    ({"source": "telegram"}, ["b", "a"]),
    ({"source": "nowhere"}, []),
    ({"user_id": "u1"}, ["c", "a"]),
    ({"session_key": "k2"}, ["b"]),
    ({"title_contains": "rome"}, ["b"]),
    ({"title_contains": "%"}, ["c"]),
    ({"title_contains": "_"}, ["c"]),
    ({"title_contains": "nothing"}, []),
    ({"ended": True}, ["a"]),
    ({"ended": False}, ["c", "b"]),
    ({"min_messages": 1}, ["b", "a"]),
    ({"min_messages": 2}, ["b"]),
    ({"source": "telegram", "ended": False, "min_messages": 1}, ["b"]),
    ({"user_id": "u1", "source": "telegram", "ended": False}, []),
]


def test_conversations_are_filtered(shelf):
    answers = [(filters, ids(shelf, **filters)) for filters, _ in FILTERS]
    assert answers == FILTERS


def test_rewound_messages_do_not_count(shelf):
    [first, _] = shelf.get_messages("b")
    shelf.rewind("b", first.id)
    assert ids(shelf, min_messages=1) == ["a"]


@pytest.mark.parametrize("order", ["last_active", "started_at"])
def test_pages_neither_overlap_nor_leave_out_anything(store, world, order):
    for number in range(11):
        start(store, f"s{number}", "words")
        if number % 3 == 0:
            world.pass_time(1)
    rotate(store, "s4", "t4")
    every = ids(store, limit=100, order=order)
    pages = [ids(store, limit=4, offset=offset, order=order) for offset in (0, 4, 8, 12)]
    assert [len(page) for page in pages] == [4, 4, 3, 0]
    assert [session_id for page in pages for session_id in page] == every
    assert sorted(every) == sorted({*(f"s{n}" for n in range(11) if n != 4), "t4"})


def test_a_page_has_twenty_conversations_by_default(store):
    for number in range(25):
        start(store, f"s{number}")
    assert len(ids(store)) == 20
