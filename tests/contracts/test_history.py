"""Pages of a history: stable under appends, across compressions, with what still waits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from hermes.errors import UnknownSession
from hermes.messages import Inbound, Message, StoredMessage, TurnCommit, WaitingMessage
from hermes.store import Rotation, SessionStore
from tests.support.folders import quick_folder


def texts(rows):
    return [row.content for row in rows]


def fill(store, session_id, *contents):
    store.create_session(session_id, "tui")
    for content in contents:
        store.append_message(session_id, "user", content)


def rotate(store, session_id, child_id, *kept):
    transcript = store.load(session_id)
    rotation = Rotation(
        session_id=session_id,
        messages=[Message("user", text) for text in kept],
        rotation_id=f"to {child_id}",
        rewrites=transcript.head.rewrites,
        upto=transcript.messages[-1].id,
        child_session_id=child_id,
    )
    assert store.rotate(rotation).session_id == child_id


@pytest.fixture
def lineage(store):
    """Three sessions of one conversation, with two rows each, and the key `k`."""
    fill(store, "a", "1", "2")
    rotate(store, "a", "b", "3")
    store.append_message("b", "user", "4")
    rotate(store, "b", "c", "5")
    store.append_message("c", "user", "6")
    store.switch("k", "c", any_key=True)
    return store


# Pages of a session


def test_without_arguments_a_page_is_the_whole_session(store):
    fill(store, "a", *"12345")
    assert store.get_page("a") == store.get_messages("a")


def test_a_limit_gives_the_latest_messages_and_before_the_page_before_them(store):
    fill(store, "a", *"12345")
    latest = store.get_page("a", limit=2)
    earlier = store.get_page("a", limit=2, before=latest[0].id)
    first = store.get_page("a", limit=2, before=earlier[0].id)
    assert [texts(page) for page in (latest, earlier, first)] == [["4", "5"], ["2", "3"], ["1"]]
    assert store.get_page("a", limit=2, before=first[0].id) == []


def test_after_gives_the_next_messages(store):
    fill(store, "a", *"12345")
    first = store.get_page("a")[0]
    page = store.get_page("a", limit=2, after=first.id)
    assert texts(page) == ["2", "3"]
    assert texts(store.get_page("a", after=page[-1].id)) == ["4", "5"]


def test_pages_stay_the_same_while_messages_are_added(store):
    fill(store, "a", *"12345")
    latest = store.get_page("a", limit=2)
    store.append_message("a", "user", "6")
    assert texts(store.get_page("a", limit=2, before=latest[0].id)) == ["2", "3"]
    assert texts(store.get_page("a", after=latest[-1].id)) == ["6"]


def test_messages_that_were_taken_back_are_left_out_and_do_not_count(store):
    fill(store, "a", *"123")
    store.rewind("a", store.get_messages("a")[1].id)
    store.append_message("a", "user", "4")
    assert texts(store.get_page("a", limit=2)) == ["1", "4"]
    assert texts(store.get_page("a", limit=2, include_rewound=True)) == ["3", "4"]


@pytest.mark.parametrize("moved", [True, False])
def test_rows_that_are_indexed_and_rows_that_are_not_are_in_one_order(store, moved):
    fill(store, "a", *"123")
    if moved:
        store.index_pending()
    store.append_message("a", "user", "4")
    assert texts(store.get_page("a", limit=2)) == ["3", "4"]
    assert texts(store.get_page("a", limit=3, after=store.get_messages("a")[0].id)) == list("234")


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(store, limit):
    fill(store, "a", "1")
    with pytest.raises(ValueError, match="limit must be at least 1"):
        store.get_page("a", limit=limit)


def test_before_and_after_exclude_each_other(store):
    fill(store, "a", "1")
    with pytest.raises(ValueError, match="only one of before= and after="):
        store.get_page("a", before=3, after=1)


def test_an_unknown_session_has_no_page(store):
    with pytest.raises(UnknownSession):
        store.get_page("nobody")


# Pages of a lineage


def test_the_lineage_begins_with_the_oldest_session(lineage):
    assert texts(lineage.get_page("c", lineage=True)) == list("123456")
    assert texts(lineage.get_page("b", lineage=True)) == list("1234")
    assert texts(lineage.get_page("c")) == ["5", "6"]


def test_pages_cross_the_sessions_of_a_lineage(lineage):
    page = lineage.get_page("c", lineage=True, limit=3)
    assert texts(page) == list("456")
    assert texts(lineage.get_page("c", lineage=True, limit=3, before=page[0].id)) == list("123")
    first = lineage.get_page("a")[0]
    assert texts(lineage.get_page("c", lineage=True, limit=4, after=first.id)) == list("2345")


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    limit=st.integers(1, 5),
    forward=st.booleans(),
)
def test_pages_together_are_the_whole_lineage(sizes, limit, forward):
    with quick_folder() as folder, SessionStore(folder / "state.db") as store:
        fill(store, "s0", *("x" for _ in range(sizes[0])))
        for number, size in enumerate(sizes[1:], start=1):
            rotate(store, f"s{number - 1}", f"s{number}", *("x" for _ in range(size)))
        tip = f"s{len(sizes) - 1}"
        whole = store.get_page(tip, lineage=True)
        assert len(whole) == sum(sizes)
        rows, page = [], None
        while page is None or page:
            here = {} if not rows else {"before": rows[0].id}
            if forward:
                here = {"after": rows[-1].id if rows else 0}
            page = store.get_page(tip, lineage=True, limit=limit, **here)
            assert len(page) <= limit
            rows = rows + page if forward else page + rows
        assert rows == whole


# The history of a key


def test_the_history_of_a_key_is_that_of_its_tip(store):
    fill(store, "a", "1", "2")
    store.switch("k", "a", any_key=True)
    rotate(store, "a", "b", "3")  # the route still names the parent
    assert store.get_route("k").session_id == "a"
    assert texts(store.get_history("k")) == ["3"]
    assert texts(store.get_history("k", lineage=True)) == ["1", "2", "3"]


def test_a_key_without_a_session_has_no_history(store):
    assert store.get_history("k") == []
    store.accept(Inbound("k", "e1", "hello"))
    assert store.get_history("k") == []


def commit(store, accepted, *rows):
    receipt = accepted.receipt
    done = store.commit_turn(
        TurnCommit(
            session_key=receipt.session_key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=accepted.head.revision,
            inbox_ids=[receipt.inbox_id],
            rows=rows,
        )
    )
    assert done.head.message_count


def test_what_waits_is_part_of_the_history_exactly_until_its_turn_is_stored(store, world):
    parts = ({"type": "text", "text": "second"},)
    first = store.accept(Inbound("k", "e1", "first"))
    world.pass_time(1)
    second = store.accept(Inbound("k", "e2", "", parts=parts, platform_message_id="p2"))
    rows = store.get_history("k", include_waiting=True)
    ids = [each.receipt.inbox_id for each in (first, second)]
    assert [(row.id, row.inbox_id) for row in rows] == [(-each, each) for each in ids]
    assert [(row.role, row.content) for row in rows] == [("user", "first"), ("user", None)]
    assert rows[0].timestamp == first.receipt.accepted_at
    assert (rows[1].parts, rows[1].platform_message_id) == (parts, "p2")
    commit(store, first, Message("user", "first"), Message("assistant", "hello"))
    rows = store.get_history("k", include_waiting=True)
    assert texts(rows) == ["first", "hello", None]
    assert [type(row) for row in rows] == [StoredMessage, StoredMessage, WaitingMessage]
    assert rows[-1].inbox_id == second.receipt.inbox_id
    assert texts(store.get_history("k")) == ["first", "hello"]


def test_what_waits_follows_what_is_stored_and_is_counted(store):
    accepted = store.accept(Inbound("k", "e1", "1"))
    commit(store, accepted, Message("user", "1"), Message("assistant", "2"))
    for number in (3, 4, 5):
        store.accept(Inbound("k", f"e{number}", f"{number}"))

    def page(**where):
        return store.get_history("k", include_waiting=True, **where)

    whole = page()
    assert texts(whole) == ["1", "2", "3", "4", "5"]
    for limit in range(1, 7):
        assert page(limit=limit) == whole[-limit:]
        for index, row in enumerate(whole):
            assert page(limit=limit, before=row.id) == whole[max(0, index - limit) : index]
            assert page(limit=limit, after=row.id) == whole[index + 1 : index + 1 + limit]
    assert page(after=0) == whole
    assert page(before=0) == []
    for row in whole[2:]:
        assert texts(store.get_history("k", before=row.id)) == ["1", "2"]
        assert store.get_history("k", after=row.id) == []
    for wrong in ({"limit": 0}, {"before": 1, "after": 1}):
        with pytest.raises(ValueError, match=r"at least 1|only one of"):
            store.get_history("nobody", **wrong)


def test_a_page_after_a_message_that_was_answered_is_refused_and_one_before_it_is_not(store):
    first = store.accept(Inbound("k", "e1", "1"))
    store.accept(Inbound("k", "e2", "3"))
    [waiting, _] = store.get_history("k", include_waiting=True)
    commit(store, first, Message("user", "1"), Message("assistant", "2"))
    # The answer comes after the message: to leave it out would be a gap.
    with pytest.raises(ValueError, match=r"message 1 does not wait any more: pass after="):
        store.get_history("k", after=waiting.id, include_waiting=True)
    rows = store.get_history("k", before=waiting.id, include_waiting=True)
    assert texts(rows) == ["1", "2"]


@settings(max_examples=30, deadline=None)
@given(
    stored=st.integers(0, 5),
    waiting=st.lists(st.sampled_from(["text", "command", "other"]), max_size=8),
    limit=st.integers(1, 6),
    forward=st.booleans(),
)
def test_pages_with_what_waits_join_to_the_whole_history(stored, waiting, limit, forward):
    with quick_folder() as folder, SessionStore(folder / "state.db") as store:
        fill(store, "a", *map(str, range(stored)))
        store.switch("k", "a", any_key=True)
        for number, kind in enumerate(waiting):
            key, command = "other" if kind == "other" else "k", kind == "command"
            store.accept(Inbound(key, f"e{number}", f"w{number}", command=command))
        whole = store.get_history("k", include_waiting=True)
        kept = [f"w{number}" for number, kind in enumerate(waiting) if kind == "text"]
        assert texts(whole) == [*map(str, range(stored)), *kept]
        rows, page = [], None
        while page is None or page:
            here = {} if not rows else {"before": rows[0].id}
            if forward:
                here = {"after": rows[-1].id if rows else 0}
            page = store.get_history("k", include_waiting=True, limit=limit, **here)
            assert len(page) <= limit
            rows = rows + page if forward else page + rows
        assert rows == whole


def test_commands_and_other_keys_are_not_part_of_the_history(store):
    store.accept(Inbound("k", "e1", "/stop", command=True))
    store.accept(Inbound("other", "e2", "hello"))
    assert store.get_history("k", include_waiting=True) == []
