"""C2b, on the real bot: it reports each failed call of the disk, and acknowledges nothing falsely.

A library for LD_PRELOAD (`shim.c`) fails the n-th write, sync, truncation or opening of a database
file. The number n is the seed: `--seed n` repeats a case.
"""

from __future__ import annotations

import random

import pytest
import trio

from tests.campaigns import shim as shims
from tests.campaigns.run_checks import violations
from tests.campaigns.run_driver import PATIENCE, ROOT, Users, open_bots
from tests.campaigns.run_mutants import mutate

PROMPTS = 12
EXIT_CODES = {3, 4, 6, 75}
"""The codes of a bot that cannot use its database, or has left messages unanswered."""
FAULTS = [
    ("io error", 1), ("no space", 1), ("short", 1), ("io error", 1_000_000), ("no space", 40),
]  # fmt: skip
"""Kinds of faults, and how many calls fail. A full disk has space again after a while."""


async def run_case(bots, shim, number, kind, times, patience=PATIENCE):
    """Run a bot whose call with this number fails, and one without faults after it.

    Returns the violations, and how many calls were counted and failed.
    """
    bots.folder = bots.folder.parent / f"case{number}"
    bots.folder.mkdir()
    bots.configure()
    users = Users(
        random.Random(number), chats=("chat/1", "chat/2"), budget=PROMPTS, in_flight=2,
        patience=patience,
    )  # fmt: skip
    shim.watch(bots.path)
    if number:
        shim.fail(number, kind, times=times)
    bot = await bots.start()
    code = await users.life(bot)
    seen = {"calls": shim["count"], "failed": shim["failed"]}
    shim.reset()
    found = [*users.violations, *untruthful(code, bot.errors.read_text(), users)]
    users.budget = 0
    bot = await bots.start()
    if code := await users.life(bot, everything=True):
        found.append(f"without a fault it ended with {code}: {bot.errors.read_text()}")
    found += violations(bots.path, users.acknowledged)
    return [f"call {number}, {kind}: {each}" for each in found], seen


def untruthful(code, errors, users):
    """Yield what is wrong with the end of the bot that had the fault."""
    if code and code not in EXIT_CODES:
        yield f"it ended with {code}: {errors}"
    if "Traceback" in errors:
        yield f"it ended with a traceback: {errors}"
    if code and not errors.strip():
        yield f"it ended with {code} and does not say why"
    if not code and users.unanswered:
        yield f"it ended with 0, but did not answer {users.unanswered}"


async def run_cases(folder, cases, root=ROOT):
    """Run cases until one has violations; returns these, and what was counted for each case."""
    counted = []
    shim = shims.build(folder)
    (folder / "cases").mkdir()
    async with open_bots(folder / "cases", root=root, shim=shim) as bots:
        bots.folder = folder / "cases" / "none"
        for case in cases:
            found, seen = await run_case(bots, shim, *case)
            counted.append(seen)
            if found:
                return found, counted
    return [], counted


def case_of(number):
    return (number, *FAULTS[number % len(FAULTS)])


def test_a_failed_call_of_the_disk_is_reported_and_nothing_acknowledged_is_lost(
    tmp_path, prove, campaign
):
    numbers = range(1, 721, 2) if prove else [3, 5, 131, 264, 397]
    found, counted = trio.run(run_cases, tmp_path, map(case_of, campaign.seeds(numbers)))
    campaign.count(cases=len(counted), faults=sum(each["failed"] > 0 for each in counted))
    campaign.check(found)
    assert any(each["failed"] for each in counted)


FAST = "a failed database is reported"
SLOW = "what could not be written is not acknowledged"


@pytest.mark.mutant
@pytest.mark.parametrize("breaks", [FAST, SLOW])
def test_the_campaign_finds(tmp_path, prove, breaks):
    if breaks == SLOW and not prove:
        pytest.skip("part of make prove")
    root = mutate(tmp_path, breaks)
    kinds = [("io error", 1_000_000), ("no space", 1)]
    cases = [(number, *kinds[number % 2], 8.0) for number in range(150, 700, 25)]
    assert trio.run(run_cases, tmp_path, cases, root)[0], "it was not found"
