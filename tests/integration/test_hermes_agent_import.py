"""A hermes-agent home becomes ours: all of it is here or in the report, whatever is in it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from bench import peers_env
from hermes.errors import StoreError, StoreRefused
from hermes.messages import ToolCall, Usage
from hermes.store import Clock, SessionStore
from hermes.store.cli.opening import drive
from hermes.store.import_hermes_agent.importer import Counts, take_home
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.source import open_home
from hermes.store.maintenance.cleanup import session_ids
from tests.integration.agent_homes import NOW, Home

VERSIONS = [1, 4, 6, 11, 16, 17, 18, 19, 21, 22]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # hundreds of files, quickly
PEER = Path(__file__).with_name("peer_writes_home.py")


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path / "home")
    yield made
    made.close()


@pytest.fixture
def store(path):
    with SessionStore(path, clock=Clock(wall=lambda: NOW)) as opened:
        yield opened


def take(store, home):
    """Import the home while its writer has it open, as a gateway would."""
    folder = home.path if isinstance(home, Home) else home
    with open_home(folder, ImportNotes(NOW)) as opened:
        return drive(store, take_home(opened), lambda _: None)


def codes(report):
    return sorted({note.code for note in report.notes})


def whole(store):
    """All that an import can have changed."""
    tables = ("sessions", "session_texts", "all_messages", "usage", "routes", "meta")
    return store.snapshot(
        lambda tx: {name: tx.all(f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables}
    )


def texts(store, session_id, **options):
    return [message.content for message in store.get_messages(session_id, **options)]


# Sessions


@pytest.mark.parametrize("version", VERSIONS)
def test_a_home_of_any_version_is_taken(tmp_path, store, version):
    home = Home(tmp_path / "home", version)
    home.session("a", "hello", "hi", model="big", system_prompt="Be kind.", user_id="ann",
                 model_config={"temperature": 0.5}, ended_at=NOW - 10, end_reason="cli_close",
                 input_tokens=7, output_tokens=3)  # fmt: skip
    home.close()
    report = take(store, home.path)
    assert (report.schema_version, report.sessions, report.messages) == (
        version, Counts(taken=1), Counts(taken=2),
    )  # fmt: skip
    session = store.get_session("a")
    assert (session.source, session.kind, session.model) == ("cli", "new", "big")
    assert (session.system_prompt, session.user_id) == ("Be kind.", "ann")
    assert session.model_config == {"temperature": 0.5}
    assert (session.started_at, session.last_active) == (NOW - 1000, NOW - 899)
    assert (session.ended_at, session.end_reason) == (NOW - 10, "cli_close")
    assert (session.message_count, session.input_tokens, session.output_tokens) == (2, 7, 3)
    assert texts(store, "a") == ["hello", "hi"]
    assert report.notes == []
    assert store.integrity_check() == []
    assert [hit.session_id for hit in store.search_messages("hello")] == ["a"]
    assert store.check_search() is None


def test_a_newer_home_and_other_files_are_refused(tmp_path, store):
    Home(tmp_path / "new", 23).close()
    with pytest.raises(StoreRefused, match=r"newer hermes-agent .schema 23; up to 22 is known"):
        take(store, tmp_path / "new")
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(StoreRefused, match=r"has no state.db"):
        take(store, other)
    recipes = apsw.Connection(str(other / "state.db"))
    recipes.execute("CREATE TABLE recipes (id)")
    recipes.close()
    with pytest.raises(StoreRefused, match="no hermes-agent database"):
        take(store, other)
    (other / "state.db").write_text("a" * 200)
    with pytest.raises(StoreRefused, match="no SQLite file"):
        take(store, other)
    with pytest.raises(StoreRefused, match="is a Hermes database"):
        take(store, store.path)


def test_a_line_of_compressions_stays_one_conversation(home, store):
    home.session("tip", "three", parent_session_id="middle", title="Talk #3")
    home.session("middle", "two", parent_session_id="root", ended_at=NOW - 50,
                 end_reason="compression", title="Talk #2")  # fmt: skip
    home.session("root", "one", ended_at=NOW - 60, end_reason="compression", title="Talk",
                 session_key="agent:main:telegram:dm:1", chat_id="1")  # fmt: skip
    report = take(store, home)
    assert store.get_compression_lineage("root") == ["root", "middle", "tip"]
    assert [store.get_session(name).title for name in ("root", "middle", "tip")] == [
        "Talk", "Talk #2", "Talk #3",
    ]  # fmt: skip
    # The children of a gateway's session have no key there.
    assert store.get_session("tip").session_key == "agent:main:telegram:dm:1"
    assert report.notes == []
    [listed] = store.list_sessions()
    assert (listed.session.id, listed.root_session_id) == ("tip", "root")


def test_of_two_that_continue_one_the_other_is_a_fork(home, store):
    home.session("parent", "one", ended_at=NOW - 60, end_reason="compression")
    home.session("stale", "x", parent_session_id="parent", ended_at=1, end_reason="ws_orphan_reap")
    home.say("stale", "the latest of all", timestamp=NOW)
    home.session("live", "y", parent_session_id="parent")
    home.session("branch", "z", parent_session_id="parent",
                 model_config={"_branched_from": "parent"})  # fmt: skip
    home.session("tool", "z", parent_session_id="parent", source="tool")
    report = take(store, home)
    kinds = {name: store.get_session(name).kind for name in ("stale", "live", "branch", "tool")}
    assert kinds == {"stale": "fork", "live": "compression", "branch": "branch", "tool": "import"}
    assert {store.get_session(name).parent_session_id for name in kinds} == {"parent"}
    assert store.get_compression_tip("parent") == "live"
    assert [(n.code, n.subject) for n in report.notes] == [("fork", "stale"), ("delegate", "tool")]


def test_a_line_that_was_compressed_on_is_preferred_to_a_live_one(home, store):
    home.session("parent", "one", ended_at=NOW - 60, end_reason="compression")
    home.session("live", "y", parent_session_id="parent")
    home.session("went on", "x", parent_session_id="parent", ended_at=1, end_reason="compression")
    home.session("tip", "z", parent_session_id="went on")
    take(store, home)
    assert store.get_compression_lineage("parent") == ["parent", "went on", "tip"]
    assert store.get_session("live").kind == "fork"


def test_branches_of_old_and_subagents(home, store):
    home.session("parent", "one", ended_at=NOW - 60, end_reason="branched")
    home.session("branch", "x", parent_session_id="parent", started_at=NOW - 50)
    home.session("sub", "y", parent_session_id="parent", started_at=NOW - 70,
                 model_config={"_delegate_from": "parent"})  # fmt: skip
    report = take(store, home)
    assert store.get_session("branch").kind == "branch"
    assert (store.get_session("sub").kind, codes(report)) == ("import", ["delegate"])
    assert store.get_session("sub").model_config == {"_delegate_from": "parent"}


def test_parents_that_are_missing_or_their_own_children(home, store):
    home.session("orphan", "x", parent_session_id="nobody")
    home.session("self", "x", parent_session_id="self")
    home.session("a", "x", parent_session_id="b", ended_at=1, end_reason="compression")
    home.session("b", "x", parent_session_id="a", ended_at=1, end_reason="compression")
    report = take(store, home)
    assert report.sessions == Counts(taken=4)
    assert codes(report) == ["cycle", "parent-missing"]
    assert store.get_session("orphan").parent_session_id is None
    assert store.get_session("self").parent_session_id is None
    assert store.get_session("a").parent_session_id == "b"
    assert store.get_session("b").parent_session_id is None
    before = whole(store)
    assert take(store, home).sessions == Counts(already_here=4)
    assert whole(store) == before


def test_ids_that_cannot_be_ones_here_are_reported_with_their_messages(home, store):
    home.session("x" * 201, "a", "b")
    home.session("line\nbreak", "c")
    home.session(b"\xff".decode("latin-1"), "d")
    home.run("UPDATE sessions SET id = CAST(x'ff41' AS TEXT) WHERE id = 'ÿ'")
    home.run("UPDATE messages SET session_id = CAST(x'ff41' AS TEXT) WHERE session_id = 'ÿ'")
    home.session("child", "e", parent_session_id="line\nbreak")
    home.say("no such session", "f")
    home.say("no such session", "g")
    report = take(store, home)
    assert report.sessions == Counts(taken=1, not_taken=3)
    assert report.messages == Counts(taken=1, not_taken=6)
    assert codes(report) == ["bad-id", "no-session", "parent-missing"]


def test_a_session_of_ours_with_the_same_id_is_left(home, store):
    store.create_session("a", "cli")
    store.append_message("a", "user", "ours")
    home.session("a", "theirs", "yes")
    before = whole(store)
    report = take(store, home)
    assert (report.sessions, report.messages) == (Counts(not_taken=1), Counts(not_taken=2))
    assert codes(report) == ["id-in-use"]
    assert whole(store) == before


def test_what_came_here_by_another_way_is_known(home, store, tmp_path):
    home.session("a", "hello", "hi")
    with SessionStore(tmp_path / "other.db", clock=Clock(wall=lambda: NOW)) as other:
        take(other, home)
        store.import_sessions([other.export_session("a")])
    report = take(store, home)
    assert (report.sessions, report.messages) == (Counts(already_here=1), Counts(already_here=2))


def test_titles_stay_unique(home, store):
    store.create_session("ours", "cli")
    store.set_session_title("ours", "Talk")
    home.session("a", "x", title="Talk")
    home.session("b", "x", title="y" * 150)
    home.session("c", "x", title=" \x1b[31mred\n ")
    report = take(store, home)
    assert [store.get_session(name).title for name in ("a", "b", "c")] == [
        "Talk #2", "y" * 100, "[31mred",
    ]  # fmt: skip
    assert codes(report) == ["title-cut", "title-renamed"]


def test_what_terminals_left_behind_is_not_taken(home, store):
    home.session("ghost", source="tui", ended_at=NOW - 90_000, end_reason="tui_close",
                 started_at=NOW - 90_000)  # fmt: skip
    home.session("child", "x", parent_session_id="ghost")
    report = take(store, home)
    assert report.sessions == Counts(taken=1, not_taken=1)
    assert codes(report) == ["delegate", "ghost", "parent-missing"]
    assert take(store, home).sessions == Counts(already_here=1, not_taken=1)


def test_what_has_no_column_here_is_kept_aside(home, store):
    home.session("a", "x", git_branch="main", display_name="Ann", archived=1, model_config="[1")
    report = take(store, home)
    assert store.get_session("a").model_config == {
        "hermes_agent_text": "[1",
        "hermes_agent": {"git_branch": "main", "display_name": "Ann", "archived": True},
    }
    assert codes(report) == ["archived", "bad-json"]


def test_half_an_end_is_made_whole(home, store):
    home.session("a", "x", ended_at=NOW - 5)
    home.session("b", "x", end_reason="cli_close")
    take(store, home)
    assert store.get_session("a").end_reason == "unknown"
    assert store.get_session("b").ended_at == NOW - 900


@pytest.mark.parametrize("calls", [None, 0, 1])
def test_a_continuation_that_nobody_continued_is_ended_and_no_other(home, store, calls):
    old = {"started_at": NOW - 10 * 86_400}
    home.session("root", "x", ended_at=1, end_reason="compression", **old)
    home.session("tip", "summary", "go on", parent_session_id="root", api_call_count=calls, **old)
    take(store, home)
    ended = store.get_session("tip").end_reason
    assert ended == ("orphaned_compression" if calls == 0 else None)


# Messages


def test_every_field_of_a_message_comes_along(home, store):
    home.session("a")
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"a":1}'}}
    odd = {"call_id": "c2", "function": {"name": "stat", "arguments": {"b": 2}}, "extra": 1}
    home.say("a", None, "assistant", tool_calls=json.dumps([call, odd]), reasoning="think",
             reasoning_content="think more", reasoning_details='[{"type": "text"}]',
             finish_reason="tool_calls", token_count=7, codex_reasoning_items='[{"id": "rs"}]',
             api_content="as sent", platform_message_id="tg:1", observed=1)  # fmt: skip
    home.say("a", "done", "tool", tool_call_id="c1", tool_name="read")
    home.say("a", '\x00json:[{"type": "text", "text": "see"}, {"type": "image"}, "bare"]')
    home.say("a", "taken back", active=0)
    home.say("a", "summed up", active=0, compacted=1)
    report = take(store, home)
    calls, done, seen = store.get_messages("a")
    assert calls.tool_calls == (
        ToolCall("c1", "read", '{"a":1}'),
        ToolCall("c2", "stat", '{"b":2}'),
    )
    assert (calls.reasoning, calls.finish_reason, calls.token_count) == ("think", "tool_calls", 7)
    assert calls.reasoning_details == ({"type": "text"},)
    assert calls.platform_message_id == "tg:1"
    assert calls.provider_data == {
        "hermes_agent": {
            "api_content": "as sent",
            "codex_reasoning_items": [{"id": "rs"}],
            "observed": True,
            "reasoning_content": "think more",
            "tool_calls": [call, odd],
        }
    }
    assert (done.tool_call_id, done.tool_name, done.content) == ("c1", "read", "done")
    assert seen.parts == ({"type": "text", "text": "see"}, {"type": "image"},
                          {"type": "text", "text": "bare"})  # fmt: skip
    assert seen.content == "see\nbare"
    assert texts(store, "a", include_rewound=True)[3:] == ["taken back", "summed up"]
    hidden = store.get_messages("a", include_rewound=True)[-1]
    assert hidden.provider_data == {"hermes_agent": {"compacted": True}}
    assert store.get_session("a").message_count == 3
    assert store.get_session("a").tool_call_count == 2
    assert report.notes == []
    assert report.messages == Counts(taken=5)


BAD = {
    "tool_calls": '[{"id": "c1", ',
    "reasoning_details": "{]",
    "codex_message_items": "[" * 200 + "]" * 200,
    "content": "\x00json:{nonsense",
}


@pytest.mark.parametrize("column", BAD)
def test_json_that_cannot_be_read_is_kept_as_text(home, store, column):
    home.session("a")
    home.say("a", BAD["content"] if column == "content" else "x", "assistant")
    if column != "content":
        home.run(f"UPDATE messages SET {column} = ?", BAD[column])
    report = take(store, home)
    [message] = store.get_messages("a")
    kept = message.content if column == "content" else message.provider_data["hermes_agent"][column]
    assert kept == BAD[column]
    assert codes(report) == ["bad-json"]


def test_deep_json_that_fits_is_kept_as_it_is(home, store):
    home.session("a")
    home.say("a", "x", codex_message_items="[" * 90 + "]" * 90)
    report = take(store, home)
    assert report.notes == []
    assert store.export_session("a")


def test_json_that_would_be_too_deep_in_its_new_place_is_kept_as_text(home, store):
    home.session("a")
    home.say("a", "x", codex_message_items="[" * 98 + "]" * 98)
    assert codes(take(store, home)) == ["bad-json"]
    assert len(store.export_session("a")) > 196


def test_halves_of_characters_are_replaced_and_the_call_is_kept(home, store):
    home.session("a")
    call = {"id": "c1", "type": "function", "function": {"name": "say", "arguments": '"\ud83d"'}}
    home.say("a", None, "assistant", tool_calls=json.dumps([call]))
    take(store, home)
    assert store.get_messages("a")[0].tool_calls == (ToolCall("c1", "say", '"?"'),)


def test_text_that_is_not_utf8_and_values_of_a_wrong_kind(home, store):
    home.session("a")
    home.run(
        "INSERT INTO messages (session_id, role, content, timestamp, token_count, active) "
        "VALUES ('a', 'user', CAST(x'68ff69' AS TEXT), 'yesterday', 'many', 'yes')"
    )
    home.run("INSERT INTO messages (session_id, role, content, timestamp) "
             "VALUES ('a', 5, 17, x'00')")  # fmt: skip
    home.run("UPDATE sessions SET input_tokens = -5, estimated_cost_usd = 'free', cwd = x'ff'")
    report = take(store, home)
    first, second = store.get_messages("a")
    assert (first.content, first.timestamp, first.token_count) == ("h\ufffdi", NOW - 1000, None)
    assert (second.role, second.content) == ("5", "17")
    assert codes(report) == ["bad-number", "bad-time", "not-utf8"]
    assert store.get_session("a").input_tokens == 0


@pytest.mark.parametrize("when", [-5.0, 1e300, float("inf"), -float("inf"), None, 1e15])
def test_times_that_cannot_be_are_replaced_by_the_one_before(home, store, when):
    home.session("a", "x")
    home.say("a", "y", timestamp=when)
    home.say("a", "z", timestamp=NOW - 100)
    home.run("UPDATE sessions SET started_at = ?", when)
    report = take(store, home)
    assert [m.timestamp for m in store.get_messages("a")] == [NOW - 900, NOW - 900, NOW - 100]
    assert store.get_session("a").started_at == NOW - 900
    assert codes(report) == ["bad-time"]


def test_a_platform_message_that_is_shown_twice_is_taken_without_its_id(home, store):
    home.session("a")
    home.say("a", "gone", platform_message_id="1", active=0)
    home.say("a", "x", platform_message_id="1")
    home.say("a", "y", platform_message_id="1")
    report = take(store, home)
    ids = [m.platform_message_id for m in store.get_messages("a", include_rewound=True)]
    assert (ids, codes(report)) == (["1", "1", None], ["platform-id-twice"])


def test_the_one_of_two_platform_messages_that_is_shown_may_change(home, store):
    home.session("a")
    home.say("a", "first", platform_message_id="1", active=1)
    home.say("a", "second", platform_message_id="1", active=0)
    take(store, home)
    for _ in range(2):
        home.run("UPDATE messages SET active = NOT active")
        take(store, home)
        [[shown]] = home.run("SELECT content FROM messages WHERE active")
        assert texts(store, "a") == [shown]
    assert store.integrity_check() == []


def test_a_row_that_is_too_big_is_left_out(home, store):
    home.session("a", "x")
    home.run("INSERT INTO messages (session_id, role, content, timestamp) "
             "VALUES ('a', 'user', zeroblob(67108865), 1)")  # fmt: skip
    home.say("a", "y")
    report = take(store, home)
    assert report.messages == Counts(taken=2, not_taken=1)
    assert (texts(store, "a"), codes(report)) == (["x", "y"], ["too-big"])


# The bill


def test_the_bill_comes_along_and_is_not_of_today(home, store):
    home.session(
        "old", "x", input_tokens=7, actual_cost_usd=0.5, billing_provider="acme", model="m"
    )
    home.session("new", "x", input_tokens=99)
    home.insert("session_model_usage", session_id="new", model="big", billing_provider="",
                input_tokens=5, output_tokens=6, estimated_cost_usd=0.25, task="")  # fmt: skip
    home.insert("session_model_usage", session_id="new", model="small", billing_provider="acme",
                reasoning_tokens=1, task="title_generation")  # fmt: skip
    home.session("called", "x", api_call_count=3)
    take(store, home)
    assert store.get_usage("old") == [Usage("turn", "m", "acme", 7, cost=0.5)]
    assert store.get_usage("new") == [
        Usage("turn", "big", None, 5, 6, cost=0.25),
        Usage("title_generation", "small", "acme", reasoning_tokens=1),
    ]
    assert store.get_session("called").api_call_count == 1
    assert store.spent("new", "cli", None).session == 0.25


def test_what_was_spent_there_is_not_spent_today(home, store):
    home.session("a", "x", estimated_cost_usd=0.25)
    home.run("UPDATE messages SET timestamp = ?", NOW - 2 * 86_400)
    home.run("UPDATE sessions SET started_at = ?", NOW - 2 * 86_400)
    take(store, home)
    spent = store.spent("a", "cli", None)
    assert (spent.session, spent.principal, spent.day) == (0.25, 0, 0)


# Routes


def test_routes_lead_where_they_led(home, store):
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
    report = take(store, home)
    assert (report.routes, report.notes) == (Counts(taken=3), [])
    found = store.get_route(f"{key}dm:1")
    assert (found.session_id, found.platform, found.user_id) == ("a", "telegram", "ann")
    assert found.last_active == 1767323046.0  # by the clock of this machine, which is in UTC
    assert store.get_route(f"{key}group:2:ann").session_id == "tip"
    # A thread that all share has a key here that cannot be a participant's.
    assert store.get_route(f"{key}group:3:7:").session_id == "b"
    assert store.get_session("b").session_key == f"{key}group:3:7:"
    before = whole(store)
    assert take(store, home).routes == Counts(already_here=3)
    assert whole(store) == before


@pytest.mark.parametrize(
    ("flags", "over"),
    [
        ({"expiry_finalized": True}, True),
        ({"memory_flushed": True}, True),
        ({"expiry_finalized": False, "memory_flushed": True}, False),
        ({"expiry_finalized": False}, False),
        ({}, False),
    ],
    ids=str,
)
def test_what_was_finalized_there_is_not_finalized_again(home, store, flags, over):
    home.session("a", "x", source="telegram")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "a", **flags)})
    report = take(store, home)
    session = store.get_session("a")
    assert (session.end_reason, codes(report)) == (
        ("session_reset", ["finalized"]) if over else (None, [])
    )
    store.new_session("agent:main:telegram:dm:1")
    told = [b.session_id for b in store.pending_boundaries() if b.event == "on_session_finalize"]
    assert told == ([] if over else ["a"])


def test_the_column_says_it_where_no_route_does(home, store):
    home.session("a", "x", expiry_finalized=1)
    home.session("b", "x", expiry_finalized=1, source="telegram")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "b", expiry_finalized=False)})
    assert codes(take(store, home)) == ["finalized"]
    assert store.get_session("a").end_reason == "session_reset"
    assert store.get_session("b").end_reason is None  # it was resumed there


def test_routes_that_cannot_be_taken_are_reported(home, store):
    home.session("over", "x", ended_at=1, end_reason="session_reset")
    home.session("a", "x", source="telegram")
    store.new_session("agent:main:telegram:dm:9")
    ours = store.get_route("agent:main:telegram:dm:9")
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
    report = take(store, home)
    assert report.routes == Counts(not_taken=8)
    assert codes(report) == [
        "bad-route", "key-dropped", "model-override", "resume-pending", "route-ended",
        "route-in-use", "route-twice", "route-without-session", "suspended",
    ]  # fmt: skip
    assert store.get_route("agent:main:telegram:dm:9") == ours


def test_a_file_of_routes_that_is_no_json_is_passed_over(home, store):
    home.session("a", "x")
    home.routes({})
    (home.path / "sessions" / "sessions.json").write_bytes(b"\xff{")
    assert codes(take(store, home)) == ["bad-file"]


@pytest.mark.parametrize("place", ["5", "5:ann", "5:7", "5:7:ann"])
def test_a_group_has_the_key_that_its_configuration_gave_it(home, store, place):
    home.session("a", "x", source="telegram")
    thread = "7" if ":7" in place else None
    key = f"agent:main:telegram:group:{place}"
    home.routes({key: home.entry(5, "a", chat_type="group", thread_id=thread)})
    take(store, home)
    ours = f"{key}:" if place == "5:7" else key
    assert store.get_route(ours).session_id == "a"


def test_a_key_with_signs_that_ours_escape_is_translated(home, store):
    home.session("a", "x", source="matrix", session_key="agent:coder:matrix:dm:!r:example.org",
                 chat_id="!r:example.org", chat_type="dm")  # fmt: skip
    home.session("b", "x", source="odd", session_key="agent:main:odd:group:1:2:3:4", chat_id="9")
    report = take(store, home)
    assert store.get_session("a").session_key == "agent:coder:matrix:dm:!r%3Aexample.org"
    assert store.get_session("b").session_key == "agent:main:odd:group:1:2:3:4"
    assert codes(report) == ["key-kept"]


# Again, and again after it grew


def test_a_second_import_takes_what_is_new(home, store):
    home.session("a", "one", "two", source="telegram")
    home.session("same", "x")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "a")})
    take(store, home)
    revision = store.get_session("a").revision
    home.say("a", "three")
    home.run("UPDATE sessions SET title = 'Named', model = 'big' WHERE id = 'a'")
    home.session("b", "other", source="telegram")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "b")})
    report = take(store, home)
    assert report.sessions == Counts(taken=2, already_here=1)
    assert (report.continued, report.messages) == (1, Counts(taken=2, already_here=3))
    assert report.routes == Counts(taken=1)
    assert texts(store, "a") == ["one", "two", "three"]
    session = store.get_session("a")
    assert (session.title, session.model, session.message_count) == ("Named", "big", 3)
    assert (session.revision, session.rewrites) == (revision + 1, 0)
    assert store.get_route("agent:main:telegram:dm:1").session_id == "b"
    assert [hit.role for hit in store.search_messages("three")] == ["user"]
    assert store.integrity_check() == []
    assert store.check_search() is None
    before = whole(store)
    assert take(store, home).sessions == Counts(already_here=3)
    assert whole(store) == before


def test_a_compaction_and_a_rewind_there_are_followed(home, store):
    home.session("a", "one", "two", "three")
    take(store, home)
    ids = [m.id for m in store.get_messages("a")]
    home.run("UPDATE messages SET active = 0, compacted = 1 WHERE content IN ('one', 'two')")
    home.say("a", "summary")
    report = take(store, home)
    assert report.messages == Counts(taken=2 + 1, already_here=1) or report.continued == 1
    assert texts(store, "a") == ["three", "summary"]
    assert store.get_session("a").rewrites > 0
    assert store.integrity_check() == []
    assert store.check_search() is None
    assert [m.id for m in store.get_messages("a", include_rewound=True)][: len(ids)] == ids


def test_a_transcript_that_was_written_anew_there_hides_ours(home, store):
    home.session("a", "one", "two", "three", input_tokens=5)
    take(store, home)
    home.run("DELETE FROM messages")
    home.run("UPDATE sessions SET input_tokens = 9")
    home.say("a", "two", "assistant", NOW - 899)
    home.say("a", "four")
    take(store, home)
    assert texts(store, "a") == ["two", "four"]
    assert texts(store, "a", include_rewound=True) == ["one", "two", "three", "four"]
    assert [call.input_tokens for call in store.get_usage("a")] == [9]
    assert store.get_session("a").input_tokens == 9


def test_an_end_there_comes_along_and_so_does_a_line_that_goes_on(home, store):
    home.session("a", "one", source="telegram")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "a")})
    take(store, home)
    home.run("UPDATE sessions SET ended_at = ?, end_reason = 'compression'", NOW - 1)
    home.session("child", "two", parent_session_id="a", source="telegram")
    take(store, home)
    assert store.get_compression_lineage("a") == ["a", "child"]
    assert store.get_session("a").end_reason == "compression"
    home.run(
        "UPDATE sessions SET ended_at = NULL, end_reason = NULL, title = 'open' WHERE id = 'a'"
    )
    take(store, home)
    assert store.get_session("a").end_reason == "compression"  # it goes on elsewhere, here


def test_a_route_that_was_finalized_since_leads_to_a_new_session(home, store):
    home.session("a", "one", source="telegram")
    key = "agent:main:telegram:dm:1"
    home.routes({key: home.entry(1, "a")})
    take(store, home)
    home.routes({key: home.entry(1, "a", expiry_finalized=True)})
    take(store, home)
    assert store.get_session("a").end_reason == "session_reset"
    assert store.get_route(key).session_id != "a"
    store.new_session(key)
    told = [b.session_id for b in store.pending_boundaries() if b.event == "on_session_finalize"]
    assert "a" not in told


CHANGES = {
    "said": lambda store: store.append_message("a", "user", "said here"),
    "rewound": lambda store: store.rewind("a", store.get_messages("a")[-1].id),
    "titled": lambda store: store.set_session_title("a", "Ours"),
    "ended": lambda store: store.end_session("a", "closed"),
    "spent": lambda store: store.update_token_counts("a", Usage("turn", "m", None, 5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_on_both_sides_is_left_as_it_is_here(home, store, change):
    home.session("a", "one", "two")
    take(store, home)
    CHANGES[change](store)
    before = whole(store)
    report = take(store, home)
    assert (report.sessions, report.notes) == (Counts(already_here=1), [])
    home.say("a", "said there")
    report = take(store, home)
    assert (report.sessions, codes(report)) == (Counts(not_taken=1), ["changed-here"])
    assert report.messages == Counts(already_here=2, not_taken=1)
    assert whole(store) == before


def test_a_session_that_was_deleted_here_comes_back(home, store):
    home.session("a", "one")
    take(store, home)
    store.delete_session("a")
    assert take(store, home).sessions == Counts(taken=1)
    store.delete_session("a")
    store.create_session("a", "cli")
    assert codes(take(store, home)) == ["id-in-use"]


# Killed in the middle

KILLED = """
import os, signal, sys
from pathlib import Path
from hermes.store import Clock, SessionStore
from hermes.store.import_hermes_agent.source import open_home
from hermes.store.import_hermes_agent.report import Notes
from hermes.store.import_hermes_agent.importer import take_home
from hermes.store.cli.opening import drive

def tell(number):
    if number == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

clock = Clock(wall=lambda: float(sys.argv[4]))
with SessionStore(sys.argv[1], clock=clock) as store:
    with open_home(Path(sys.argv[2]), Notes(float(sys.argv[4]))) as home:
        drive(store, take_home(home), tell)
"""


def full(home):
    """A home with something of everything."""
    for number in range(3):
        home.session(f"plain {number}", "hello", "hi", title="Talk" if number == 0 else None)
    home.session("root", "one", ended_at=1, end_reason="compression", title="Long")
    home.session("tip", "two", parent_session_id="root", title="Long #2", input_tokens=5)
    home.session("fork", "three", parent_session_id="root", ended_at=1, end_reason="agent_close")
    home.routes({f"agent:main:telegram:dm:{n}": home.entry(n, f"plain {n}") for n in range(3)})


def test_killed_anywhere_and_run_again_is_as_one_run(home, tmp_path):
    full(home)
    home.close()
    with SessionStore(tmp_path / "one.db", clock=Clock(wall=lambda: NOW)) as store:
        report = take(store, home.path)
        expected = whole(store)
    steps = report.sessions.taken + report.routes.taken + 1
    for number in range(1, steps + 1, 3):
        path = tmp_path / f"killed{number}.db"
        arguments = [str(path), str(home.path), str(number), str(NOW)]
        done = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        with SessionStore(path, clock=Clock(wall=lambda: NOW)) as store:
            take(store, home.path)
            assert whole(store) == expected


# Not a byte is changed

GATEWAY = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
print("ready", flush=True)
for line in sys.stdin:
    if line == "stop\\n":
        db.execute("INSERT INTO sessions (id, source) VALUES ('late', 'cli')")
        db.close()
        break
    db.execute(line)
    print("done", flush=True)
"""


def bytes_of(folder):
    """Read by another process: to close a file here would drop its locks."""
    command = "sha256sum $(find . -type f | sort)"
    return subprocess.run(command, shell=True, cwd=folder, capture_output=True, check=True).stdout


@pytest.fixture
def gateway(home):
    """A process that has the home open and something in its log."""
    home.session("a", "x")
    home.close()
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(home.path / "state.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"

    def run(sql):
        process.stdin.write(f"{sql}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"

    run("INSERT INTO sessions (id, source) VALUES ('in the log', 'cli')")
    yield run
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


IMPORT = """
import sys
from pathlib import Path
from hermes.store import SessionStore
from hermes.store.import_hermes_agent.source import open_home
from hermes.store.import_hermes_agent.report import Notes
from hermes.store.import_hermes_agent.importer import take_home
from hermes.store.cli.opening import drive
with SessionStore(sys.argv[2]) as store, open_home(Path(sys.argv[1]), Notes(0.0)) as home:
    print(drive(store, take_home(home), lambda _: None).sessions.taken)
"""


def taken_by_a_process(folder, path):
    return subprocess.check_output(
        [sys.executable, "-c", IMPORT, str(folder), str(path)], text=True, timeout=60
    )


def test_a_home_in_use_is_read_beside_its_gateway(gateway, home, path):
    before = bytes_of(home.path)
    assert taken_by_a_process(home.path, path) == "2\n"
    assert bytes_of(home.path) == before
    gateway("INSERT INTO sessions (id, source) VALUES ('later', 'cli')")
    assert taken_by_a_process(home.path, path) == "1\n"


@pytest.mark.parametrize("files", [("state.db", "state.db-wal"), None], ids=["no index", "killed"])
def test_a_home_that_was_copied_with_its_log_is_read_with_it(gateway, home, path, tmp_path, files):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in files or [file.name for file in home.path.iterdir()]:
        subprocess.run(["cp", home.path / name, copy / name], check=True)
    before = bytes_of(copy)
    assert taken_by_a_process(copy, path) == "2\n"
    assert bytes_of(copy) == before


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_home_that_nobody_uses_is_left_as_it_is(home, path, mode):
    home.session("a", "x")
    home.run(f"PRAGMA journal_mode = {mode}")
    home.close()
    before = bytes_of(home.path)
    home.path.chmod(0o500)
    try:
        assert taken_by_a_process(home.path, path) == "1\n"
    finally:
        home.path.chmod(0o700)
    assert bytes_of(home.path) == before


def test_a_journal_that_waits_to_be_rolled_back_is_left_as_it_is(home, path, tmp_path):
    home.session("a", "x")
    home.run("PRAGMA journal_mode = delete")
    home.run("PRAGMA cache_size = 1")
    home.run("BEGIN")
    for number in range(100):
        home.session(f"undone {number}", "y" * 5000)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in home.path.iterdir():
        subprocess.run(["cp", file, copy / file.name], check=True)
    assert (copy / "state.db-journal").stat().st_size > 512
    before = bytes_of(copy)
    assert taken_by_a_process(copy, path) == "1\n"
    assert bytes_of(copy) == before


def test_a_gateway_that_starts_while_a_home_is_read_is_noticed(home, store):
    for name in ("a", "b", "c"):
        home.session(name, "x")
    home.close()

    def start(number):
        if number == 1:
            db = apsw.Connection(str(home.path / "state.db"))
            db.execute("UPDATE messages SET content = 'changed'")
            db.close()

    with open_home(home.path, ImportNotes(NOW)) as opened:
        with pytest.raises(StoreError, match="written to while it was read"):
            drive(store, take_home(opened), start)
    assert texts(store, "a") == ["x"]
    assert store.get_session("c") is None
    assert take(store, home.path).sessions == Counts(taken=3)


def test_a_home_that_is_damaged_in_the_middle_says_so(home, store):
    for number in range(200):
        home.session(f"s{number}", "text " * 100)
    home.close()
    file = home.path / "state.db"
    content = bytearray(file.read_bytes())
    content[20 * 4096 : 40 * 4096] = b"\xa5" * (20 * 4096)
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"state.db"):
        take(store, home.path)
    assert store.integrity_check() == []


# Whatever is in it

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


def write_all(home, sessions, messages, bills):
    for fields in sessions:
        source = fields.get("source", "cli")
        try:
            home.insert("sessions", **{**fields, "source": source})
        except apsw.ConstraintError:  # an id twice
            continue
    for fields in messages:
        home.insert("messages", **fields)
    for fields in bills:
        home.insert("session_model_usage", **fields)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    sessions=st.lists(SESSION, max_size=6),
    messages=st.lists(MESSAGE, max_size=12),
    bills=st.lists(USAGE, max_size=3),
    entries=st.dictionaries(KEYS, ENTRY | st.text(max_size=3), max_size=3),
    later=st.lists(MESSAGE, max_size=3),
    turned=st.booleans(),
)
def test_every_session_and_message_is_here_or_in_the_report(
    sessions, messages, bills, entries, later, turned
):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        home = Home(Path(folder) / "home")
        home.db.execute("PRAGMA journal_mode = delete").fetchall()
        write_all(home, sessions, messages, bills)
        home.routes(entries)
        with SessionStore(Path(folder) / "ours.db", clock=Clock(wall=lambda: NOW)) as store:
            account(store, home)
            write_all(home, [], later, [])
            if turned:
                home.run("UPDATE messages SET active = NOT coalesce(active, 1) WHERE id % 2")
            exported = account(store, home)
        home.close()
        with SessionStore(Path(folder) / "third.db", clock=Clock(wall=lambda: NOW)) as third:
            done = third.import_sessions(exported)  # as good as our own
            assert done.sessions == len(exported)


def account(store, home):
    """Import, and count: what is in the home is here, or was said not to be."""
    report = take(store, home)
    [[there]] = home.run("SELECT count(*) FROM sessions")
    [[said]] = home.run("SELECT count(*) FROM messages")
    assert sum(vars_of(report.sessions)) == there
    assert sum(vars_of(report.messages)) == said
    here = store.snapshot(lambda tx: tx.all("SELECT count(*) FROM sessions"))[0][0]
    assert here == there - report.sessions.not_taken
    shown = store.snapshot(lambda tx: tx.all("SELECT count(*) FROM all_messages"))[0][0]
    assert shown >= said - report.messages.not_taken
    if report.sessions.not_taken or report.messages.not_taken or report.routes.not_taken:
        assert report.notes
    assert store.integrity_check() == []
    assert store.check_search() is None
    before = whole(store)
    again = take(store, home)
    assert (again.sessions.taken, again.messages.taken, again.routes.taken) == (0, 0, 0)
    assert whole(store) == before
    return [store.export_session(name) for name in store.snapshot(session_ids)]


def vars_of(counts):
    return counts.taken, counts.already_here, counts.not_taken


# What hermes-agent itself wrote


def peer(prove):
    """The interpreter of the benchmark's environment, if it was made; `make prove` makes it."""
    folder = peers_env.FOLDER / "hermes-agent"
    if prove:
        return peers_env.interpreter("hermes-agent")
    return folder / "bin" / "python" if (folder / "installed").is_file() else None


@pytest.fixture
def peer_writes(tmp_path, prove):
    python = peer(prove)
    if python is None:
        pytest.skip("hermes-agent is not installed; `make bench` or `make prove` installs it")

    def write(*arguments):
        done = subprocess.run(
            [python, PEER, tmp_path / "hermes-agent", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return write


def test_a_home_that_hermes_agent_wrote(peer_writes, tmp_path, store):  # noqa: PLR0915
    wrote = peer_writes()
    folder = tmp_path / "hermes-agent"
    before = bytes_of(folder)
    report = take(store, folder)
    assert bytes_of(folder) == before
    assert (report.schema_version, report.sessions) == (22, Counts(taken=18))
    assert (report.messages, report.routes) == (Counts(taken=97), Counts(taken=5, not_taken=1))
    assert codes(report) == [
        "archived", "delegate", "finalized", "fork", "model-override", "resume-pending",
        "suspended",
    ]  # fmt: skip
    assert store.get_compression_lineage("root") == ["root", wrote["child"], wrote["tip"]]
    assert store.get_compression_tip("forked") == "child that goes on"
    kinds = {name: store.get_session(name).kind for name in ("lost child", "branch", "delegate")}
    assert kinds == {"lost child": "fork", "branch": "branch", "delegate": "import"}
    assert texts(store, wrote["dm"]) == [
        "hello from a dm", "hello to you", "instead of that", "fine",
    ]  # fmt: skip
    assert "and again" in texts(store, wrote["dm"], include_rewound=True)
    assert store.get_session(wrote["dm"]).title == "A talk in private"
    assert texts(store, "compacted") == [
        "[CONTEXT COMPACTION] summary", "the tail", "new", "indeed",
    ]  # fmt: skip
    assert "old 0" in texts(store, "compacted", include_rewound=True)
    key = "agent:main:telegram:"
    found = [store.get_route(f"{key}{place}") for place in
             ("dm:1", "group:2:ann", "group:3:7:", "dm:4", "dm:5", "dm:6")]  # fmt: skip
    named = [wrote[name] for name in ("dm", "group", "thread", "stuck", "again")]
    assert [route and route.session_id for route in found] == [*named, None]
    assert store.get_session(wrote["reset"]).end_reason == "session_reset"
    _, call, _, look, overheard = store.get_messages("rows")
    assert call.tool_calls == (ToolCall("c1", "read", '{"a": 1}'),)
    assert (look.content, look.parts[1]["type"]) == ("look", "image_url")
    assert overheard.provider_data == {"hermes_agent": {"observed": True}}
    [bill] = store.get_usage("rows")
    assert (bill.model, bill.provider, bill.input_tokens, bill.cost) == ("big", "acme", 10, 0.25)
    state = whole(store)
    assert take(store, folder).sessions == Counts(already_here=18)
    assert whole(store) == state
    peer_writes("more")
    report = take(store, folder)
    assert report.sessions == Counts(taken=3, already_here=16)
    assert report.continued == 2
    assert texts(store, wrote["dm"])[-2:] == ["a day later", "welcome back"]
    assert texts(store, "compacted") == ["[CONTEXT COMPACTION] summary", "the tail"]
    assert texts(store, "new") == ["something new", "yes"]
    assert store.integrity_check() == []
    assert store.check_search() is None
