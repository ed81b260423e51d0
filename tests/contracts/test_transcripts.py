"""Transcript rows: appended, counted, rewound, edited and replaced; none is ever deleted."""

from __future__ import annotations

import subprocess
import sys

import apsw
import psycopg
import pytest

from hermes.errors import SessionEnded, StoreError, UnknownSession
from hermes.messages import Head, Message, ToolCall

CALLS = (ToolCall("1", "clock", "{}"), ToolCall("2", "add", '{"a": 1}'))
RICH = Message(
    "assistant",
    None,
    12.5,
    parts=({"type": "text", "text": "look"}, {"type": "image", "url": "x"}),
    tool_calls=CALLS,
    reasoning="hm",
    reasoning_details=({"step": 1},),
    finish_reason="tool_calls",
    token_count=7,
    provider_data={"signature": "s"},
)


def texts(messages):
    return [message.content for message in messages]


def test_a_message_is_inserted_and_counted_at_once(store, world):
    store.create_session("a", "tui")
    world.pass_time(3)
    first = store.append_message("a", "user", "hi")
    second = store.append_message("a", "assistant", "yo", timestamp=1.0)
    assert first.head == Head("a", 1, 1, 0)
    assert second.head == Head("a", 2, 2, 0) == store.head("a")
    transcript = store.load("a")
    assert transcript.head == second.head
    seen = [(m.id, m.role, m.content, m.timestamp) for m in transcript.messages]
    assert seen == [
        (first.message_id, "user", "hi", world.now),
        (second.message_id, "assistant", "yo", 1.0),
    ]
    assert store.get_session("a").last_active == world.now


def test_every_field_of_a_message_is_read_back(store):
    store.create_session("a", "tui")
    store.append_messages("a", [RICH])
    store.append_message("a", "tool", "12:00", tool_call_id="1", tool_name="clock")
    [rich, result] = store.load("a").messages
    for name in Message.__struct_fields__:
        if name != "content":
            assert getattr(rich, name) == getattr(RICH, name), name
    assert rich.content == "look"
    assert (result.tool_call_id, result.tool_name) == ("1", "clock")


def test_tool_calls_are_counted_by_their_number_and_results_are_not(store):
    store.create_session("a", "tui")
    store.append_message("a", "assistant", tool_calls=CALLS)
    store.append_message("a", "tool", "12:00", tool_call_id="1")
    store.append_message("a", "tool", "2", tool_call_id="2")
    session = store.get_session("a")
    assert (session.message_count, session.tool_call_count) == (3, 2)


def test_the_same_platform_message_twice_is_one_row(store):
    store.create_session("a", "tui")
    store.create_session("b", "tui")
    first = store.append_message("a", "user", "hi", platform_message_id="p1")
    again = store.append_message("a", "user", "hi", platform_message_id="p1")
    assert (again.message_id, again.duplicate, again.head) == (first.message_id, True, first.head)
    store.append_message("b", "user", "hi", platform_message_id="p1")
    block = [Message("user", x, platform_message_id=x) for x in ("p1", "p2", "p2", "p3")]
    assert store.append_messages("a", block).message_count == 3
    assert store.append_messages("a", block) == Head("a", 3, 2, 0)


def test_an_ended_session_and_an_unknown_one_refuse_rows(store):
    store.create_session("a", "tui")
    store.append_message("a", "user", "hi")
    store.end_session("a", "user_exit")
    message_id = store.load("a").messages[0].id
    refused = [
        lambda: store.append_message("a", "user", "more"),
        lambda: store.append_messages("a", [Message("user", "more")]),
        lambda: store.replace_messages("a", []),
        lambda: store.rewind("a", message_id),
        lambda: store.edit_message("a", message_id, "more"),
    ]
    for attempt in refused:
        with pytest.raises(SessionEnded, match="accepts no more messages"):
            attempt()
    with pytest.raises(UnknownSession):
        store.append_message("nobody", "user", "hi")
    assert store.head("a") == Head("a", 1, 1, 0)


def test_sql_cannot_write_to_an_ended_session_either(store, sql):
    store.create_session("a", "tui")
    store.end_session("a", "user_exit")
    with pytest.raises((apsw.ConstraintError, psycopg.errors.CheckViolation), match="has ended"):
        sql("INSERT INTO messages (id, role, created_at) VALUES ((1 << 32) + 1, 'user', 1)")


def test_a_rewind_hides_the_rows_and_the_count_follows(store):
    store.create_session("a", "tui")
    for text in ("one", "two", "three"):
        store.append_message("a", "assistant", text, tool_calls=CALLS[:1])
    second = store.load("a").messages[1]
    taken_back = store.rewind("a", second.id)
    assert texts(taken_back) == ["two", "three"]
    transcript = store.load("a")
    assert texts(transcript.messages) == ["one"]
    assert transcript.head == Head("a", 1, 4, 1)
    assert store.get_session("a").tool_call_count == 1
    store.append_message("a", "user", "four")
    assert texts(store.load("a").messages) == ["one", "four"]
    everything = store.get_messages("a", include_rewound=True)
    assert texts(everything) == ["one", "two", "three", "four"]
    assert len({message.id for message in everything}) == 4


def test_a_rewound_platform_message_may_come_again(store):
    store.create_session("a", "tui")
    first = store.append_message("a", "user", "hi", platform_message_id="p1")
    store.rewind("a", first.message_id)
    again = store.append_message("a", "user", "hi", platform_message_id="p1")
    assert (again.duplicate, again.head.message_count) == (False, 1)


def test_only_a_live_row_of_this_session_can_be_rewound_or_edited(store):
    store.create_session("a", "tui")
    store.create_session("b", "tui")
    foreign = store.append_message("b", "user", "hi")
    own = store.append_message("a", "user", "hi")
    store.rewind("a", own.message_id)
    for message_id in (foreign.message_id, own.message_id, 1):
        with pytest.raises(StoreError, match="no message"):
            store.rewind("a", message_id)
        with pytest.raises(StoreError, match="no message"):
            store.edit_message("a", message_id, "x")


def test_an_edit_keeps_the_position_and_the_old_text_stays_in_the_file(store):
    store.create_session("a", "tui")
    store.append_message("a", "user", "one")
    wrong = store.append_message("a", "user", "tow", platform_message_id="p")
    store.append_message("a", "assistant", "three", tool_calls=CALLS)
    head = store.edit_message("a", wrong.message_id, "two")
    transcript = store.load("a")
    assert texts(transcript.messages) == ["one", "two", "three"]
    assert transcript.messages[1].platform_message_id == "p"
    assert transcript.messages[2].tool_calls == CALLS
    assert head == transcript.head
    assert (head.message_count, head.rewrites) == (3, 1)
    assert texts(store.get_messages("a", include_rewound=True)) == [
        "one", "tow", "three", "two", "three",
    ]  # fmt: skip


def test_replacing_shows_the_new_rows_and_deletes_none(store):
    store.create_session("a", "tui")
    store.append_message("a", "user", "old", platform_message_id="p")
    head = store.replace_messages("a", [Message("user", "new", platform_message_id="p"), RICH])
    assert (head.message_count, head.rewrites) == (2, 1)
    assert store.get_session("a").tool_call_count == 2
    assert texts(store.load("a").messages) == ["new", "look"]
    assert store.replace_messages("a", []) == Head("a", 0, head.revision + 1, 2)
    assert len(store.get_messages("a", include_rewound=True)) == 3


def test_titles_usage_leases_and_ends_touch_neither_revision_nor_rewrites(store):
    from hermes.messages import Usage

    store.create_session("a", "tui")
    head = store.append_message("a", "user", "hi").head
    store.set_session_title("a", "T")
    store.update_token_counts("a", Usage(input_tokens=3))
    store.try_acquire_compression_lock("a", "me")
    store.end_session("a", "agent_close")
    store.reopen_session("a")
    assert store.head("a") == head


def test_messages_can_be_read_in_pages(store):
    store.create_session("a", "tui")
    store.append_messages("a", [Message("user", str(n)) for n in range(10)])
    assert texts(store.get_messages("a", limit=3, offset=8)) == ["8", "9"]
    assert texts(store.get_messages("a", limit=2)) == ["0", "1"]
    with pytest.raises(UnknownSession):
        store.get_messages("nobody")


def test_a_session_without_a_row_has_an_empty_transcript(store):
    transcript = store.load("later")
    assert (transcript.head, transcript.messages) == (Head("later"), [])


def test_sessions_do_not_mix_though_their_rows_are_interleaved(store):
    for session_id in ("a", "b", "c"):
        store.create_session(session_id, "tui")
    for n in range(5):
        for session_id in ("c", "a", "b"):
            store.append_message(session_id, "user", f"{session_id}{n}")
    for session_id in ("a", "b", "c"):
        loaded = texts(store.load(session_id).messages)
        assert loaded == [f"{session_id}{n}" for n in range(5)]


def test_a_change_by_another_process_is_seen_at_once(store, path):
    store.create_session("a", "tui")
    store.append_message("a", "user", "ours")
    code = (
        "import sys; from hermes.store import SessionStore\n"
        "with SessionStore(sys.argv[1]) as s: s.append_message('a', 'user', 'theirs')"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    transcript = store.load("a")
    assert texts(transcript.messages) == ["ours", "theirs"]
    assert transcript.head == Head("a", 2, 2, 0)


# Texts that are not UTF-8: written by another program, or damaged


def damage(sql, table, column, text):
    value = text.replace("?", "\xff").encode("latin-1").hex()
    sql(f"UPDATE {table} SET {column} = CAST(x'{value}' AS TEXT) WHERE content = 'two herons'")


@pytest.mark.parametrize("table", ["arrivals", "messages"])
@pytest.mark.parametrize(
    ("column", "text", "read"),
    [
        ("content", "?A?", ("\ufffdA\ufffd", "two id", None)),
        ("extra", '{"reasoning":"A?"}', ("two herons", "two id", "A\ufffd")),
        ("platform_message_id", "two ?", ("two herons", "two \ufffd", None)),
    ],
)
@pytest.mark.sqlite_only("PostgreSQL stores valid UTF-8 only")
def test_a_message_that_is_not_utf8_can_be_read(store, sql, table, column, text, read):
    store.create_session("a")
    for name in ("one", "two", "three"):
        store.append_message("a", "user", f"{name} herons", platform_message_id=f"{name} id")
    if table == "messages":
        store.index_pending()
    damage(sql, table, column, text)
    rest = [(f"{name} herons", f"{name} id", None) for name in ("one", "three")]
    for messages in (store.get_messages("a"), store.load("a").messages):
        found = [(each.content, each.platform_message_id, each.reasoning) for each in messages]
        assert found == [rest[0], read, rest[1]]
    assert store.append_message("a", "user", "four").head.revision == 4


@pytest.mark.parametrize(
    ("column", "text", "found"),
    [("content", "?A?", {1, 3}), ("extra", '{"reasoning":"A?"}', {1, 2, 3})],
)
@pytest.mark.sqlite_only("PostgreSQL stores valid UTF-8 only")
def test_a_new_message_that_is_not_utf8_is_indexed(store, sql, column, text, found):
    store.create_session("a")
    for name in ("one", "two", "three"):
        store.append_message("a", "user", f"{name} herons")
    damage(sql, "arrivals", column, text)
    store.index_pending()
    assert sql("SELECT count(*) FROM arrivals") == [[0]]
    assert {hit.message_id & 0xFF for hit in store.search_messages("heron")} == found
    assert store.integrity_check() == []
