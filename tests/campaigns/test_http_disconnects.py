"""C20: requests whose connections are lost at random moments run once each, and leave nothing.

The clients are in `tests/support/disconnects.py`.
"""

from __future__ import annotations

import pytest
import trio

from hermes.store import SessionStore
from tests.support.disconnects import run_storm

MUTANTS = {
    "forgets keys": "AFTER INSERT ON responses WHEN NEW.idempotency_key IS NOT NULL BEGIN "
    "UPDATE responses SET idempotency_key = NULL WHERE id = NEW.id; "
    "UPDATE inbox SET event_id = NEW.id WHERE id = NEW.inbox_id; END",
    "loses messages": "AFTER INSERT ON arrivals WHEN NEW.role = 'user' AND NEW.id % 7 = 0 "
    "BEGIN DELETE FROM arrivals WHERE id = NEW.id; END",
}


async def test_requests_with_random_disconnects_run_once(tmp_path, prove, campaign):
    for seed in campaign.seeds(range(5 if prove else 1)):
        with trio.fail_after(600):
            storm = await run_storm(tmp_path / f"{seed}.db", 1000 if prove else 60, seed)
        campaign.count(requests=1000 if prove else 60, **storm.size)
        campaign.check(storm.violations)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_campaign_finds(path, mutant):
    with SessionStore(path) as store:
        store.transact(lambda tx: tx.run(f"CREATE TRIGGER mutant {MUTANTS[mutant]}"))
    assert (await run_storm(path, 20, 1)).violations
