"""Routes and session keys."""

from __future__ import annotations

import pytest

from hermes.store.import_hermes_agent.importer import Counts
from tests.support.agent_homes import NOW
from tests.support.agent_imports import codes, dump, run_import


def test_routes_are_imported(home, store):
    home.session("a", "x", source="telegram")
    home.session("root", "x", source="telegram", ended_at=1, end_reason="compression")
    home.session("tip", "x", source="telegram", parent_session_id="root")
    home.session("b", "x", source="telegram", ended_at=1, end_reason="agent_close")
    key = "agent:main:telegram:"
    home.routing({f"{key}dm:1": home.entry(1, "a")})
    home.routes(
        {
            f"{key}dm:1": home.entry(1, "older"),
            f"{key}group:2:ann": home.entry(2, "root", chat_type="group"),
            f"{key}group:3:7": home.entry(3, "b", chat_type="group", thread_id="7"),
        }
    )
    report = run_import(store, home)
    assert (report.routes, report.notes) == (Counts(imported=3), [])
    found = store.get_route(f"{key}dm:1")
    assert (found.session_id, found.platform, found.user_id) == ("a", "telegram", "ann")
    assert found.last_active == 1767323046.0  # in local time; tests run in UTC
    assert store.get_route(f"{key}group:2:ann").session_id == "tip"
    # The key of a shared thread ends in a colon, so it cannot be that of a participant.
    assert store.get_route(f"{key}group:3:7:").session_id == "b"
    assert store.get_session("b").session_key == f"{key}group:3:7:"
    before = dump(store)
    assert run_import(store, home).routes == Counts(already_present=3)
    assert dump(store) == before


@pytest.mark.parametrize("holder", [0, 1])
def test_the_title_of_a_session_with_two_routes_is_unused_by_both_keys(home, store, holder):
    keys = [f"agent:main:telegram:dm:{number}" for number in (1, 2)]
    for key in keys:
        store.create_session(f"ours-{key}", session_key=key)
    store.set_session_title(f"ours-{keys[holder]}", "Talk")
    home.session("a", "x", source="telegram", title="Talk")
    home.routes({key: home.entry(number, "a") for number, key in enumerate(keys, 1)})
    assert run_import(store, home).routes == Counts(imported=2)
    assert store.get_session("a").title == "Talk #2"
    for key in keys:
        assert store.find("Talk #2", session_key=key).session_id == "a"


@pytest.mark.parametrize(
    ("flags", "finalized"),
    [
        ({"expiry_finalized": True}, True),
        ({"memory_flushed": True}, True),
        ({"expiry_finalized": False, "memory_flushed": True}, False),
        ({"expiry_finalized": False}, False),
        ({}, False),
    ],
    ids=str,
)
def test_a_finalized_session_is_not_finalized_again(home, store, flags, finalized):
    home.session("a", "x", source="telegram")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "a", **flags)})
    report = run_import(store, home)
    session = store.get_session("a")
    assert (session.end_reason, codes(report)) == (
        ("session_reset", ["finalized"]) if finalized else (None, [])
    )
    store.new_session("agent:main:telegram:dm:1")
    ids = [b.session_id for b in store.pending_boundaries() if b.event == "on_session_finalize"]
    assert ids == ([] if finalized else ["a"])


def test_a_session_belongs_to_each_key_whose_route_names_it(home, store):
    home.session("a", "hello", end_reason="compression", ended_at=NOW - 50)
    home.session("b", "summary", parent_session_id="a", started_at=NOW - 40)
    keys = [f"agent:main:telegram:dm:{number}" for number in (1, 2)]
    home.routes({key: home.entry(number, "b") for number, key in enumerate(keys, start=1)})
    assert run_import(store, home).routes == Counts(imported=2)
    for key in keys:
        store.new_session(key)
        assert store.switch(key, "a").session_id == "b"
        assert [each.session.id for each in store.list_sessions(session_key=key)] == ["b"]


def test_the_column_of_the_session_counts_if_its_route_does_not_say(home, store):
    home.session("a", "x", expiry_finalized=1)
    home.session("b", "x", expiry_finalized=1, source="telegram")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "b", expiry_finalized=False)})
    assert codes(run_import(store, home)) == ["finalized"]
    assert store.get_session("a").end_reason == "session_reset"
    assert store.get_session("b").end_reason is None  # it was resumed in hermes-agent


def test_routes_that_cannot_be_imported_are_reported(home, store):
    home.session("over", "x", ended_at=1, end_reason="session_reset")
    home.session("a", "x", source="telegram")
    store.new_session("agent:main:telegram:dm:9")
    existing = store.get_route("agent:main:telegram:dm:9")
    key = "agent:main:telegram:dm:"
    home.routing({f"{key}1": "{nonsense", f"{key}2": home.entry(2, "../x\n")})
    home.routing({f"{key}3": home.entry(3, "a")}, scope="/elsewhere", updated_at=NOW - 5)
    home.routing({f"{key}3": home.entry(3, "over")})
    home.routes(
        {
            f"{key}4": home.entry(4, "nobody"),
            f"{key}5": "no entry",
            f"{key}9": home.entry(9, "a", suspended=True, resume_pending=True,
                                  model_override={"model": "m"}),
            "bad\nkey": home.entry(6, "a"),
        }
    )  # fmt: skip
    report = run_import(store, home)
    assert report.routes == Counts(skipped=8)
    assert codes(report) == [
        "bad-route", "key-dropped", "model-override", "resume-pending", "route-ended",
        "route-in-use", "route-twice", "route-without-session", "suspended",
    ]  # fmt: skip
    assert store.get_route("agent:main:telegram:dm:9") == existing


def test_a_file_of_routes_that_is_not_json_is_ignored(home, store):
    home.session("a", "x")
    home.routes({})
    (home.path / "sessions" / "sessions.json").write_bytes(b"\xff{")
    assert codes(run_import(store, home)) == ["bad-file"]


@pytest.mark.parametrize("chat", ["5", "5:ann", "5:7", "5:7:ann"])
def test_a_group_keeps_its_shared_or_personal_key(home, store, chat):
    home.session("a", "x", source="telegram")
    thread = "7" if ":7" in chat else None
    key = f"agent:main:telegram:group:{chat}"
    home.routes({key: home.entry(5, "a", chat_type="group", thread_id=thread)})
    run_import(store, home)
    translated = f"{key}:" if chat == "5:7" else key
    assert store.get_route(translated).session_id == "a"


def test_a_key_with_characters_that_hermes_escapes_is_translated(home, store):
    home.session("a", "x", source="matrix", session_key="agent:coder:matrix:dm:!r:example.org",
                 chat_id="!r:example.org", chat_type="dm")  # fmt: skip
    home.session("b", "x", source="odd", session_key="agent:main:odd:group:1:2:3:4", chat_id="9")
    report = run_import(store, home)
    assert store.get_session("a").session_key == "agent:coder:matrix:dm:!r%3Aexample.org"
    assert store.get_session("b").session_key == "agent:main:odd:group:1:2:3:4"
    assert codes(report) == ["key-kept"]
