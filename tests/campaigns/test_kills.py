"""C1: after any number of kills, nothing acknowledged is lost or repeated, and all is sent.

The program and its mutants are in `tests/campaigns/killing.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_campaign(path, kills, *, seed=1, mutant="", sessions=0):
    """Run the program and return its report."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.killing", str(path), str(kills), str(seed), mutant,
         str(sessions)],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_a_bot_that_is_killed_repeatedly_loses_nothing_and_repeats_nothing(path, prove, campaign):
    kills = 1000 if prove else 60
    seen = run_campaign(path, kills, seed=campaign.seed(1), sessions=10_000 if prove else 0)
    campaign.count(kills=kills, messages=seen["acknowledged"])
    campaign.check(seen["violations"])
    assert seen["acknowledged"] > 100
    assert seen["rotations"] > 3


@pytest.mark.mutant
@pytest.mark.parametrize(
    "mutant", ["early", "two transactions", "separate replies", "forgets events"]
)
def test_the_campaign_finds(path, mutant):
    for seed in range(10):
        if run_campaign(path.with_name(f"{seed}.db"), 40, seed=seed, mutant=mutant)["violations"]:
            return
    raise AssertionError(f"{mutant} was not found")
