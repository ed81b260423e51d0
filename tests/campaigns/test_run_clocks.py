"""C8, on the real bot: a clock that jumps loses no message and runs no event again.

The clocks of the bot are moved by a library for LD_PRELOAD (`shim.c`), while it runs and between
two starts. The steady clock goes forward only, as when a machine wakes up; the pause makes the bot
sweep its database at once.
"""

from __future__ import annotations

import random

import pytest
import trio

from tests.campaigns import shim as shims
from tests.campaigns.run_checks import violations
from tests.campaigns.run_driver import PATIENCE, ROOT, Users, open_bots
from tests.campaigns.run_mutants import mutate

HOUR, DAY = 3600.0, 86_400.0
JUMPS = (-3650 * DAY, -31 * DAY, -HOUR, -1.0, 1.0, HOUR, 2 * DAY, 31 * DAY, 400 * DAY)
SWEEP = 61.0
"""Seconds after which the bot sweeps."""


async def jump_repeatedly(folder, seed, jumps, root=ROOT, patience=PATIENCE):
    """Let the clock jump this often, each time before some prompts; returns users, violations.

    A third of the jumps happens between two processes.
    """
    dice = random.Random(seed)
    users = Users(dice, chats=("chat/1", "chat/2"), in_flight=2, patience=patience)
    shim = shims.build(folder)
    async with open_bots(folder, root=root, shim=shim, seed=seed) as bots:
        steady = 0.0
        for number in range(jumps):
            users.budget = 6

            def jump(number=number):
                """Move the clocks when half of the prompts were made."""
                nonlocal steady
                if users.budget == (6 if number % 3 == 0 else 3):
                    steady += SWEEP
                    shim.move_clocks(steady + dice.choice(JUMPS), steady)

            jump()
            users.on_prompt = jump
            bot = await bots.start()
            if code := await users.life(bot):
                users.violations.append(f"it ended with {code}: {bot.errors.read_text()}")
        shim.move_clocks(steady, steady)
        if code := await users.life(await bots.start(), everything=True):
            users.violations.append(f"the last bot ended with {code}")
    found = [*users.violations, *(f"refused: {error}" for error in users.refused)]
    return users, [*found, *violations(bots.path, users.acknowledged)]


def test_a_clock_that_jumps_loses_nothing_and_repeats_nothing(tmp_path, prove, campaign):
    for seed in campaign.seeds(range(15) if prove else [1]):
        folder = tmp_path / str(seed)
        folder.mkdir()
        jumps = 20 if prove else 6
        users, found = trio.run(jump_repeatedly, folder, seed, jumps)
        campaign.count(jumps=jumps, messages=len(users.acknowledged))
        campaign.check(found)
        assert users.repeated >= len(users.prompts)


@pytest.mark.mutant
def test_the_campaign_finds_a_cleanup_that_trusts_the_clock(tmp_path):
    root = mutate(tmp_path, "old rows are deleted by a clock that is believed")
    for seed in range(5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if trio.run(jump_repeatedly, folder, seed, 6, root, 20.0)[1]:
            return
    raise AssertionError("it was not found")
