"""C13: an obedient hostile model runs only calls that were shown exactly, and approved after that.

The model, the user and the platforms are in `tests/campaigns/hostile_approvals.py`.
"""

from __future__ import annotations

import pytest

from tests.campaigns.hostile_approvals import MUTANTS, ON_HOST, PLATFORMS, attack


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_hostile_model_runs_only_what_was_shown_and_approved(
    tmp_path, prove, campaign, platform
):
    calls = 0
    for seed in campaign.seeds(range(30 if prove else 2)):
        path = tmp_path / f"{seed}.db"
        ran, found = await attack(path, platform, seed, 100 if prove else 50)
        calls += ran
        campaign.count(calls=ran)
        campaign.check(found)
    assert calls > 0


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_campaign_finds(tmp_path, mutant):
    platform = "embedded" if mutant in ON_HOST else "telegram"
    for seed in range(20):  # a busy machine needs more
        if (await attack(tmp_path / f"{seed}.db", platform, seed, 50, mutant))[1]:
            return
    raise AssertionError(f"{mutant} was not found")
