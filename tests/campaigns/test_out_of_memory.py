"""An allocation that fails anywhere hangs nothing, and loses nothing that was acknowledged.

The program is `tests/campaigns/out_of_memory.py`. It goes on after the error, or ends with a code.
One hang is Python's own: `Thread.start` waits forever for a thread that had no memory to start
(python/cpython#140746). The runtime starts its threads when it opens.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("_testcapi", reason="this Python has no _testcapi, which makes memory fail")

ROOT = Path(__file__).parents[2]
ALLOCATIONS = {"start": 3000, "turn": 1400, "submit": 800, "delivery": 1500, "drain": 2000}
"""About how many allocations there are in each, in one run."""
TEXTS = "SELECT content FROM messages UNION SELECT content FROM arrivals"
SENT = "SELECT json_extract(body, '$.text') FROM outbox WHERE state = 'sent'"
SHORT, LONG = 3, 100
THREAD_START = re.compile(r'threading\.py", line \d+ in start\n')


def run_without_memory(path, when, number):
    """Run the program; returns the lines that it wrote."""
    arguments = [str(path), "trio", when, str(number)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.out_of_memory", *arguments],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    hangs = "Timeout (" in done.stderr and not THREAD_START.search(done.stderr)
    assert not hangs, f"it hangs: {arguments}\n{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("when", ALLOCATIONS)
def test_a_failed_allocation_hangs_nothing_and_loses_nothing(when, tmp_path, prove):
    runs = LONG if prove else SHORT
    for run in range(runs):
        number, path = run * ALLOCATIONS[when] // runs + 3, tmp_path / f"{run}.db"
        written = run_without_memory(path, when, number)
        acknowledged = [line for line in written if not line.startswith("sent:")]
        assert acknowledged[:2] == ["first", "second"]
        with closing(sqlite3.connect(path)) as db:
            stored = {event_id for (event_id,) in db.execute("SELECT event_id FROM inbox")}
            texts = {text for (text,) in db.execute(TEXTS)}
            sent = {f"sent:{text!r}" for (text,) in db.execute(SENT) if text is not None}
        assert stored >= set(acknowledged), (when, number)
        answered = set(acknowledged) - ({"during"} if when == "submit" else set())
        assert texts >= answered, (when, number)
        assert sent <= set(written), (when, number)
