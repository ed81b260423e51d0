"""C7: with faults of Telegram and kills of the bot, each turn is sent exactly once.

Each message has its file, or a note that it could not be downloaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_campaign(path, seed, kills, mutant=""):
    """The result of a campaign; `kills` 0 means no faults either, -1 means faults without kills."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.telegram_program", str(path), str(seed), str(kills),
         mutant],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_the_messages_sent_are_the_turns(tmp_path, prove, campaign):
    floods = edits = files = 0  # summed over all seeds: on a busy machine one seed may have none
    kills = 8 if prove else 3
    for seed in campaign.seeds(range(40) if prove else range(1, 5)):
        seen = run_campaign(tmp_path / f"{seed}.db", seed, kills)
        campaign.count(kills=kills, turns=seen["turns"])
        campaign.check(seen["wrong"])
        assert seen["turns"] > 10
        floods += seen["floods"]
        edits += seen["edits"]
        files += min(seen["files"], seen["sent_files"])
        if not prove and files and floods and edits:
            break
    assert files
    assert floods
    assert edits


def test_without_faults_nothing_is_marked_as_recovered_and_no_preview_is_left(tmp_path):
    for seed in range(1, 5):
        seen = run_campaign(tmp_path / f"{seed}.db", seed, 0)
        assert (seen["wrong"], seen["recovered"], seen["strays"]) == ([], 0, 0)
        if seen["edits"]:
            return
    raise AssertionError("there was no edit")


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("mutant", "kills"),
    [
        ("offset before the commit", 2),
        ("pending updates dropped", 1),
        ("lower number is old", 2),
        ("final beside the preview", 0),
        ("retry_after ignored", 0),
        ("unknown is unsent", -1),
    ],
)
def test_the_campaign_detects(tmp_path, prove, mutant, kills):
    if not prove and mutant not in {"offset before the commit", "lower number is old"}:
        pytest.skip("part of make prove; the contract tests detect it too")
    for seed in range(8):
        if run_campaign(tmp_path / f"{seed}.db", seed, kills, mutant)["wrong"]:
            return
    raise AssertionError(f"not detected: {mutant}")
