"""A home that hermes-agent itself wrote."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import peers_env
from hermes.messages import ToolCall
from hermes.store.import_hermes_agent.importer import Counts
from tests.support.agent_imports import checksums, codes, dump, run_import, texts

WRITER = Path(__file__).with_name("peer_writes_home.py")


def peer(prove):
    """Return the interpreter of the benchmark's environment, or None; `make prove` creates it."""
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
            [python, WRITER, tmp_path / "hermes-agent", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return write


def test_a_home_that_hermes_agent_wrote_is_imported(peer_writes, tmp_path, store):  # noqa: PLR0915
    wrote = peer_writes()
    folder = tmp_path / "hermes-agent"
    before = checksums(folder)
    report = run_import(store, folder)
    assert checksums(folder) == before
    assert (report.schema_version, report.sessions) == (22, Counts(imported=18))
    assert (report.messages, report.routes) == (Counts(imported=97), Counts(imported=5, skipped=1))
    assert codes(report) == [
        "archived", "delegate", "finalized", "fork", "model-override", "resume-pending",
        "suspended",
    ]  # fmt: skip
    assert store.get_compression_lineage("root") == ["root", wrote["child"], wrote["tip"]]
    assert store.get_compression_tip("forked") == "child that goes on"
    kinds = {name: store.get_session(name).kind for name in ("lost child", "branch", "delegate")}
    assert kinds == {"lost child": "fork", "branch": "branch", "delegate": "subagent"}
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
    state = dump(store)
    assert run_import(store, folder).sessions == Counts(already_present=18)
    assert dump(store) == state
    peer_writes("more")
    report = run_import(store, folder)
    assert report.sessions == Counts(imported=3, already_present=16)
    assert report.updated == 2
    assert texts(store, wrote["dm"])[-2:] == ["a day later", "welcome back"]
    assert texts(store, "compacted") == ["[CONTEXT COMPACTION] summary", "the tail"]
    assert texts(store, "new") == ["something new", "yes"]
    assert store.integrity_check() == []
    assert store.check_search() is None
