"""`list_sessions`: one line per conversation, in an order and in pages a person can follow."""

from __future__ import annotations

import pytest

from hermes.messages import Message, SessionSummary
from hermes.store import Rotation


async def start(store, session_id, *texts, source="tui", **fields):
    await store.create_session(session_id, source, **fields)
    for text in texts:
        await store.append_message(session_id, "user", text)


async def rotate(store, session_id, child_id, *messages):
    """Compress a session into a child."""
    transcript = await store.load(session_id)
    rotation = Rotation(
        session_id=session_id,
        messages=messages or [Message("user", f"summary for {child_id}")],
        rotation_id=f"to {child_id}",
        rewrites=transcript.head.rewrites,
        upto=transcript.messages[-1].id if transcript.messages else 0,
        child_session_id=child_id,
    )
    assert (await store.rotate(rotation)).session_id == child_id


async def ids(store, **filters):
    return [listed.session.id for listed in await store.list_sessions(**filters)]


async def previews(store):
    return {listed.session.id: listed.preview for listed in await store.list_sessions()}


async def test_an_empty_store_lists_nothing(store):
    assert await store.list_sessions() == []


async def test_a_line_is_the_session_with_its_root_its_start_and_a_preview(store, world):
    began = world.now
    await start(store, "a", "hello there")
    session = await store.get_session("a")
    assert await store.list_sessions() == [SessionSummary(session, "a", began, "hello there")]


async def test_a_compressed_conversation_is_one_line_at_its_tip(store, world):
    began = world.now
    await start(store, "a", "the very first words")
    for parent, child in (("a", "b"), ("b", "c")):
        world.pass_time(100)
        await rotate(store, parent, child)
    tip = await store.get_session("c")
    assert await store.list_sessions() == [SessionSummary(tip, "a", began, "the very first words")]


async def test_a_branch_is_a_line_of_its_own(store, world):
    await start(store, "a", "shared words")
    await rotate(store, "a", "b")
    world.pass_time(10)
    branch = await store.branch("b")
    world.pass_time(10)
    await store.append_message("b", "user", "going on")
    listed = await store.list_sessions()
    assert [(one.session.id, one.root_session_id, one.preview) for one in listed] == [
        ("b", "a", "shared words"),
        (branch, branch, "summary for b"),
    ]
    assert listed[1].started_at == world.now - 10


async def test_a_branch_that_was_compressed_is_one_line_too(store):
    await start(store, "a", "words")
    branch = await store.branch("a")
    await rotate(store, branch, "c")
    assert sorted(await ids(store)) == ["a", "c"]
    found = {one.session.id: one.root_session_id for one in await store.list_sessions()}
    assert found == {"a": "a", "c": branch}


async def test_a_continuation_whose_parent_was_deleted_is_a_line_of_its_own(store):
    await start(store, "a", "words")
    await rotate(store, "a", "b")
    await store.delete_session("a")
    [listed] = await store.list_sessions()
    assert (listed.session.id, listed.root_session_id, listed.preview) == (
        "b",
        "b",
        "summary for b",
    )


async def test_a_session_that_is_only_named_by_a_route_is_not_listed(store):
    await store.new_session("key")
    assert await store.list_sessions() == []


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


async def test_a_preview_is_one_line_of_at_most_sixty_characters(store):
    for number, (text, _) in enumerate(PREVIEWS):
        await start(store, f"s{number}", text)
    wanted = {f"s{number}": preview for number, (_, preview) in enumerate(PREVIEWS)}
    assert await previews(store) == wanted


async def test_a_preview_is_the_first_thing_the_user_said(store):
    await store.create_session("a", "tui")
    await store.append_message("a", "system", "rules")
    await store.append_message("a", "assistant", "welcome")
    assert await previews(store) == {"a": ""}
    await store.append_message("a", "user", "first")
    await store.append_message("a", "user", "second")
    assert await previews(store) == {"a": "first"}


async def test_a_preview_shows_the_text_of_structured_parts(store):
    await store.create_session("a", "tui")
    parts = [{"type": "image", "url": "x"}, {"type": "text", "text": "what is\nthis?"}]
    await store.append_message("a", "user", parts=parts)
    assert await previews(store) == {"a": "what is this?"}


async def test_a_message_without_text_gives_no_preview(store):
    await store.create_session("a", "tui")
    await store.append_message("a", "user", parts=[{"type": "image", "url": "x"}])
    await store.append_message("a", "user", "now with words")
    assert await previews(store) == {"a": "now with words"}


async def test_what_was_taken_back_is_not_shown(store):
    await store.create_session("a", "tui")
    first = await store.append_message("a", "user", "secret")
    await store.rewind("a", first.message_id)
    assert await previews(store) == {"a": ""}
    again = await store.append_message("a", "user", "scret")
    await store.edit_message("a", again.message_id, "harmless")
    assert await previews(store) == {"a": "harmless"}
    await store.replace_messages("a", [Message("user", "new")])
    assert await previews(store) == {"a": "new"}


# Order, filters, pages


async def test_the_latest_activity_comes_first(store, world):
    for session_id in ("a", "b", "c"):
        await start(store, session_id, "words")
        world.pass_time(10)
    assert await ids(store) == ["c", "b", "a"]
    await store.append_message("a", "user", "again")
    assert await ids(store) == ["a", "c", "b"]
    [listed, *_] = await store.list_sessions()
    assert listed.session.last_active == world.now


async def test_last_active_moves_with_every_change_of_the_transcript(store, world):
    await start(store, "a")
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
        await change()
        [listed] = await store.list_sessions()
        moments.append(listed.session.last_active)
    assert moments == [world.now - 28, world.now - 21, world.now - 14, world.now - 7, world.now]


async def test_last_active_does_not_move_without_one(store, world):
    await start(store, "a", "words")
    before = world.now
    world.pass_time(7)
    await store.set_session_title("a", "Title")
    await store.set_system_prompt("a", "prompt")
    await store.end_session("a", "done")
    await store.reopen_session("a")
    assert (await store.get_session("a")).last_active == before


async def test_last_active_never_moves_backwards(store, world):
    await start(store, "a", "words")
    latest = world.now
    world.now -= 3600
    await store.append_message("a", "user", "the clock was set back")
    assert (await store.get_session("a")).last_active == latest


async def test_conversations_can_be_listed_by_their_start(store, world):
    for session_id in ("a", "b", "c"):
        await start(store, session_id, "words")
        world.pass_time(10)
    await store.append_message("a", "user", "again")
    assert await ids(store, order="started_at") == ["c", "b", "a"]


async def test_the_start_of_a_compressed_conversation_is_that_of_its_root(store, world):
    await start(store, "a", "words")
    world.pass_time(10)
    await start(store, "young", "words")
    world.pass_time(10)
    await rotate(store, "a", "b")
    listed = await store.list_sessions(order="started_at")
    assert [(one.session.id, one.started_at) for one in listed] == [
        ("young", world.now - 10),
        ("b", world.now - 20),
    ]


async def test_another_order_is_refused(store):
    with pytest.raises(ValueError, match="order is 'last_active' or 'started_at', not 'title'"):
        await store.list_sessions(order="title")


async def test_conversations_that_were_active_at_once_have_an_order(store):
    for number in range(6):
        await start(store, f"s{number}", "words")
    assert await ids(store) == ["s5", "s4", "s3", "s2", "s1", "s0"]


@pytest.fixture
async def shelf(store, world):
    """Conversations that differ in one thing each."""
    await start(store, "a", "one", source="telegram", user_id="u1", session_key="k1")
    world.pass_time(1)
    await start(store, "b", "one", "two", source="telegram", user_id="u2", session_key="k2")
    world.pass_time(1)
    await start(store, "c", source="tui", user_id="u1", session_key="k1")
    await store.set_session_title("b", "Trip to Rome")
    await store.set_session_title("c", "100% of_it")
    await store.end_session("a", "done")
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


async def test_conversations_are_filtered(shelf):
    answers = [(filters, await ids(shelf, **filters)) for filters, _ in FILTERS]
    assert answers == FILTERS


async def test_rewound_messages_do_not_count(shelf):
    [first, _] = await shelf.get_messages("b")
    await shelf.rewind("b", first.id)
    assert await ids(shelf, min_messages=1) == ["a"]


@pytest.mark.parametrize("order", ["last_active", "started_at"])
async def test_pages_neither_overlap_nor_leave_out_anything(store, world, order):
    for number in range(11):
        await start(store, f"s{number}", "words")
        if number % 3 == 0:
            world.pass_time(1)
    await rotate(store, "s4", "t4")
    every = await ids(store, limit=100, order=order)
    pages = [await ids(store, limit=4, offset=offset, order=order) for offset in (0, 4, 8, 12)]
    assert [len(page) for page in pages] == [4, 4, 3, 0]
    assert [session_id for page in pages for session_id in page] == every
    assert sorted(every) == sorted({*(f"s{n}" for n in range(11) if n != 4), "t4"})


async def test_twenty_conversations_make_a_page(store):
    for number in range(25):
        await start(store, f"s{number}")
    assert len(await ids(store)) == 20
