"""An allocation that fails anywhere hangs nothing, and loses nothing that was acknowledged.

The program is `tests/campaigns/out_of_memory.py`. It goes on after the error, or ends with a code.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("_testcapi", reason="this Python has no _testcapi, which makes memory fail")

ROOT = Path(__file__).parents[2]
ALLOCATIONS = {"turn": 1200, "submit": 600, "drain": 1500}
"""About how many allocations there are in each, in one run."""
TEXTS = "SELECT content FROM messages UNION SELECT content FROM arrivals"
SHORT = {"turn": 6, "submit": 3, "drain": 3}
LONG = {"turn": 200, "submit": 100, "drain": 100}


def run_without_memory(path, when, number):
    """Run the program; returns the events that it acknowledged."""
    arguments = [str(path), when, str(number)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.out_of_memory", *arguments],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Timeout (" not in done.stderr, f"it hangs: {arguments}\n{done.stderr}"
    return done.stdout.split()


@pytest.mark.parametrize("when", ALLOCATIONS)
def test_a_failed_allocation_hangs_nothing_and_loses_nothing(when, tmp_path, prove):
    runs = (LONG if prove else SHORT)[when]
    for run in range(runs):
        number, path = run * ALLOCATIONS[when] // runs + 3, tmp_path / f"{run}.db"
        acknowledged = run_without_memory(path, when, number)
        assert acknowledged[:2] == ["first", "second"]
        with closing(sqlite3.connect(path)) as db:
            stored = {event_id for (event_id,) in db.execute("SELECT event_id FROM inbox")}
            texts = {text for (text,) in db.execute(TEXTS)}
        assert stored >= set(acknowledged), (when, number)
        answered = set(acknowledged) - ({"during"} if when == "submit" else set())
        assert texts >= answered, (when, number)
