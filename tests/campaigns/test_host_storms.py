"""C9: whatever clients, agents and kills do to a host, no message is lost or answered twice.

The program is `tests/campaigns/host_storm.py`; what must hold in the file is in `storm_checks.py`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.host_storm import HOSTS, make_plan
from tests.campaigns.storm_checks import violations
from tests.support.processes import foreign

ROOT = Path(__file__).parents[2]
SMALL = (30, 4, 0, 1)
PLAN = make_plan(seed=1, asks=30, keys=4)
DAMAGE = {
    "was lost": "DELETE FROM inbox WHERE id = 1",
    "is unknown": "UPDATE inbox SET event_id = 'other' WHERE id = 1",
    "without an answer": "UPDATE inbox SET state = 'open', closed_at = NULL WHERE id = 1",
    "in no transcript": "UPDATE messages SET content = ''; UPDATE arrivals SET content = ''",
    "the question": "UPDATE messages SET content = '' WHERE content GLOB 't[0-9]*'; "
    "UPDATE arrivals SET content = '' WHERE content GLOB 't[0-9]*'",
    "('t999.1', ": "UPDATE inbox SET event_id = 't999.1' WHERE id = 1",
    "stored more than once": "UPDATE messages SET content = '00001 ' WHERE role = 'user'; "
    "UPDATE arrivals SET content = '00001 ' WHERE role = 'user'",
    "in a transcript of": "UPDATE sessions SET session_key = 'k3' WHERE session_key <> 'k3'",
    "was not sent": "UPDATE outbox SET state = 'pending', closed_at = NULL WHERE id = 1",
    "two replies": "UPDATE outbox SET turn_id = 1",
    "a fork": "DROP INDEX one_compression_child; "
    "UPDATE sessions SET kind = 'compression', parent_no = 1 WHERE no > 1",
    "an end without a child": "UPDATE sessions SET ended_at = 1, end_reason = 'compression'",
    "two keys in one session": "UPDATE routes SET session_id = 's'",
    "without its hook": "UPDATE boundaries SET closed_at = NULL WHERE id = 1",
}


def run_storm(host, path, asks, keys, kills, seed):
    """Run the program and return its report."""
    numbers = map(str, (asks, keys, kills, seed))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.campaigns.host_storm", host, path, *numbers],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("host", HOSTS)
def test_a_storm_loses_nothing_and_repeats_nothing(host, tmp_path, prove, campaign):
    for seed in campaign.seeds(range(1, 6 if prove else 2)):
        asks, keys, kills = (500, 50, 20) if prove else (60, 10, 2)
        seen = run_storm(host, tmp_path / f"{seed}.db", asks, keys, kills, seed)
        campaign.count(kills=kills, messages=asks)
        campaign.check(seen["violations"])
        assert seen["accepted"] == asks
        assert seen["answered"] > asks / 4
        assert seen["asked"] + seen["circles"] > asks / 50


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A file after a small storm, and the messages that were withdrawn."""
    path = tmp_path_factory.mktemp("storm") / "state.db"
    seen = run_storm("trio", path, *SMALL)
    assert seen["violations"] == []
    return path, {*seen["withdrawn"]}


@pytest.mark.mutant
@pytest.mark.parametrize("damage", DAMAGE)
def test_the_checks_find(damage, calm, path):
    undamaged, withdrawn = calm
    shutil.copy(undamaged, path)
    foreign(path, DAMAGE[damage])
    assert any(damage in each for each in violations(path, PLAN, withdrawn))


@pytest.mark.mutant
def test_the_checks_find_a_withdrawn_message_that_was_answered(calm):
    path, _ = calm
    everything = {step.number for step in PLAN}
    assert any("was withdrawn" in each for each in violations(path, PLAN, everything))
