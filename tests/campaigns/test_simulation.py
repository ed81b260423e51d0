"""C3: whatever users, faults, other processes and the clock do, every guarantee holds.

The simulation is in `tests/campaigns/simulation.py`; what must hold in `invariants.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from hermes.messages import Committed
from tests.campaigns.simulation import simulate
from tests.support.folders import quick_folder
from tests.support.store_proxy import Through

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fresh():
    """Return paths of new files."""
    numbers = itertools.count()
    with quick_folder() as folder:
        yield lambda: folder / f"{next(numbers)}.db"


def test_every_guarantee_holds_for_every_seed(fresh, prove, campaign):
    for seed in campaign.seeds(range(2000 if prove else 60)):
        outcome = simulate(path := fresh(), seed)
        campaign.count(seeds=1, messages=outcome.messages)
        campaign.check(outcome.violations)
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_seed_repeats_exactly_in_every_process(fresh, seed):
    traces = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.campaigns.simulation", str(seed), str(fresh())],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
        )
        traces.add(json.loads(done.stdout)["trace"])
    traces.add(simulate(fresh(), seed).trace)
    assert len(traces) == 1


def test_another_seed_has_another_trace(fresh):
    assert simulate(fresh(), 1).trace != simulate(fresh(), 2).trace


# Mutants: stores that break one guarantee each, which the simulation must find.


class LosesInput(Through):
    """It does not store the message of the user."""

    async def commit_turn(self, turn):
        return await self.store.commit_turn(replace(turn, rows=turn.rows[1:]))


class DropsKnownIds(Through):
    """It does not store a message whose platform id it has seen."""

    async def commit_turn(self, turn):
        fresh = [row for row in turn.rows if row.platform_message_id not in self.seen]
        done = await self.store.commit_turn(replace(turn, rows=fresh))
        self.seen.update(row.platform_message_id for row in fresh if row.platform_message_id)
        return done


class LosesReplies(Through):
    """It does not store replies."""

    async def commit_turn(self, turn):
        return await self.store.commit_turn(replace(turn, outbox=()))


class CommitsTwice(Through):
    """It writes each turn twice, as if it had run again after its commit."""

    async def commit_turn(self, turn):
        done = await self.store.commit_turn(turn)
        if isinstance(done, Committed):
            await self.store.append_messages(done.head.session_id, turn.rows)
        return done


class AcceptsTwice(Through):
    """It accepts a repeated event as a new one."""

    async def accept(self, inbound, **options):
        times = self.seen[inbound.event_id]
        self.seen[inbound.event_id] += 1
        again = replace(inbound, event_id=f"{inbound.event_id}{'x' * times}")
        return await self.store.accept(again, **options)


class KeepsLeases(Through):
    """It does not release leases."""

    async def release_compression_lock(self, session_id, holder):
        await trio.lowlevel.checkpoint()


class Reorders(Through):
    """It delivers the second of two messages first."""

    def subscribe(self, *, on_accepted, on_outbox):
        kept = []

        def shuffled(accepted):
            kept.append(replace(accepted, waiting=0))
            if len(kept) == 2:
                on_accepted(kept.pop())
                on_accepted(kept.pop())

        return self.store.subscribe(on_accepted=shuffled, on_outbox=on_outbox)


class LeavesOpen(Through):
    """It leaves messages open that were answered without a turn."""

    async def answer(self, answer):
        await self.store.answer(replace(answer, inbox_ids=()))


MUTANTS = {
    "loses input": LosesInput,
    "drops known ids": lambda store: DropsKnownIds(store, seen=set()),
    "loses replies": LosesReplies,
    "commits twice": CommitsTwice,
    "accepts twice": lambda store: AcceptsTwice(store, seen=Counter()),
    "keeps leases": KeepsLeases,
    "reorders": Reorders,
    "leaves open": LeavesOpen,
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds(fresh, name):
    assert any(is_found(fresh(), seed, MUTANTS[name]) for seed in range(300))


def is_found(path, seed, behind):
    try:
        return bool(simulate(path, seed, behind).violations)
    except (AssertionError, trio.TooSlowError, BaseExceptionGroup) as error:
        found = list(leaves(error))
        assert all(isinstance(each, AssertionError | trio.TooSlowError) for each in found), found
        return True


def leaves(error):
    """Yield the exceptions in a group, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
