"""C19: a request of the stock SDK to a killed server has one turn, one answer and one id.

The program, the named points and the mutants are in `tests/campaigns/http_killing.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.http_killing import MUTANTS

ROOT = Path(__file__).parents[2]
SLOW = ("forgets keys", "loses replies")


def run_campaign(form, seed, *mutant):
    """Run the program and return its report."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.http_killing", form, str(seed), *mutant],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=1800,
    )
    return json.loads(done.stdout)


def test_a_request_to_a_server_that_is_killed_has_one_turn_and_one_answer(prove, campaign):
    for seed in campaign.seeds(range(2 if prove else 1)):
        seen = run_campaign("long" if prove else "short", seed)
        campaign.count(kills=seen["kills"], cases=seen["cases"])
        campaign.check(seen["violations"])
        assert seen["kills"] >= seen["cases"] > 12


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_campaign_finds(mutant, prove):
    if mutant in SLOW and not prove:
        pytest.skip("part of make prove")
    assert run_campaign("short", 1, mutant)["violations"]
