"""C14: when the ids of a platform start again, every accepted text is in the transcript, once.

The program and its mutants are in `tests/campaigns/hostile_platform_ids.py`.
"""

from __future__ import annotations

import pytest

from tests.campaigns.hostile_platform_ids import MUTANTS, repeat_ids


async def test_every_accepted_text_is_stored_when_ids_start_again(tmp_path, prove, campaign):
    for seed in campaign.seeds(range(40 if prove else 3)):
        path = tmp_path / f"{seed}.db"
        texts, found = await repeat_ids(path, seed, 8 if prove else 5, 40 if prove else 20)
        campaign.count(texts=texts)
        campaign.check(found)
        assert texts >= 100


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_campaign_finds(tmp_path, mutant):
    for seed in range(5):
        if (await repeat_ids(tmp_path / f"{seed}.db", seed, 4, 20, mutant))[1]:
            return
    raise AssertionError(f"{mutant} was not found")
