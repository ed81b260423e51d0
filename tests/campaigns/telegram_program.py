"""The campaign of test_telegram.py: users on Telegram, and a bot that is killed again and again.

This process runs the Bot API with its limits and outages. The bot is another process with a real
database. It is forked from a process that has imported everything, so a start takes milliseconds.
It is killed at random times and at chosen ones: before and after Telegram has executed a call. The
last bot is not killed.
"""

from __future__ import annotations

import hashlib
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

from hermes import AccessPolicy, Attachment, Config, PlatformRules, TurnResult, open_runtime
from hermes.adapters.rate_limit import Rate, RateLimiter
from hermes.adapters.telegram import GroupPolicy, Telegram
from hermes.adapters.telegram.poller import Poller
from hermes.adapters.telegram.sender import Sender
from hermes.errors import OutcomeUnknown, RetryAfter
from hermes.events import TextDelta
from hermes.redaction import Secret
from hermes.store import SessionStore
from hermes.testing.telegram import TOKEN, WEEK, Fault, Limits, open_telegram
from hermes.texts import ENGLISH

CHATS = (7, 8, 9, -100)
WEIGHTED_CHATS = (7, 7, 8, 8, 9, 9, -100)
SETTLE_TIMEOUT = 8.0
LIMITS = Limits(per_chat=(2, 0.05), per_group=(2, 1.6), per_token=(200, 1.0))
RECOVERED = "You may have seen this before:\n"
METHODS = ("getUpdates", "sendMessage", "editMessageText", "getFile", "sendDocument")
POINTS = [*((method, taken) for method in METHODS for taken in (False, True)), ("file", False)]
LOST_ANSWERS = [("sendMessage", True)] * 4 + [("sendDocument", True)] * 2
FAULTS = [*POINTS, *LOST_ANSWERS, ("upload", False)]
KINDS = ["reset", "502", "garbage"]
FILE_KINDS = ["reset", "502", "404", "truncated", "short", "redirect"]
WITH_FILE = " with a file"
LOST = "it could not be downloaded"


# The bot


async def answer(turn):
    """Answer, sometimes slowly, so that a preview is shown; with a file if there is a "!"."""
    said = " ".join(message.content for message in turn.input)
    if random.random() < 0.6:
        turn.emit(TextDelta(f"re {said[:3]}"))
        await trio.sleep(random.random() * 0.06)
    if "!" not in said:
        return f"re {said}"
    text = f"re {said}{WITH_FILE}"
    return TurnResult(text=text, files=[Attachment(data=content_of(text), name="answer.bin")])


def content_of(text):
    """The content of the file that comes with a message."""
    return f"the file of {text}\n".encode() * 2000


class EarlyOffset(Poller):
    """Confirms updates before the commit."""

    async def _process(self, update, bot):
        await self.api.call("getUpdates", {"offset": update.update_id + 1, "timeout": 0})
        await trio.sleep(0.02)
        await super()._process(update, bot)


class DropPending(Poller):
    """Drops the updates from before the start."""

    async def run(self):
        await self.api.call("getUpdates", {"offset": -1, "timeout": 0})
        await super().run()


class LowIsOld(Poller):
    """Ignores update ids below the last one."""

    last = 0

    async def _process(self, update, bot):
        if update.update_id > LowIsOld.last:
            LowIsOld.last = update.update_id
            await super()._process(update, bot)


class SecondMessage(Sender):
    """Sends the final message in addition to the preview."""

    async def send(self, row):
        self._previews.pop(row.turn_id, None)
        await super().send(row)


class Impatient(Sender):
    """Ignores `retry_after`."""

    async def send(self, row):
        try:
            await super().send(row)
        except RetryAfter:
            self._rate_limiter = fast_limiter()
            raise RetryAfter("soon", 0.0) from None


class Certain(Sender):
    """Treats an unknown outcome as not sent."""

    async def send(self, row):
        try:
            await super().send(row)
        except OutcomeUnknown:
            raise RetryAfter("soon", 0.0) from None

    async def send_file(self, row, file):
        try:
            await super().send_file(row, file)
        except OutcomeUnknown:
            raise RetryAfter("soon", 0.0) from None


MUTANTS = {
    "offset before the commit": EarlyOffset,
    "pending updates dropped": DropPending,
    "lower number is old": LowIsOld,
    "final beside the preview": SecondMessage,
    "retry_after ignored": Impatient,
    "unknown is unsent": Certain,
}


def fast_limiter():
    return RateLimiter(per_token=Rate(1000, 1.0), per_chat=Rate(4, 0.05))


async def run_bot(path, url, mutant):
    kind = MUTANTS.get(mutant)
    telegram = Telegram(
        Secret(TOKEN),
        base_url=url,
        rate_limiter=fast_limiter(),
        group_policy=GroupPolicy(burst_seconds=0.01),
        preview_interval=0.01,
        retry_delay=0.05,
    )
    if kind is not None and issubclass(kind, Sender):
        telegram._sender = kind(telegram._api, fast_limiter(), ENGLISH)
    config = Config(max_queued=100_000, max_attempts=10_000, drain_timeout=30.0)
    access = AccessPolicy(rules={"telegram": PlatformRules(users=range(100))})
    async with (
        telegram,
        open_runtime(path, agent=answer, adapters=[telegram], config=config, access=access) as rt,
    ):
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                if kind is not None and issubclass(kind, Poller):
                    nursery.start_soon(run_mutant, telegram, rt, kind)
                else:
                    nursery.start_soon(telegram.run, rt)
                async for _ in signals:
                    nursery.cancel_scope.cancel()


async def run_mutant(telegram, runtime, kind):
    async with trio.open_nursery() as nursery:
        poller = kind(
            api=telegram._api, runtime=runtime, sender=telegram._sender,
            group_policy=telegram.group_policy, nursery=nursery,
            on_message=telegram._prepare_preview, on_problem=telegram._set_problem,
            poll_timeout=50, retry_delay=0.05,
        )  # fmt: skip
        nursery.start_soon(telegram._previews.run, runtime.subscribe())
        await poller.run()


def fork_bots(path, url, mutant):
    """Read commands: `start` forks a bot, `stop` and `kill` end it."""
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


# Users, and Telegram


def digest(content):
    return hashlib.sha256(content).hexdigest()


@attrs.define
class Campaign:
    """The users' messages, and the disturbances."""

    server: object
    forks: object
    dice: random.Random
    sent: list = attrs.Factory(list)
    with_file: list = attrs.Factory(list)
    kills: int = 0
    outages: int = 0
    settle_timeout: float = SETTLE_TIMEOUT

    async def command(self, word):
        await self.forks.stdin.send_all(f"{word}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            piece = await self.forks.stdout.receive_some()
            assert piece, "the process of the bots has ended"
            answer += piece

    def talk(self, method=None):
        """Let users write. The answers lead to a call of `method`, if it is one about files."""
        for _ in range(self.dice.choice([1, 1, 2, 4])):
            chat = self.dice.choice(WEIGHTED_CHATS)
            text = f"m{len(self.sent)}x"
            self.sent.append(text)
            if method in {"sendDocument", "upload"} or self.dice.random() < 0.2:
                text += "!"
            if method in {"getFile", "file"} or (chat > 0 and self.dice.random() < 0.3):
                self.with_file.append(text)
                file = self.server.files.add(content_of(text), file_name="question.bin")
                self.server.post(abs(chat) % 100 or 7, document=file, caption=text)
            elif chat < 0:
                self.server.say(chat, f"@hermes_bot {text}", user_id=self.dice.choice([7, 8]))
            else:
                self.server.say(chat, text)

    async def disturb(self):
        """Cause a fault of the network, or wait."""
        match self.dice.randrange(5):
            case 0:
                self.outages += 1
                await self.server.go_down()
                await trio.sleep(self.dice.random() * 0.1)
                await self.server.come_up()
            case 1 | 2:
                method, taken = self.dice.choice(FAULTS)
                kind = self.dice.choice(FILE_KINDS if method == "file" else KINDS)
                before = self.server.broken[method]
                self.server.fail(Fault(kind, taken=taken, method=method))
                self.talk(method)
                with trio.move_on_after(0.4):
                    await self.server.wait_until(lambda: self.server.broken[method] > before)
            case _:
                await trio.sleep(self.dice.random() * 0.05)

    async def kill(self):
        """Kill the bot at a random time, or in the middle of a call, and start it again."""
        if self.dice.random() < 0.7:
            method, taken = self.dice.choice(POINTS)
            before = self.server.broken[method]
            self.server.fail(Fault("slow", taken=taken, method=method, seconds=5.0))
            self.talk(method)
            with trio.move_on_after(0.4):
                await self.server.wait_until(lambda: self.server.broken[method] > before)
        else:
            self.talk()
            await trio.sleep(self.dice.random() * 0.15)
        await self.command("kill")
        self.kills += 1
        self.server.clear_faults()
        self.server.flood_control.forget_waits()
        if self.dice.random() < 0.5:
            self.talk()  # while no bot is running
        await self.command("start")

    async def idle_for_a_week(self):
        """Let a week pass on the server, after all updates were confirmed.

        A real bot would notice the confirmations within that week; only this clock can jump.
        """
        self.server.clear_faults()
        with trio.move_on_after(5):
            await self.server.wait_until(lambda: self.server.polled and not self.server.pending)
            self.server.pass_time(WEEK + 1)
            self.talk()
            await self.server.wait_until(lambda: not self.server.pending)

    async def settle(self):
        """Stop all faults, and wait until each message has a final answer."""
        self.server.clear_faults()
        await self.server.come_up()
        missing = len(self.sent) + 1
        while 0 < self.missing() < missing:  # as long as there is progress
            missing = self.missing()
            with trio.move_on_after(self.settle_timeout):
                await self.server.wait_until(lambda: self.missing() < missing)  # noqa: B023
        await self.command("stop")

    def missing(self):
        """The number of messages without an answer, and of answers without their file."""
        shown = {file.sha256 for chat in self.server.chats.values() for file in chat.files}
        files = {digest(content_of(t)) for t, _ in finals(self.server) if t.endswith(WITH_FILE)}
        return len(set(self.sent) - set(self.answered())) + len(files - shown)

    def answered(self):
        return re.findall(r"m\d+x", " ".join(text for text, _ in finals(self.server)))


def finals(server):
    """The final messages in all chats, and whether they are marked as recovered."""
    for chat in server.chats.values():
        for text in chat.texts:
            if not text.endswith("▌"):
                yield text.removeprefix(RECOVERED), text.startswith(RECOVERED)


def judge_received(campaign, rows, read):
    """Compare the files of the users with those in the transcripts."""
    asked = [row for row in rows if row.role == "user"]
    received = {row.content: read(part["file"]) for row in asked for part in files_of(row)}
    said = " ".join(row.content or "" for row in asked)
    for text in campaign.with_file:
        lost = re.search(rf"\b{text} \[document [^\]]*: {LOST}\]", said)
        if received.get(text) != content_of(text) and not lost:
            yield f"{text} has neither its file nor a note"


def judge_returned(campaign, rows, read):
    """Compare the files of the answers with those in the chats."""
    answers = [row for row in rows if row.role == "assistant"]
    found = {row.content: read(part["file"]) for row in answers for part in files_of(row)}
    returned = {digest(content) for content in found.values()}
    plain, marked = Counter(), Counter()
    for chat in campaign.server.chats.values():
        for message in (each for each in chat.messages if each.file is not None):
            (marked if message.text else plain)[message.file.sha256] += 1
    shown = {*plain, *marked}
    yield from (f"{t!r} has another file" for t, c in found.items() if c != content_of(t))
    yield from (f"file {each} was never sent" for each in returned - shown)
    yield from (f"file {each} belongs to no turn" for each in shown - returned)
    yield from (f"file {each} is shown {n} times" for each, n in plain.items() if n > 1)


def files_of(row):
    return [part for part in row.parts or () if "file" in part]


def judge(campaign, path):
    """Compare the transcripts with the chats."""
    with SessionStore(path) as store:
        sessions = [row.session for row in store.list_sessions(limit=1000)]
        found = [(each.session_key, store.get_messages(each.id)) for each in sessions]
        keys = {part["file"]: key for key, its in found for row in its for part in files_of(row)}
        rows = [row for _, its in found for row in its]

        def read(file_id):
            return store.read_file(file_id, session_key=keys[file_id])

        wrong = [*judge_received(campaign, rows, read), *judge_returned(campaign, rows, read)]
    received = Counter(m for row in rows if row.role == "user" for m in _names(row.content))
    turns = Counter(row.content for row in rows if row.role == "assistant")
    plain, marked = Counter(), Counter()
    for text, again in finals(campaign.server):
        (marked if again else plain)[text] += 1
    wrong += [
        f"{text} is in {received[text]} turns" for text in campaign.sent if received[text] != 1
    ]
    wrong += [
        f"{text!r} was answered in {number} turns" for text, number in turns.items() if number > 1
    ]
    wrong += [f"{text!r} belongs to no turn" for text in {*plain, *marked} - {*turns}]
    wrong += [f"{text!r} was never sent" for text in turns if not plain[text] + marked[text]]
    wrong += [f"{text!r} is shown {plain[text]} times" for text in turns if plain[text] > 1]
    strays = sum(
        text.endswith("▌") for chat in campaign.server.chats.values() for text in chat.texts
    )
    broken = campaign.server.broken
    # The id of a preview is lost if its response is, or if the bot is killed.
    cuts = campaign.kills + campaign.outages
    if strays > cuts * len(CHATS) + broken["sendMessage"]:
        wrong.append(f"{strays} previews were left behind")
    if campaign.server.flood_control.impatient:
        wrong.append(f"{campaign.server.flood_control.impatient} calls did not wait")
    return {
        "wrong": wrong, "sent": len(campaign.sent), "turns": sum(turns.values()),
        "files": len(campaign.with_file), "sent_files": campaign.server.counts["sendDocument"],
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
        command = [
            sys.executable,
            "-m",
            "tests.campaigns.telegram_program",
            "bots",
            path,
            server.url,
        ]
        forks = await trio.lowlevel.open_process(
            [*command, mutant], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        async with forks.stdin, forks.stdout:
            campaign = Campaign(
                server, forks, dice, settle_timeout=3.0 if mutant else SETTLE_TIMEOUT
            )
            await campaign.command("start")
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
