"""C10: a bot that starts with more work than its bounds does it in order, and loses nothing.

The program is `tests/campaigns/backlog.py`, the model `backlog_model.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_campaign(path, kills, seed):
    """Run the program and return its report."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.backlog", str(path), str(kills), str(seed)],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return json.loads(done.stdout)


def test_a_backlog_beyond_every_bound_is_done_in_order(tmp_path, prove):
    for seed in range(20) if prove else (1,):
        seen = run_campaign(tmp_path / f"{seed}.db", 4 if prove else 1, seed)
        assert seen["violations"] == [], f"seed {seed}"
        assert seen["exceeded"]
