"""Whatever a home contains, every session and message is imported or in the report."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import apsw
from hypothesis import HealthCheck, given, strategies as st

from hermes.store import Clock, SessionStore
from hermes.store.maintenance.cleanup import session_ids
from tests.support.agent_homes import NOW, Home
from tests.support.agent_imports import dump, run_import
from tests.support.examples import examples

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # hundreds of files, quickly
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "", "x" * 201, "\x1b", "é"])
NUMBERS = st.one_of(
    st.none(),
    st.integers(-(2**62), 2**62),
    st.floats(),
    st.sampled_from([0, 1, NOW, "text", b"\xff"]),
)
JSONS = st.one_of(
    st.none(), st.text(max_size=5), st.binary(max_size=3),
    st.recursive(st.none() | st.text(max_size=3) | st.integers() | st.floats(),
                 lambda inner: st.lists(inner, max_size=3)
                 | st.dictionaries(st.sampled_from(["id", "function", "name", "arguments", "type",
                                                    "_delegate_from", "_branched_from"]),
                                   inner, max_size=4), max_leaves=8).map(json.dumps),
)  # fmt: skip
WORDS = st.one_of(st.none(), st.text(max_size=8), st.binary(max_size=4), JSONS)
SESSION = st.fixed_dictionaries(
    {"id": NAMES | st.none() | st.binary(max_size=3)},
    optional={
        "parent_session_id": NAMES,
        "end_reason": st.sampled_from([None, "compression", "branched", "agent_close"]),
        "ended_at": NUMBERS, "started_at": NUMBERS, "title": WORDS, "model_config": JSONS,
        "source": st.sampled_from(["cli", "tui", "tool", b"\xff"]), "input_tokens": NUMBERS,
        "estimated_cost_usd": NUMBERS, "archived": NUMBERS, "expiry_finalized": NUMBERS,
        "session_key": WORDS, "system_prompt": WORDS, "api_call_count": NUMBERS,
    },
)  # fmt: skip
MESSAGE = st.fixed_dictionaries(
    {"session_id": NAMES, "role": st.sampled_from(["user", "assistant", "tool", "", b"\xff"])},
    optional={
        "content": WORDS | JSONS.map(lambda t: f"\x00json:{t}"), "timestamp": NUMBERS,
        "tool_calls": JSONS, "reasoning_details": JSONS, "reasoning": WORDS,
        "reasoning_content": WORDS, "codex_message_items": JSONS, "token_count": NUMBERS,
        "active": st.sampled_from([None, 0, 1, "x"]), "compacted": NUMBERS,
        "platform_message_id": st.sampled_from([None, "1", "2"]), "tool_call_id": WORDS,
        "api_content": WORDS, "observed": NUMBERS,
    },
)  # fmt: skip
USAGE = st.fixed_dictionaries(
    {"session_id": NAMES},
    optional={"model": WORDS, "task": WORDS, "input_tokens": NUMBERS, "actual_cost_usd": NUMBERS},
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "session_id": NAMES, "expiry_finalized": st.booleans(), "memory_flushed": st.booleans(),
        "updated_at": st.sampled_from(["2026-01-02T03:04:05", "never", 5, "0001-01-01T00:00:00"]),
        "origin": st.none() | st.fixed_dictionaries({}, optional={"chat_id": NUMBERS.filter(
            lambda n: not isinstance(n, bytes)), "thread_id": st.none() | st.text(max_size=2)}),
        "platform": st.sampled_from(["telegram", 5, None]), "suspended": st.booleans(),
    },
)  # fmt: skip
KEYS = st.sampled_from(["agent:main:telegram:dm:1", "agent:main:telegram:group:1:2", "k", "\x1b"])


def write_all(home, sessions, messages, usage):
    for fields in sessions:
        source = fields.get("source", "cli")
        try:
            home.insert("sessions", **{**fields, "source": source})
        except apsw.ConstraintError:  # a duplicate id
            continue
    for fields in messages:
        home.insert("messages", **fields)
    for fields in usage:
        home.insert("session_model_usage", **fields)


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(
    sessions=st.lists(SESSION, max_size=6),
    messages=st.lists(MESSAGE, max_size=12),
    usage=st.lists(USAGE, max_size=3),
    entries=st.dictionaries(KEYS, ENTRY | st.text(max_size=3), max_size=3),
    later=st.lists(MESSAGE, max_size=3),
    toggled=st.booleans(),
)
def test_every_session_and_message_is_imported_or_in_the_report(
    sessions, messages, usage, entries, later, toggled
):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        home = Home(Path(folder) / "home")
        home.db.execute("PRAGMA journal_mode = delete").fetchall()
        write_all(home, sessions, messages, usage)
        home.routes(entries)
        with SessionStore(Path(folder) / "ours.db", clock=Clock(wall=lambda: NOW)) as store:
            import_and_count(store, home)
            write_all(home, [], later, [])
            if toggled:
                home.run("UPDATE messages SET active = NOT coalesce(active, 1) WHERE id % 2")
            exported = import_and_count(store, home)
        home.close()
        with SessionStore(Path(folder) / "third.db", clock=Clock(wall=lambda: NOW)) as third:
            done = third.import_sessions(exported)  # they are valid exports
            assert done.sessions == len(exported)


def import_and_count(store, home):
    """Import a home, check that the counts of the report add up, and return all sessions."""
    report = run_import(store, home)
    [[source_sessions]] = home.run("SELECT count(*) FROM sessions")
    [[source_messages]] = home.run("SELECT count(*) FROM messages")
    assert total(report.sessions) == source_sessions
    assert total(report.messages) == source_messages
    stored = store.snapshot(lambda tx: tx.all("SELECT count(*) FROM sessions"))[0][0]
    assert stored == source_sessions - report.sessions.skipped
    stored = store.snapshot(lambda tx: tx.all("SELECT count(*) FROM all_messages"))[0][0]
    assert stored >= source_messages - report.messages.skipped
    if report.sessions.skipped or report.messages.skipped or report.routes.skipped:
        assert report.notes
    assert store.integrity_check() == []
    assert store.check_search() is None
    before = dump(store)
    again = run_import(store, home)
    assert (again.sessions.imported, again.messages.imported, again.routes.imported) == (0, 0, 0)
    assert dump(store) == before
    return [store.export_session(name) for name in store.snapshot(session_ids)]


def total(counts):
    return counts.imported + counts.already_present + counts.skipped
