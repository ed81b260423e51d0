"""People on Telegram, and a bot that is killed over and over: the program behind test_telegram.

The Bot API runs here, with its limits and outages; the bot is a real process on a real file, forked
from one that has loaded everything, so that a start costs milliseconds. It is killed at random
moments and at chosen ones: before and after Telegram took a call. The last one is left alone.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter

import attrs
import trio

from hermes import Config, open_runtime
from hermes.adapters.rate_limit import Rate, RateLimiter
from hermes.adapters.telegram import GroupPolicy, Telegram
from hermes.adapters.telegram.poller import Receiver
from hermes.adapters.telegram.sender import Outgoing
from hermes.errors import OutcomeUnknown, RetryAfter
from hermes.events import TextDelta
from hermes.redaction.keys import Secret
from hermes.store import SessionStore
from hermes.testing.telegram import TOKEN, WEEK, Fault, Limits, open_telegram

CHATS = (7, 8, 9, -100)
OFTEN = (7, 7, 8, 8, 9, 9, -100)
PATIENCE = 8.0
LIMITS = Limits(per_chat=(2, 0.05), per_group=(2, 1.6), per_token=(200, 1.0))
AGAIN = "You may have seen this before:\n"
POINTS = [
    (method, taken)
    for method in ("getUpdates", "sendMessage", "editMessageText")
    for taken in (False, True)
]
FAULTS = [*POINTS, ("sendMessage", True), ("sendMessage", True)]


# The bot


async def answer(turn):
    """Sometimes slowly, so that a preview is shown."""
    if random.random() < 0.4:
        turn.emit(TextDelta(f"re {turn.text[:3]}"))
        await trio.sleep(random.random() * 0.06)
    return f"re {turn.text}"


class EarlyOffset(Receiver):
    """Confirms before the commit."""

    async def _take(self, update, me):
        await self.api.call("getUpdates", {"offset": update.update_id + 1, "timeout": 0})
        await trio.sleep(0.02)
        await super()._take(update, me)


class DropPending(Receiver):
    """Begins with what comes after the start."""

    async def run(self):
        await self.api.call("getUpdates", {"offset": -1, "timeout": 0})
        await super().run()


class LowIsOld(Receiver):
    """Takes a number for old that is lower than the last."""

    last = 0

    async def _take(self, update, me):
        if update.update_id > LowIsOld.last:
            LowIsOld.last = update.update_id
            await super()._take(update, me)


class Beside(Outgoing):
    """Sends the final beside the preview."""

    async def send(self, row):
        self._previews.pop(row.turn_id, None)
        await super().send(row)


class Impatient(Outgoing):
    """Does not wait as long as it is told to."""

    async def send(self, row):
        try:
            await super().send(row)
        except RetryAfter:
            self._governor = quick_governor()
            raise RetryAfter("soon", 0.0) from None


class Certain(Outgoing):
    """Takes what may have been sent for unsent."""

    async def send(self, row):
        try:
            await super().send(row)
        except OutcomeUnknown:
            raise RetryAfter("soon", 0.0) from None


MUTANTS = {
    "offset before the commit": EarlyOffset,
    "pending updates dropped": DropPending,
    "lower number is old": LowIsOld,
    "final beside the preview": Beside,
    "retry_after ignored": Impatient,
    "unknown is unsent": Certain,
}


def quick_governor():
    return RateLimiter(per_token=Rate(1000, 1.0), per_chat=Rate(4, 0.05))


async def run_bot(path, url, mutant):
    kind = MUTANTS.get(mutant)
    telegram = Telegram(
        Secret(TOKEN),
        base_url=url,
        governor=quick_governor(),
        manners=GroupPolicy(burst_seconds=0.01),
        preview_seconds=0.01,
        pause_seconds=0.05,
    )
    if kind is not None and issubclass(kind, Outgoing):
        telegram._outgoing = kind(telegram._api, quick_governor())
    config = Config(max_queued=100_000, max_attempts=10_000, drain_timeout=30.0)
    async with telegram, open_runtime(path, agent=answer, adapters=[telegram], config=config) as rt:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                if kind is not None and issubclass(kind, Receiver):
                    nursery.start_soon(run_mutant, telegram, rt, kind)
                else:
                    nursery.start_soon(telegram.run, rt)
                async for _ in signals:
                    nursery.cancel_scope.cancel()


async def run_mutant(telegram, runtime, kind):
    async with trio.open_nursery() as nursery:
        receiver = kind(
            telegram._api, runtime, telegram._outgoing, telegram.manners, nursery,
            telegram._expect, telegram._tell, 50, 0.05,
        )  # fmt: skip
        nursery.start_soon(telegram._previews.run, runtime.events())
        await receiver.run()


def fork_bots(path, url, mutant):
    """A process that has loaded everything: it forks a bot for each line `start`, and ends it."""
    child = 0
    for line in sys.stdin:
        if line == "start\n":
            child = os.fork()
            if not child:
                os.close(0)
                random.seed(os.getpid())
                trio.run(run_bot, path, url, mutant)
                os._exit(0)
        else:
            os.kill(child, signal.SIGTERM if line == "stop\n" else signal.SIGKILL)
            os.waitpid(child, 0)
        sys.stdout.write(line)
        sys.stdout.flush()


# People, and Telegram


@attrs.define
class Campaign:
    """What was said, and what went wrong."""

    server: object
    forks: object
    dice: random.Random
    said: list = attrs.Factory(list)
    kills: int = 0
    outages: int = 0
    patience: float = PATIENCE

    async def order(self, word):
        await self.forks.stdin.send_all(f"{word}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            piece = await self.forks.stdout.receive_some()
            assert piece, "the bots are gone"
            answer += piece

    def talk(self):
        for _ in range(self.dice.choice([1, 1, 2, 4])):
            chat = self.dice.choice(OFTEN)
            text = f"m{len(self.said)}x"
            self.said.append(text)
            if chat < 0:
                self.server.say(chat, f"@hermes_bot {text}", user_id=self.dice.choice([7, 8]))
            else:
                self.server.say(chat, text)

    async def disturb(self):
        """One of the things that happen on a network."""
        match self.dice.randrange(5):
            case 0:
                self.outages += 1
                await self.server.go_down()
                await trio.sleep(self.dice.random() * 0.1)
                await self.server.come_up()
            case 1 | 2:
                method, taken = self.dice.choice(FAULTS)
                kind = self.dice.choice(["reset", "502", "garbage"])
                self.server.fail(Fault(kind, taken=taken, method=method))
            case _:
                await trio.sleep(self.dice.random() * 0.05)

    async def kill(self):
        """End the bot: at any time, or in the middle of a call."""
        if self.dice.random() < 0.7:
            method, taken = self.dice.choice(POINTS)
            before = self.server.broken[method]
            self.server.fail(Fault("slow", taken=taken, method=method, seconds=5.0))
            self.talk()
            with trio.move_on_after(0.4):
                await self.server.wait_until(lambda: self.server.broken[method] > before)
        else:
            self.talk()
            await trio.sleep(self.dice.random() * 0.15)
        await self.order("kill")
        self.kills += 1
        self.server.cut_faults()
        self.server.forget_floods()
        if self.dice.random() < 0.5:
            self.talk()  # while nobody listens
        await self.order("start")

    async def idle_for_a_week(self):
        """Nothing is said for long, once all that was said was taken, and that was heard.

        A bot that lives through a week hears so; only the clock of this server can jump.
        """
        self.server.cut_faults()
        with trio.move_on_after(5):
            await self.server.wait_until(lambda: self.server.polled and not self.server.pending)
            self.server.pass_time(WEEK + 1)
            self.talk()
            await self.server.wait_until(lambda: not self.server.pending)

    async def settle(self):
        """All is well from now on: wait until there is a final for each message."""
        self.server.cut_faults()
        await self.server.come_up()
        missing = len(self.said) + 1
        while 0 < self.missing() < missing:  # as long as it goes on
            missing = self.missing()
            with trio.move_on_after(self.patience):
                await self.server.wait_until(lambda: self.missing() < missing)  # noqa: B023
        await self.order("stop")

    def missing(self):
        """How many messages have no answer."""
        return len(set(self.said) - set(self.answered()))

    def answered(self):
        return re.findall(r"m\d+x", " ".join(text for text, _ in finals(self.server)))


def finals(server):
    """What the chats show as finals, and whether it is marked as perhaps seen before."""
    for room in server.rooms.values():
        for text in room.texts:
            if not text.endswith("▌"):
                yield text.removeprefix(AGAIN), text.startswith(AGAIN)


def judge(campaign, path):
    """What is not as it was promised."""
    with SessionStore(path) as store:
        ids = [row.session.id for row in store.list_sessions(limit=1000)]
        rows = [row for session in ids for row in store.get_messages(session)]
    heard = Counter(m for row in rows if row.role == "user" for m in _names(row.content))
    turns = Counter(row.content for row in rows if row.role == "assistant")
    plain, marked = Counter(), Counter()
    for text, again in finals(campaign.server):
        (marked if again else plain)[text] += 1
    wrong = [f"{text} is in {heard[text]} turns" for text in campaign.said if heard[text] != 1]
    wrong += [
        f"{text!r} was said in {number} turns" for text, number in turns.items() if number > 1
    ]
    wrong += [f"{text!r} is no turn's" for text in {*plain, *marked} - {*turns}]
    wrong += [f"{text!r} was never said" for text in turns if not plain[text] + marked[text]]
    wrong += [f"{text!r} is shown {plain[text]} times" for text in turns if plain[text] > 1]
    strays = sum(
        text.endswith("▌") for room in campaign.server.rooms.values() for text in room.texts
    )
    broken = campaign.server.broken
    # The number of a message that Telegram did not tell, or that died with the bot, is lost.
    cuts = campaign.kills + campaign.outages
    if strays > cuts * len(CHATS) + broken["sendMessage"]:
        wrong.append(f"{strays} previews were left behind")
    if campaign.server.impatient:
        wrong.append(f"{campaign.server.impatient} calls did not wait")
    return {
        "wrong": wrong, "said": len(campaign.said), "turns": sum(turns.values()),
        "recovered": sum(marked.values()), "strays": strays, "kills": campaign.kills,
        "floods": campaign.server.floods, "broken": dict(broken), "edits":
        campaign.server.counts["editMessageText"],
    }  # fmt: skip


def _names(text):
    return re.findall(r"m\d+x", text or "")


async def attack(path, seed, kills, mutant):
    dice = random.Random(seed)
    async with open_telegram(limits=LIMITS, seed=seed) as server:
        for chat in CHATS:
            server.group(chat) if chat < 0 else server.private(chat)
        command = [sys.executable, "-m", "tests.campaigns.telegraphing", "bots", path, server.url]
        forks = await trio.lowlevel.open_process(
            [*command, mutant], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        async with forks.stdin, forks.stdout:
            campaign = Campaign(server, forks, dice, patience=3.0 if mutant else PATIENCE)
            await campaign.order("start")
            for step in range(max(kills, 3)):
                for _ in range(4):
                    campaign.talk()
                    if kills:
                        await campaign.disturb()
                    else:
                        await trio.sleep(dice.random() * 0.1)
                if kills > 0:
                    await campaign.kill()
                if step % 3 == 1:
                    await campaign.idle_for_a_week()
            await campaign.settle()
        await forks.wait()
        return judge(campaign, path)


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    if first == "bots":
        fork_bots(*rest)
    else:
        seen = trio.run(attack, first, int(rest[0]), int(rest[1]), rest[2])
        sys.stdout.write(json.dumps(seen))
