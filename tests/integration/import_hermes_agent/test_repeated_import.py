"""Imports that are repeated: after changes on either side, and after a crash."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from hermes.messages import Usage
from hermes.store import Clock, SessionStore
from hermes.store.import_hermes_agent.importer import Counts
from tests.support.agent_homes import NOW
from tests.support.agent_imports import codes, dump, run_import, texts


def test_a_second_import_adds_what_is_new(home, store):
    home.session("a", "one", "two", source="telegram")
    home.session("same", "x")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "a")})
    run_import(store, home)
    revision = store.get_session("a").revision
    home.say("a", "three")
    home.run("UPDATE sessions SET title = 'Named', model = 'big' WHERE id = 'a'")
    home.session("b", "other", source="telegram")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "b")})
    report = run_import(store, home)
    assert report.sessions == Counts(imported=2, already_present=1)
    assert (report.updated, report.messages) == (1, Counts(imported=2, already_present=3))
    assert report.routes == Counts(imported=1)
    assert texts(store, "a") == ["one", "two", "three"]
    session = store.get_session("a")
    assert (session.title, session.model, session.message_count) == ("Named", "big", 3)
    assert (session.revision, session.rewrites) == (revision + 1, 0)
    assert store.get_route("agent:main:telegram:dm:1").session_id == "b"
    assert [hit.role for hit in store.search_messages("three")] == ["user"]
    assert store.integrity_check() == []
    assert store.check_search() is None
    before = dump(store)
    assert run_import(store, home).sessions == Counts(already_present=3)
    assert dump(store) == before


def test_a_compaction_in_the_source_is_followed(home, store):
    home.session("a", "one", "two", "three")
    run_import(store, home)
    ids = [m.id for m in store.get_messages("a")]
    home.run("UPDATE messages SET active = 0, compacted = 1 WHERE content IN ('one', 'two')")
    home.say("a", "summary")
    report = run_import(store, home)
    assert (report.updated, report.messages) == (1, Counts(imported=4))
    assert texts(store, "a") == ["three", "summary"]
    hits = {hit.snippet: hit.compacted for hit in store.search_messages("one OR three OR summary")}
    assert hits == {">>>one<<<": True, ">>>three<<<": False, ">>>summary<<<": False}
    assert store.get_session("a").rewrites > 0
    assert store.integrity_check() == []
    assert store.check_search() is None
    assert [m.id for m in store.get_messages("a", include_rewound=True)][: len(ids)] == ids


def test_a_transcript_that_was_rewritten_in_the_source_hides_the_old_rows(home, store):
    home.session("a", "one", "two", "three", input_tokens=5)
    run_import(store, home)
    home.run("DELETE FROM messages")
    home.run("UPDATE sessions SET input_tokens = 9")
    home.say("a", "two", "assistant", NOW - 899)
    home.say("a", "four")
    run_import(store, home)
    assert texts(store, "a") == ["two", "four"]
    assert texts(store, "a", include_rewound=True) == ["one", "two", "three", "four"]
    assert [call.input_tokens for call in store.get_usage("a")] == [9]
    assert store.get_session("a").input_tokens == 9


def test_an_end_and_a_continuation_in_the_source_are_followed(home, store):
    home.session("a", "one", source="telegram")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "a")})
    run_import(store, home)
    home.run("UPDATE sessions SET ended_at = ?, end_reason = 'compression'", NOW - 1)
    home.session("child", "two", parent_session_id="a", source="telegram")
    run_import(store, home)
    assert store.get_compression_lineage("a") == ["a", "child"]
    assert store.get_session("a").end_reason == "compression"
    home.run(
        "UPDATE sessions SET ended_at = NULL, end_reason = NULL, title = 'open' WHERE id = 'a'"
    )
    run_import(store, home)
    assert store.get_session("a").end_reason == "compression"  # it continues in its child


def test_a_route_that_was_finalized_since_gets_a_new_session(home, store):
    home.session("a", "one", source="telegram")
    key = "agent:main:telegram:dm:1"
    home.routes({key: home.entry(1, "a")})
    run_import(store, home)
    home.routes({key: home.entry(1, "a", expiry_finalized=True)})
    run_import(store, home)
    assert store.get_session("a").end_reason == "session_reset"
    assert store.get_route(key).session_id != "a"
    store.new_session(key)
    ids = [b.session_id for b in store.pending_boundaries() if b.event == "on_session_finalize"]
    assert "a" not in ids


CHANGES = {
    "appended": lambda store: store.append_message("a", "user", "added here"),
    "rewound": lambda store: store.rewind("a", store.get_messages("a")[-1].id),
    "titled": lambda store: store.set_session_title("a", "Ours"),
    "ended": lambda store: store.end_session("a", "closed"),
    "spent": lambda store: store.update_token_counts("a", Usage("turn", "m", None, 5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_session_that_was_changed_on_both_sides_is_left_unchanged(home, store, change):
    home.session("a", "one", "two")
    run_import(store, home)
    CHANGES[change](store)
    before = dump(store)
    report = run_import(store, home)
    assert (report.sessions, report.notes) == (Counts(already_present=1), [])
    home.say("a", "added there")
    report = run_import(store, home)
    assert (report.sessions, codes(report)) == (Counts(skipped=1), ["changed-here"])
    assert report.messages == Counts(already_present=2, skipped=1)
    assert dump(store) == before


def test_a_deleted_session_is_imported_again(home, store):
    home.session("a", "one")
    run_import(store, home)
    store.delete_session("a")
    assert run_import(store, home).sessions == Counts(imported=1)
    store.delete_session("a")
    store.create_session("a", "cli")
    assert codes(run_import(store, home)) == ["id-in-use"]


# After a crash

KILLED = """
import os, signal, sys
from pathlib import Path
from hermes.store import Clock, SessionStore
from hermes.store.import_hermes_agent.source import open_home
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.importer import import_home
from hermes.store.cli.opening import run_chunked

def kill(number):
    if number == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

clock = Clock(wall=lambda: float(sys.argv[4]))
with SessionStore(sys.argv[1], clock=clock) as store:
    with open_home(Path(sys.argv[2]), ImportNotes(float(sys.argv[4]))) as home:
        run_chunked(store, import_home(home), kill)
"""


def fill(home):
    """Write sessions of every kind, and routes."""
    for number in range(3):
        home.session(f"plain {number}", "hello", "hi", title="Talk" if number == 0 else None)
    home.session("root", "one", ended_at=1, end_reason="compression", title="Long")
    home.session("tip", "two", parent_session_id="root", title="Long #2", input_tokens=5)
    home.session("fork", "three", parent_session_id="root", ended_at=1, end_reason="agent_close")
    home.routes({f"agent:main:telegram:dm:{n}": home.entry(n, f"plain {n}") for n in range(3)})


def test_an_import_that_was_killed_and_repeated_gives_the_same_result(home, tmp_path):
    fill(home)
    home.close()
    with SessionStore(tmp_path / "one.db", clock=Clock(wall=lambda: NOW)) as store:
        report = run_import(store, home.path)
        expected = dump(store)
    steps = report.sessions.imported + report.routes.imported + 1
    for number in range(1, steps + 1, 3):
        path = tmp_path / f"killed{number}.db"
        arguments = [str(path), str(home.path), str(number), str(NOW)]
        done = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        with SessionStore(path, clock=Clock(wall=lambda: NOW)) as store:
            run_import(store, home.path)
            assert dump(store) == expected
