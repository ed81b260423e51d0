"""Sessions: lineages, kinds, ids, titles and ends."""

from __future__ import annotations

import apsw
import pytest

from hermes.errors import StoreRefused
from hermes.store import Clock, SessionStore
from hermes.store.import_hermes_agent import importer
from hermes.store.import_hermes_agent.importer import Counts
from tests.support.agent_homes import NOW, Home
from tests.support.agent_imports import codes, dump, run_import, texts

DAY = 86400
VERSIONS = [1, 4, 6, 11, 16, 17, 18, 19, 21, 22]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_home_of_any_schema_version_is_imported(tmp_path, store, version):
    home = Home(tmp_path / "home", version)
    home.session("a", "hello", "hi", model="big", system_prompt="Be kind.", user_id="ann",
                 model_config={"temperature": 0.5}, ended_at=NOW - 10, end_reason="cli_close",
                 input_tokens=7, output_tokens=3)  # fmt: skip
    home.close()
    report = run_import(store, home.path)
    assert (report.schema_version, report.sessions, report.messages) == (
        version, Counts(imported=1), Counts(imported=2),
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
    with pytest.raises(
        StoreRefused, match=r"newer hermes-agent .schema 23; at most 22 is supported"
    ):
        run_import(store, tmp_path / "new")
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(StoreRefused, match=r"has no state.db"):
        run_import(store, other)
    recipes = apsw.Connection(str(other / "state.db"))
    recipes.execute("CREATE TABLE recipes (id)")
    recipes.close()
    with pytest.raises(StoreRefused, match="not a hermes-agent database"):
        run_import(store, other)
    (other / "state.db").write_text("a" * 200)
    with pytest.raises(StoreRefused, match="not a SQLite file"):
        run_import(store, other)
    with pytest.raises(StoreRefused, match="is a Hermes database"):
        run_import(store, store.path)


def test_a_chain_of_compressions_stays_one_conversation(home, store):
    home.session("tip", "three", parent_session_id="middle", title="Talk #3")
    home.session("middle", "two", parent_session_id="root", ended_at=NOW - 50,
                 end_reason="compression", title="Talk #2")  # fmt: skip
    home.session("root", "one", ended_at=NOW - 60, end_reason="compression", title="Talk",
                 session_key="agent:main:telegram:dm:1", chat_id="1")  # fmt: skip
    report = run_import(store, home)
    assert store.get_compression_lineage("root") == ["root", "middle", "tip"]
    assert [store.get_session(name).title for name in ("root", "middle", "tip")] == [
        "Talk", "Talk #2", "Talk #3",
    ]  # fmt: skip
    # In hermes-agent, compression children have no key.
    assert store.get_session("tip").session_key == "agent:main:telegram:dm:1"
    assert report.notes == []
    [listed] = store.list_sessions()
    assert (listed.session.id, listed.root_session_id) == ("tip", "root")


def test_a_second_continuation_of_one_parent_is_a_fork(home, store):
    home.session("parent", "one", ended_at=NOW - 60, end_reason="compression")
    home.session("stale", "x", parent_session_id="parent", ended_at=1, end_reason="ws_orphan_reap")
    home.say("stale", "the latest of all", timestamp=NOW)
    home.session("live", "y", parent_session_id="parent")
    home.session("branch", "z", parent_session_id="parent",
                 model_config={"_branched_from": "parent"})  # fmt: skip
    home.session("tool", "z", parent_session_id="parent", source="tool")
    report = run_import(store, home)
    kinds = {name: store.get_session(name).kind for name in ("stale", "live", "branch", "tool")}
    assert kinds == {"stale": "fork", "live": "compression", "branch": "branch", "tool": "subagent"}
    assert {store.get_session(name).parent_session_id for name in kinds} == {"parent"}
    assert store.get_compression_tip("parent") == "live"
    assert [(n.code, n.subject) for n in report.notes] == [("fork", "stale"), ("delegate", "tool")]


def test_a_continuation_that_was_compressed_again_is_preferred(home, store):
    home.session("parent", "one", ended_at=NOW - 60, end_reason="compression")
    home.session("live", "y", parent_session_id="parent")
    home.session(
        "compressed", "x", parent_session_id="parent", ended_at=1, end_reason="compression"
    )
    home.session("tip", "z", parent_session_id="compressed")
    run_import(store, home)
    assert store.get_compression_lineage("parent") == ["parent", "compressed", "tip"]
    assert store.get_session("live").kind == "fork"


def test_unmarked_branches_and_subagents(home, store):
    home.session("parent", "one", ended_at=NOW - 60, end_reason="branched")
    home.session("branch", "x", parent_session_id="parent", started_at=NOW - 50)
    home.session("sub", "y", parent_session_id="parent", started_at=NOW - 70,
                 model_config={"_delegate_from": "parent"})  # fmt: skip
    report = run_import(store, home)
    assert store.get_session("branch").kind == "branch"
    assert (store.get_session("sub").kind, codes(report)) == ("subagent", ["delegate"])
    assert store.get_session("sub").model_config == {"_delegate_from": "parent"}


def test_missing_parents_and_cycles(home, store):
    home.session("orphan", "x", parent_session_id="nobody")
    home.session("self", "x", parent_session_id="self")
    home.session("a", "x", parent_session_id="b", ended_at=1, end_reason="compression")
    home.session("b", "x", parent_session_id="a", ended_at=1, end_reason="compression")
    report = run_import(store, home)
    assert report.sessions == Counts(imported=4)
    assert codes(report) == ["cycle", "parent-missing"]
    assert store.get_session("orphan").parent_session_id is None
    assert store.get_session("self").parent_session_id is None
    assert store.get_session("a").parent_session_id == "b"
    assert store.get_session("b").parent_session_id is None
    before = dump(store)
    assert run_import(store, home).sessions == Counts(already_present=4)
    assert dump(store) == before


def test_invalid_ids_are_reported_with_their_messages(home, store):
    home.session("x" * 201, "a", "b")
    home.session("line\nbreak", "c")
    home.session(b"\xff".decode("latin-1"), "d")
    home.run("UPDATE sessions SET id = CAST(x'ff41' AS TEXT) WHERE id = 'ÿ'")
    home.run("UPDATE messages SET session_id = CAST(x'ff41' AS TEXT) WHERE session_id = 'ÿ'")
    home.session("child", "e", parent_session_id="line\nbreak")
    home.say("no such session", "f")
    home.say("no such session", "g")
    report = run_import(store, home)
    assert report.sessions == Counts(imported=1, skipped=3)
    assert report.messages == Counts(imported=1, skipped=6)
    assert codes(report) == ["bad-id", "no-session", "parent-missing"]


def test_a_different_session_with_the_same_id_is_left_unchanged(home, store):
    store.create_session("a", "cli")
    store.append_message("a", "user", "ours")
    home.session("a", "theirs", "yes")
    before = dump(store)
    report = run_import(store, home)
    assert (report.sessions, report.messages) == (Counts(skipped=1), Counts(skipped=2))
    assert codes(report) == ["id-in-use"]
    assert dump(store) == before


def test_a_session_that_came_by_an_export_is_already_present(home, store, tmp_path):
    home.session("a", "hello", "hi")
    with SessionStore(tmp_path / "other.db", clock=Clock(wall=lambda: NOW)) as other:
        run_import(other, home)
        store.import_sessions([other.export_session("a")])
    report = run_import(store, home)
    assert (report.sessions, report.messages) == (
        Counts(already_present=1),
        Counts(already_present=2),
    )


def test_titles_stay_unique(home, store):
    store.create_session("ours", "cli")
    store.set_session_title("ours", "Talk")
    home.session("a", "x", title="Talk")
    home.session("b", "x", title="y" * 150)
    home.session("c", "x", title=" \x1b[31mred\n ")
    report = run_import(store, home)
    assert [store.get_session(name).title for name in ("a", "b", "c")] == [
        "Talk #2", "y" * 100, "[31mred",
    ]  # fmt: skip
    assert codes(report) == ["title-cut", "title-renamed"]


def test_empty_terminal_sessions_are_skipped(home, store):
    home.session("ghost", source="tui", ended_at=NOW - 90_000, end_reason="tui_close",
                 started_at=NOW - 90_000)  # fmt: skip
    home.session("child", "x", parent_session_id="ghost")
    report = run_import(store, home)
    assert report.sessions == Counts(imported=1, skipped=1)
    assert codes(report) == ["delegate", "ghost", "parent-missing"]
    assert run_import(store, home).sessions == Counts(already_present=1, skipped=1)


def test_columns_that_hermes_lacks_are_kept_in_model_config(home, store):
    home.session("a", "x", git_branch="main", display_name="Ann", model_config="[1")
    report = run_import(store, home)
    assert store.get_session("a").model_config == {
        "hermes_agent_text": "[1",
        "hermes_agent": {"git_branch": "main", "display_name": "Ann"},
    }
    assert codes(report) == ["bad-json"]


def test_a_missing_end_time_or_reason_is_filled_in(home, store):
    home.session("a", "x", ended_at=NOW - 5)
    home.session("b", "x", end_reason="cli_close")
    run_import(store, home)
    assert store.get_session("a").end_reason == "unknown"
    assert store.get_session("b").ended_at == NOW - 900


@pytest.mark.parametrize("calls", [None, 0, 1])
def test_only_unused_continuations_are_ended(home, store, calls):
    old = {"started_at": NOW - 10 * 86_400}
    home.session("root", "x", ended_at=1, end_reason="compression", **old)
    home.session("tip", "summary", "go on", parent_session_id="root", api_call_count=calls, **old)
    run_import(store, home)
    ended = store.get_session("tip").end_reason
    assert ended == ("orphaned_compression" if calls == 0 else None)


# Sessions that lists leave out


def listed(store, **filters):
    return {each.session.id for each in store.list_sessions(**filters)}


def test_archived_sessions_are_imported_as_archived(home, store):
    home.session("a", "x", archived=1, ended_at=NOW - 5, end_reason="compression")
    home.session("b", "x", archived=1, parent_session_id="a")
    home.session("c", "x", archived=0)
    report = run_import(store, home)
    assert [(note.code, note.subject) for note in report.notes] == [
        ("archived", "a"), ("archived", "b"),
    ]  # fmt: skip
    assert store.get_session("a").archived_at == store.get_session("a").last_active
    assert listed(store) == {"c"}
    assert listed(store, include_archived=True) == {"b", "c"}
    home.run("UPDATE sessions SET archived = 0")
    assert run_import(store, home).updated == 2
    assert listed(store) == {"b", "c"}


def test_subagents_are_hidden_with_their_continuations(home, store):
    home.session("parent", "x")
    home.session("sub", "x", parent_session_id="parent", ended_at=NOW - 5,
                 end_reason="compression", model_config={"_delegate_from": "parent"})  # fmt: skip
    home.session("sub-2", "x", parent_session_id="sub")
    home.session("lost", "x", model_config={"_delegate_from": "nobody"})
    home.session("lost child", "x", parent_session_id="nobody",
                 model_config={"_delegate_from": "nobody"})  # fmt: skip
    report = run_import(store, home)
    names = ("sub", "sub-2", "lost", "lost child")
    assert [store.get_session(name).kind for name in names] == [
        "subagent", "compression", "subagent", "subagent",
    ]  # fmt: skip
    assert codes(report) == ["delegate", "parent-missing"]
    assert listed(store) == {"parent"}
    assert store.delete_session("parent") == 3
    assert [store.get_session(name) for name in ("sub", "sub-2")] == [None, None]


def test_a_copy_that_an_earlier_version_imported_gets_the_marks(home, store):
    home.session("parent", "x", archived=1)
    home.session("sub", "x", parent_session_id="parent", ended_at=NOW, end_reason="compression")
    home.session("sub-2", "x", parent_session_id="sub")
    home.say("parent", "heron", active=0, compacted=1)
    run_import(store, home)
    before = dump(store)

    def as_imported_before(tx):
        tx.run("UPDATE sessions SET subagent = 0, archived_at = NULL")
        tx.run("UPDATE messages SET compacted = 0")
        for name in ("parent", "sub"):
            copy = importer._copy_digest(tx, name)
            tx.run("UPDATE meta SET value = ? WHERE key = ?", f"earlier {copy}", f"imported:{name}")

    store.transact(as_imported_before)
    assert listed(store) == {"parent", "sub-2"}
    assert run_import(store, home).updated == 2
    assert listed(store) == set()
    assert store.get_session("sub").kind == "subagent"
    assert [hit.compacted for hit in store.search_messages("heron")] == [True]
    assert dump(store)["all_messages"] == before["all_messages"]


def test_a_subagent_s_continuation_that_has_changed_stays_hidden(home, store):
    home.session("parent", "x")
    home.session("sub", "x", parent_session_id="parent", ended_at=NOW, end_reason="compression")
    home.session("sub-2", "x", parent_session_id="sub")
    run_import(store, home)
    home.say("sub-2", "more")
    assert run_import(store, home).updated == 1
    assert listed(store) == {"parent"}


# The clean-up after an import


def test_the_report_names_what_was_cleaned_up(home, store):
    home.session("parent", "x", ended_at=NOW - 9 * DAY, end_reason="compression")
    home.session("child", "x", parent_session_id="parent", started_at=NOW - 9 * DAY,
                 api_call_count=0)  # fmt: skip
    store.create_session("ghost", "tui", started_at=NOW - 9 * DAY)
    store.end_session("ghost", "tui_close")
    report = run_import(store, home)
    assert (report.finalized_orphans, report.pruned_ghosts) == (("child",), ("ghost",))
    assert store.get_session("child").end_reason == "orphaned_compression"
    assert store.get_session("ghost") is None
    again = run_import(store, home)
    assert (again.finalized_orphans, again.pruned_ghosts) == ((), ())
