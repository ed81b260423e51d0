"""C15: whatever models, MCP servers and imports send, all are answered and memory is bounded.

The programs and their mutants are in `tests/campaigns/hostile_models.py`, `hostile_mcp.py` and
`hostile_imports.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUNDS = {"models": (1, 10), "mcp": (1, 5), "imports": (10, 150)}
"""The size of one seed, in the short and in the long form."""


def run_suite(suite, path, seed, rounds, *mutant):
    """Run the program and return its report."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.hostile_suites", suite, str(path), str(seed),
         str(rounds), *mutant],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("suite", ROUNDS)
def test_all_are_answered_and_nothing_is_lost(tmp_path, prove, campaign, suite):
    rounds = ROUNDS[suite][prove]
    for seed in campaign.seeds(range(20 if prove else 1)):
        seen = run_suite(suite, tmp_path / f"{seed}.db", seed, rounds)
        campaign.count(**{suite: seen["done"]})
        campaign.check(seen["violations"])
        assert seen["done"]


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("suite", "mutant"),
    [
        ("models", "loses a message"),
        ("mcp", "stops the others"),
        ("imports", "changes what was there"),
        ("imports", "keeps everything"),
    ],
)
def test_the_campaign_finds(path, suite, mutant):
    assert run_suite(suite, path, 1, ROUNDS[suite][0], mutant)["violations"]
