"""`tools/trace_turn.py`: what it takes to read one turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "trace_turn.py"


@pytest.fixture(scope="module")
def report():
    """The report on this tree, measured in a process without another tracer."""
    without = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), "--json"],
        cwd=ROOT,
        env={**without, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def test_the_trace_covers_all_threads_and_tasks_of_a_turn(report):
    groups = {"session loop", "turn", "accept", "commit_turn", "group commit", "delivery"}
    assert groups | {"admission", "event bus", "entry"} <= set(report["groups"])
    ran = {function for functions in report["files"].values() for function in functions}
    names = {function.split(" [")[0] for function in ran}
    assert {"Runtime.ask", "accept", "commit_turn", "mark_sent"} <= names


def test_every_function_on_the_path_belongs_to_a_group(report):
    """A new module must be assigned to a group, or the core would be too small."""
    assert "ungrouped" not in report["groups"]


def test_lines_are_counted_once_and_by_function(report):
    for total in (report["core"], report["path"], *report["groups"].values()):
        assert 0 < total["ran"] <= total["code"]
    groups = report["groups"].values()
    assert report["path"]["code"] == sum(group["code"] for group in groups)
    files = report["files"].values()
    assert report["path"]["code"] == sum(sum(functions.values()) for functions in files)


def test_a_turn_can_be_read_on_one_page(report):
    limits = report["limits"]
    assert report["core"]["code"] <= limits["core"]
    assert len(report["core_types"]) <= limits["core_types"]
    assert report["path"]["code"] <= limits["path"]
