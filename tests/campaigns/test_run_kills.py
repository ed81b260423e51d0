"""C1b, on the real bot with all commands: kills lose, repeat and fork nothing.

The bot is `python -m hermes.run --stdio` with the default number of attempts, a model, a tool that
needs approval, and compression. See `run_driver` and `run_checks`.
"""

from __future__ import annotations

import random
import signal
from collections import Counter

import pytest
import trio

from tests.campaigns.run_checks import statistics, violations
from tests.campaigns.run_driver import PATIENCE, ROOT, Users, open_bots
from tests.campaigns.run_mutants import EVERY, mutate
from tools.mutants import problem

MOST_FRAMES = 150
"""How many frames a bot may send before it is killed."""


FAST = "every process recognizes an event"
SLOW = (
    "a turn closes its message",
    "a message that was begun is begun again after a crash",
)


async def kill_repeatedly(folder, seed, kills, root=ROOT, patience=PATIENCE):
    """Kill the bot this often, and let the last two lives answer everything.

    Returns the users and the violations.
    """
    users = Users(random.Random(seed), patience=patience)
    async with open_bots(folder, root=root, seed=seed) as bots:
        for number in range(kills):
            bot = await bots.start(fork=number % 10 != 9)
            code = await users.life(bot, kill_after=users.dice.randint(1, MOST_FRAMES))
            if code != -signal.SIGKILL:
                users.violations.append(f"a bot ended with {code}: {bot.errors.read_text()}")
            if users.violations:
                return users, users.violations
        users.budget = 0
        for fork in (True, False):
            bot = await bots.start(fork=fork)
            if (code := await users.life(bot, everything=True)) != 0:
                users.violations.append(f"the last bot ended with {code}")
    found = [*users.violations, *(f"refused: {error}" for error in users.refused)]
    return users, [*found, *violations(bots.path, users.acknowledged)]


def test_kills_of_the_real_bot_lose_nothing_and_repeat_nothing(tmp_path, prove, campaign):
    seen = Counter()
    for seed in campaign.seeds(range(20) if prove else range(1, 5)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills = 50 if prove else 6
        users, found = trio.run(kill_repeatedly, folder, seed, kills)
        campaign.count(kills=kills, messages=len(users.acknowledged))
        campaign.check(found)
        assert len(users.acknowledged) > 3 * kills
        assert users.repeated >= len(users.prompts)
        seen += statistics(folder / "state.db")
        if seen["rotations"] and not prove:
            break
    assert seen["rotations"]


@pytest.mark.parametrize("mutant", EVERY, ids=[mutant.breaks for mutant in EVERY])
def test_every_mutant_of_the_real_bot_can_be_applied(mutant):
    assert problem(ROOT, mutant) is None


@pytest.mark.mutant
@pytest.mark.parametrize("breaks", [FAST, *SLOW])
def test_the_campaign_finds(tmp_path, prove, breaks):
    if breaks in SLOW and not prove:
        pytest.skip("part of make prove")
    root = mutate(tmp_path, breaks)
    for seed in range(5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if trio.run(kill_repeatedly, folder, seed, 3, root, 10.0)[1]:
            return
    raise AssertionError("it was not found")
