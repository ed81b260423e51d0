"""C22: three nodes on one database lose, repeat and fork nothing, whatever happens to them.

Clients send messages, commands and files through any node, while foreign writers write to the same
sessions, and nodes are killed, stopped, cut off or declared dead, and the server is restarted
(`tests.campaigns.chaos`). Each node has another wall clock. See `chaos_checks` for what must hold.
"""

from __future__ import annotations

import shutil

import pytest
import trio

from tests.campaigns.chaos import FAULTS, ROOT, Size, run
from tests.support.postgres_server import running_server
from tools.mutants import MUTANTS

SHORT = Size(conversations=20, messages=5, faults=len(FAULTS))
LONG = Size(conversations=200, messages=5, faults=2 * len(FAULTS))
FOUND_WITHIN = 5
SETTINGS = {"deadlock_timeout": "200ms"}
EVERY = MUTANTS["chaos"]


def story_of(folder, seed, size, root=ROOT):
    """Carry out a campaign on a server for it."""
    folder.mkdir()
    with running_server(durable=True, tcp=True, **SETTINGS) as server:
        return trio.run(run, folder, server, seed, size, root)


def test_nodes_lose_nothing_and_repeat_nothing(tmp_path, prove, campaign):
    for seed in campaign.seeds(range(1, 6) if prove else [1]):
        story = story_of(tmp_path / str(seed), seed, LONG if prove else SHORT)
        campaign.count(messages=story.counts["messages"], faults=story.counts["faults"])
        campaign.check(story.problems)


def mutate(scratch, mutant):
    """Copy the package with one change; returns the folder to run it from."""
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "hermes", scratch / "hermes", ignore=skipped)
    path = scratch / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return scratch


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", EVERY, ids=[mutant.breaks for mutant in EVERY])
def test_the_campaign_finds(tmp_path, prove, mutant):
    if not prove:
        pytest.skip("part of make prove")
    root = mutate(tmp_path / "root", mutant)
    for seed in range(FOUND_WITHIN):
        if story_of(tmp_path / str(seed), seed, SHORT, root).problems:
            return
    raise AssertionError("it was not found")
