"""C1: kill -9, over and over: nothing acknowledged is lost, nothing is done twice, all is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def killed(path, kills, *, seed=1, mutant="", sessions=0):
    """What a campaign has seen."""
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


def test_a_bot_that_is_killed_over_and_over_loses_nothing_and_repeats_nothing(path, prove):
    seen = killed(path, 1000 if prove else 60, sessions=10_000 if prove else 0)
    assert seen["wrong"] == []
    assert seen["acknowledged"] > 100
    assert seen["rotations"] > 3


@pytest.mark.parametrize("mutant", ["early", "two transactions", "beside", "forgetting"])
def test_the_campaign_finds(path, mutant):
    for seed in range(10):
        if killed(path.with_name(f"{seed}.db"), 40, seed=seed, mutant=mutant)["wrong"]:
            return
    raise AssertionError(f"nobody noticed {mutant}")
