"""C11: a prompt that a JSON-RPC client sends again to a killed bot runs once, and none is lost.

The program and its mutants are in `tests/campaigns/jsonrpc_killing.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.jsonrpc_killing import MUTANTS

ROOT = Path(__file__).parents[2]


def run_campaign(path, kills, seed, *mutant):
    """Run the program and return its report."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.jsonrpc_killing", str(path), str(kills), str(seed),
         *mutant],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=1800,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_a_prompt_that_is_sent_again_runs_once_and_none_is_lost(tmp_path, prove, campaign):
    kills = 40 if prove else 6
    for seed in campaign.seeds(range(20 if prove else 3)):
        seen = run_campaign(tmp_path / f"{seed}.db", kills, seed)
        campaign.count(kills=kills, prompts=seen["prompts"], repeated=seen["repeated"])
        campaign.check(seen["violations"])
        assert seen["complete"] > 0
        assert seen["repeated"] >= seen["prompts"]


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_campaign_finds(path, mutant):
    assert run_campaign(path, 3, 1, mutant)["violations"]
