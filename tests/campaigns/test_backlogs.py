"""C10: a bot that starts with more work than its bounds does it in order, and loses nothing.

The program is `tests/campaigns/backlog.py`, the model `backlog_model.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutants import CAUGHT, MUTANTS, TESTS, run

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


def test_a_backlog_beyond_every_bound_is_done_in_order(tmp_path, prove, campaign):
    for seed in campaign.seeds(range(20) if prove else [1]):
        seen = run_campaign(tmp_path / f"{seed}.db", 4 if prove else 1, seed)
        campaign.count(starts=seen["starts"], messages=seen["said"])
        campaign.check(seen["violations"])
        assert seen["exceeded"]


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS["backlog"], ids=lambda mutant: mutant.breaks)
def test_the_campaign_finds_that_this_is_broken(mutant, prove):
    if not prove:
        pytest.skip("runs this file on a copy of the tree; part of make prove")
    outcome, what = run(ROOT, mutant, TESTS["backlog"], 300)
    assert outcome in CAUGHT, what
