"""Session rows."""

from __future__ import annotations

import apsw
import psycopg
import pytest

from hermes.errors import HasContinuation, SessionEnded, StoreError, UnknownSession
from hermes.store import Rotation


def test_a_second_create_fills_only_what_is_missing(store, world):
    store.create_session("a", "tui", model="m1", started_at=10.0)
    world.pass_time(5)
    store.create_session(
        "a", "telegram", model="m2", user_id="u", cwd="/w", model_config={"x": 1}, started_at=99.0
    )
    session = store.get_session("a")
    assert (session.source, session.model, session.started_at) == ("tui", "m1", 10.0)
    assert (session.user_id, session.cwd, session.model_config) == ("u", "/w", {"x": 1})


def test_a_session_without_an_id_gets_one_that_contains_its_time(store, world):
    world.now = 0.0
    assert store.create_session() == "19700101_000000_00000001"


def test_a_prompt_and_a_configuration_are_kept_and_not_overwritten(store):
    store.create_session("a", "tui", system_prompt="be kind")
    store.create_session("a", "tui", system_prompt="be rude", model_config={})
    assert store.get_session("a").system_prompt == "be kind"
    assert store.get_session("a").model_config is None
    store.set_system_prompt("a", "be brief")
    assert store.get_session("a").system_prompt == "be brief"


def test_an_unknown_parent_is_refused_and_nothing_is_created(store):
    with pytest.raises(UnknownSession, match="nobody"):
        store.create_session("a", "tui", parent_session_id="nobody")
    assert store.get_session("a") is None


def test_a_later_session_cannot_become_a_parent_so_there_is_no_cycle(store):
    store.create_session("a", "tui")
    store.create_session("b", "tui", parent_session_id="a")
    with pytest.raises(StoreError, match="not older"):
        store.create_session("a", "tui", parent_session_id="b")
    with pytest.raises(StoreError, match="not older"):
        store.create_session("a", "tui", parent_session_id="a")


def test_a_missing_parent_can_be_filled_in_later(store):
    store.create_session("a", "tui")
    store.create_session("b", "tui")
    store.create_session("b", "tui", parent_session_id="a")
    assert store.get_session("b").parent_session_id == "a"


def test_the_kind_of_a_child_follows_from_how_its_parent_ended(store):
    store.create_session("a", "tui")
    store.create_session("draft", "tui", parent_session_id="a")
    store.end_session("a", "compression")
    store.create_session("b", "tui", parent_session_id="a")
    store.create_session("c", "tui", parent_session_id="a")
    kinds = [store.get_session(i).kind for i in ("a", "draft", "b", "c")]
    assert kinds == ["new", "branch", "compression", "branch"]


def test_a_second_compression_child_is_refused_naming_the_first(store):
    store.create_session("a", "tui")
    with pytest.raises(StoreError, match="a has not ended by compression"):
        store.create_session("b", "tui", parent_session_id="a", kind="compression")
    store.end_session("a", "compression")
    store.create_session("b", "tui", parent_session_id="a", kind="compression")
    with pytest.raises(HasContinuation, match="continues in b"):
        store.create_session("c", "tui", parent_session_id="a", kind="compression")
    with pytest.raises(StoreError, match="needs its parent"):
        store.create_session("c", "tui", kind="compression")


def test_the_index_refuses_a_fork_that_sql_tries(store, sql):
    store.create_session("a", "tui")
    store.end_session("a", "compression")
    store.create_session("b", "tui", parent_session_id="a", kind="compression")
    with pytest.raises((apsw.ConstraintError, psycopg.errors.UniqueViolation), match=r"(?i)unique"):
        sql(
            "INSERT INTO sessions (id, source, kind, parent_no, started_at, last_active) "
            "SELECT 'c', 'x', 'compression', no, 1, 1 FROM sessions WHERE id = 'a'"
        )
    assert sql("SELECT count(*) FROM sessions") == [[2]]


def test_the_first_reason_to_end_wins(store, world):
    store.create_session("a", "tui")
    assert store.end_session("a", "compression") is True
    ended_at = world.now
    world.pass_time(9)
    assert store.end_session("a", "user_exit") is False
    session = store.get_session("a")
    assert (session.end_reason, session.ended_at) == ("compression", ended_at)


def test_ending_an_unknown_session_is_not_an_error(store):
    assert store.end_session("nobody", "user_exit") is False


def test_a_reopened_session_accepts_rows_and_may_end_for_another_reason(store):
    store.create_session("a", "tui")
    store.end_session("a", "user_exit")
    with pytest.raises(SessionEnded, match="user_exit"):
        store.append_message("a", "user", "too late")
    store.reopen_session("a")
    store.append_message("a", "user", "in time")
    store.end_session("a", "tui_close")
    assert store.get_session("a").end_reason == "tui_close"


def test_reopening_is_refused_with_the_tip_if_a_child_continues_the_session(store):
    store.create_session("a", "tui")
    for parent, child in (("a", "b"), ("b", "c")):
        done = Rotation(
            session_id=parent,
            child_session_id=child,
            messages=[],
            rotation_id=child,
            rewrites=0,
            upto=0,
        )
        store.rotate(done)
    with pytest.raises(HasContinuation, match="continues in c"):
        store.reopen_session("a")
    with pytest.raises(UnknownSession):
        store.reopen_session("nobody")


@pytest.mark.parametrize(
    ("reason", "promoted"),
    [("agent_close", True), ("ws_orphan_reap", True), ("compression", False), ("user_exit", False)],
)
def test_only_an_accident_can_be_promoted_to_a_reset(store, reason, promoted):
    store.create_session("a", "tui")
    store.end_session("a", reason)
    assert store.promote_to_session_reset("a") is promoted
    expected = "session_reset" if promoted else reason
    assert store.get_session("a").end_reason == expected


def test_a_live_session_can_be_reset_and_an_unknown_one_cannot(store):
    store.create_session("a", "tui")
    assert store.promote_to_session_reset("a", "idle") is True
    assert store.get_session("a").end_reason == "idle"
    assert store.promote_to_session_reset("nobody") is False


def test_ensure_session_creates_a_missing_session(store):
    store.ensure_session("a")
    store.ensure_session("a", "tui")
    assert store.get_session("a").source == "unknown"


def test_the_head_of_a_session_without_a_row_is_zero(store):
    head = store.head("later")
    assert (head.session_id, head.message_count, head.revision, head.rewrites) == ("later", 0, 0, 0)


def test_a_parent_that_is_filled_in_later_determines_the_kind(store):
    store.create_session("p", "tui")
    store.end_session("p", "compression")
    store.ensure_session("c")
    store.create_session("c", "tui", parent_session_id="p")
    assert store.get_session("c").kind == "compression"
    assert store.get_compression_tip("p") == "c"
