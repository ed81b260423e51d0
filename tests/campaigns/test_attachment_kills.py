"""C18: kills between the first byte of a file and its end leave no row without its content.

Content without a row is swept, and every acknowledged message has its files byte for byte. The
program and its mutants are in `tests/campaigns/attachment_killing.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW = "sweeps early"


def run_campaign(path, *arguments):
    """Run the program and return its report."""
    command = [sys.executable, "-m", "tests.campaigns.attachment_killing", str(path)]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["sync", "threads"])
def test_a_kill_at_any_call_loses_no_file_and_keeps_no_other(path, kind, prove, campaign):
    stride = 1 if prove else 60
    seen = run_campaign(path, kind, "scan", stride, campaign.seed(1))
    campaign.count(**seen["size"])
    campaign.check(seen["violations"])
    assert seen["size"]["kills"] > 500 // stride
    assert seen["size"]["files"] > 0


@pytest.mark.parametrize("kind", ["sync", "threads"])
def test_kills_of_a_busy_process_lose_no_file_and_keep_no_other(path, kind, prove, campaign):
    for seed in campaign.seeds(range(10 if prove else 1)):
        seen = run_campaign(
            path.with_name(f"{seed}.db"), kind, "storm", 100 if prove else 6, seed
        )  # fmt: skip
        campaign.count(**seen["size"])
        campaign.check(seen["violations"])
        assert seen["size"]["files"] > 10


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("mutant", "mode", "number"),
    [("places late", "scan", 7), ("forgets", "storm", 10), (SLOW, "scan", 5)],
)
def test_the_campaign_finds(path, mutant, mode, number, prove):
    if mutant == SLOW and not prove:
        pytest.skip("part of make prove")
    assert run_campaign(path, "sync", mode, number, 1, mutant)["violations"]
