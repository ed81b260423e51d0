"""The program of test_backlogs: a bot that starts with more work than any of its bounds.

Before each start, messages, commands and replies are stored until every bound is exceeded: pages of
keys and replies, lanes, mailboxes and open messages of one key. The bot is a real process. As soon
as it runs, fresh messages and commands arrive; it is killed at a random moment, and the last bot
runs until everything is done. `backlog_model.py` compares what it did with a sequential model.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import trio

from hermes import CompressionConfig, Config, Inbound, Source, TurnResult
from hermes.actors.cluster.recovery import PAGE as KEY_PAGE
from hermes.actors.delivery.lane import MAX_ROWS
from hermes.actors.runtime import open_actors
from hermes.actors.session.inbox import CAPACITY
from hermes.actors.session.state import PAGE as MESSAGE_PAGE
from hermes.embed.agent import default_spec
from hermes.messages import TurnCommit
from hermes.outbound import outbox_rows
from hermes.store import SessionStore, open_store
from hermes.testing import DeterministicCompressor
from tests.campaigns.backlog_model import Start, violations

OUTBOX_PAGE = 1000
"""The rows that `pending_outbox` returns at once."""
MANY = 1_000_000
PATIENCE = 120.0
LONGEST_LIFE = 0.6
KEYS = [f"k{number:04}" for number in range(KEY_PAGE + 100)]
HOT = [*KEYS[:3], *KEYS[-3:]]
"""Conversations with many open messages, stopping commands, and many replies to send."""
FRESH = 300
STOPS = ("/stop", "/new", "/reset a title")
WAITING = (
    "/undo", "/undo 2", "/retry", "/compress", "/branch", "/resume 1", "/approve", "/deny", "/pair",
)  # fmt: skip
NOW = ("/sessions", "/title x", "/status", "/usage", "/help", "/whoami", "/nonsense",
       "/background look")  # fmt: skip


def config(seed: int) -> Config:
    """Return the configuration of a seed; every second one has a turn for each message."""
    return Config(
        max_queued=MANY,
        max_attempts=MANY,
        drain_timeout=PATIENCE,
        merge_messages=seed % 2 == 1,
        compression=CompressionConfig(window=20_000, max_output=0),
    )


# The bot


class Agent:
    """Answers with the beginning of its input."""

    async def run(self, turn):
        await trio.sleep(random.random() * 0.002)
        turn.steered()
        return TurnResult(text=f"re: {turn.text[:6]}")


@attrs.define
class Wire:
    """An adapter that appends what was sent to a file, which the next process continues."""

    log: int
    platform: str = "wire"
    local: bool = True

    async def send(self, row, /):
        os.write(self.log, f"{row.outbox_id} {row.recovered} {row.lane}\n".encode())
        await trio.sleep(random.random() * 0.002)


def inbound(event_id: str, key: str, text: str, when_busy: str | None = None) -> Inbound:
    source = Source("wire", chat_id=key, user_id=key)
    command = text.startswith("/")
    return Inbound(key, event_id, text, source, command=command, when_busy=when_busy)


async def bot(path, seed, reading, writing):
    log = os.open(f"{path}.sent", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    acks = trio.lowlevel.FdStream(writing)
    lock = trio.Lock()

    async def submit(runtime, message):
        await runtime.submit(inbound(*message))
        async with lock:
            await acks.send_all(f"{message[0]}\n".encode())

    async with (
        open_store(path) as store,
        open_actors(
            store,
            build=lambda _: Agent(),
            agent_spec=default_spec,
            config=config(seed),
            compressor=DeterministicCompressor(),
            adapters=[Wire(log)],
        ) as runtime,
        trio.open_nursery() as nursery,
    ):
        buffer = b""
        async for piece in trio.lowlevel.FdStream(reading):
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                nursery.start_soon(submit, runtime, json.loads(line))


# The platform


@attrs.define
class Platform:
    """The messages of users, those that were acknowledged, and the file at each start."""

    path: Path
    seed: int
    dice: random.Random
    said: dict[str, list] = attrs.Factory(dict)
    acked: set[str] = attrs.Factory(set)
    starts: list[Start] = attrs.Factory(list)

    def say(self, key, text=None, when_busy=None):
        """Return a new message: event id, key, text, and what to do if a turn runs."""
        number = len(self.said)
        words = f"{number:06} {'word ' * self.dice.randint(0, 3)}" if text is None else text
        text = f"{words} {number:06}" if words in {"/queue", "/steer"} else words
        self.said[f"e{number}"] = [f"e{number}", key, text, when_busy]
        return self.said[f"e{number}"]

    def anything(self, key):
        """Return a message or a command."""
        draw = self.dice.random()
        if draw < 0.04:
            return self.say(key, self.dice.choice(STOPS))
        if draw < 0.12:
            return self.say(key, self.dice.choice(NOW))
        if draw < 0.2:
            return self.say(key, self.dice.choice(WAITING))
        if draw < 0.26:
            return self.say(key, self.dice.choice(["/queue", "/steer"]))
        busy = self.dice.choice([None, None, "queue", "interrupt", "steer", "reject"])
        return self.say(key, when_busy=busy)

    # The backlog

    def exceed_every_bound(self):
        """Store messages and replies until no bound suffices for them; note what is open."""
        with SessionStore(self.path) as store:
            accepted = store.snapshot(lambda tx: tx.one("SELECT max(id) FROM inbox"))[0] or 0
            opened = Counter(row.inbound.session_key for row in open_rows(store))
            for key in KEYS:
                for _ in range(self.missing(key, opened[key])):
                    store.accept(inbound(*self.anything(key)), max_queued=MANY)
            for key in HOT:  # in an order that no page could follow by chance
                for text in (self.dice.choice(STOPS), None, self.dice.choice(STOPS), None):
                    store.accept(inbound(*self.say(key, text)), max_queued=MANY)
            self.leave_replies(store)
            self.starts.append(Start.read(self.path, accepted))

    def missing(self, key, opened):
        """Return how many messages of a key are to be stored."""
        if key == HOT[0]:
            return max(0, MESSAGE_PAGE + 50 - opened)
        return max(0, (2 * CAPACITY if key in HOT else 1) - opened)

    def leave_replies(self, store):
        """Store replies that wait to be sent: the last ones are those of the hot lanes."""
        accepted = store.accept(inbound(f"seed{len(self.starts)}", "seed", "x")).receipt
        keys = [*KEYS[:OUTBOX_PAGE], *HOT * (MAX_ROWS + 50)]
        replies = [
            row
            for number, key in enumerate(keys)
            for row in outbox_rows(
                Source("wire", chat_id=key), key, accepted.session_id, f"old {number}", "reply"
            )
        ]
        route = store.route_head("seed")
        store.commit_turn(
            TurnCommit(
                session_key="seed",
                session_id=accepted.session_id,
                epoch=accepted.epoch,
                revision=route[1].revision,
                inbox_ids=[accepted.inbox_id],
                outbox=replies,
            )
        )

    # The lives of the bot

    def fork(self):
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(ours_out)
            os.close(ours_in)
            random.seed(os.getpid())
            trio.run(bot, self.path, self.seed, theirs_in, theirs_out)
            os._exit(0)
        os.close(theirs_in)
        os.close(theirs_out)
        return pid, ours_in, ours_out

    def live(self, *, last):
        """Run a bot to which everything arrives at once, until it is killed or has done it all."""
        self.exceed_every_bound()
        known = self.known()
        unknown = [message for event, message in self.said.items() if event not in known]
        burst = [self.anything(HOT[1]) for _ in range(CAPACITY + 20)]
        fresh = [self.anything(self.dice.choice([*HOT, *KEYS])) for _ in range(FRESH)]
        pid, reading, writing = self.fork()
        messages = [*unknown, *burst, *fresh]
        lines = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        heard, life = b"", self.dice.random() * LONGEST_LIFE
        deadline = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            selector.register(writing, selectors.EVENT_WRITE)
            while heard.count(b"\n") < len(messages) and time.monotonic() < deadline:
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    if key.fd == writing:
                        lines = lines[os.write(writing, lines[:4096]) :]
                        if not lines:
                            selector.unregister(writing)
                    else:
                        if not heard and not last:
                            deadline = time.monotonic() + life
                        heard += os.read(reading, 65536)
        if not last:
            os.kill(pid, signal.SIGKILL)
        os.close(writing)  # the last bot drains and ends
        while piece := os.read(reading, 65536):
            heard += piece
        os.close(reading)
        os.waitpid(pid, 0)
        self.acked.update(line.decode() for line in heard.split(b"\n")[:-1])

    def known(self):
        """Return the events that were stored, acknowledged or not."""
        with SessionStore(self.path) as store:
            found = store.snapshot(lambda tx: tx.all("SELECT event_id FROM inbox"))
        return {event for (event,) in found}


def open_rows(store):
    rows, after = [], 0
    while page := store.open_inbox(after=after, limit=1000):
        rows += page
        after = page[-1].inbox_id
    return rows


def exceeded(start: Start) -> bool:
    """Return whether a start found more than every bound."""
    keys = Counter(start.keys[inbox_id] for inbox_id in start.open)
    return (
        len(keys) > KEY_PAGE
        and len(start.pending) > OUTBOX_PAGE
        and all(start.lanes[f"wire//{key}/"] > MAX_ROWS for key in HOT)
        and all(keys[key] > CAPACITY for key in HOT)
        and keys[HOT[0]] > MESSAGE_PAGE
    )


def main(path: str, kills: int, seed: int) -> None:
    """Kill the bot this many times, and print the results as JSON."""
    platform = Platform(Path(path), seed, random.Random(seed))
    for _ in range(kills):
        platform.live(last=False)
    platform.live(last=True)
    found = violations(
        platform.path, platform.said, platform.acked, platform.starts, merges=seed % 2 == 1
    )
    report = {
        "said": len(platform.said),
        "acknowledged": len(platform.acked),
        "starts": len(platform.starts),
        "exceeded": all(exceeded(start) for start in platform.starts),
        "violations": found[:20],
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
