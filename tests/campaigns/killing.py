"""The program of test_kills: a platform, and a bot that is killed over and over.

The platform sends each message until it is acknowledged, some of them twice. The bot is a real
process with real files, forked from this one so that a kill costs milliseconds. It is killed at a
random moment, and the next bot finds what it left. The last bot runs until everything is done.
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
from functools import partial
from pathlib import Path

import attrs
import trio
from msgspec.structs import replace

from hermes import CompressionConfig, Config, Inbound, Source, TurnResult
from hermes.actors.runtime import open_actors
from hermes.embed.agent import default_spec
from hermes.messages import InboxReply
from hermes.store import SessionStore, open_store
from hermes.testing import DeterministicCompressor
from tests.support.store_proxy import Through

KEYS = 8
IN_FLIGHT = 12
MOST_SECONDS = 0.04
PATIENCE = 60.0
CONFIG = Config(
    max_queued=1_000_000,
    drain_timeout=1200,
    max_attempts=10_000,
    compression=CompressionConfig(window=700, max_output=0, share=0.5, tail_share=0.2),
)


# The bot


async def echo(turn):
    await trio.sleep(random.random() * 0.004)
    return TurnResult(text=f"echo: {turn.text[:6]}")


@attrs.define
class Wire:
    """An adapter that appends what was sent to a file, which the next process continues."""

    log: int
    platform: str = "wire"
    local: bool = True

    async def send(self, row, /):
        os.write(self.log, f"{row.outbox_id} {row.recovered} {row.lane}\n".encode())
        await trio.sleep(random.random() * 0.002)


class TwoTransactions(Through):
    """Mutant M2: a turn is committed in two transactions: its rows, and the rest."""

    async def commit_turn(self, turn):
        await self.store.ensure_session(turn.session_id, "wire")
        await self.store.append_messages(turn.session_id, turn.rows)
        revision = (await self.store.head(turn.session_id)).revision
        return await self.store.commit_turn(replace(turn, rows=(), revision=revision))


class SeparateReplies(Through):
    """Mutant M15: replies are stored in a separate transaction."""

    async def commit_turn(self, turn):
        done = await self.store.commit_turn(replace(turn, outbox=()))
        late = InboxReply(session_key=turn.session_key, inbox_ids=(), outbox=turn.outbox)
        await self.store.answer(late)
        return done


class ForgetsEvents(Through):
    """Mutant M4: a repeated event is only recognized by the process that accepted it."""

    async def accept(self, inbound, **options):
        known = replace(inbound, event_id=f"{inbound.event_id}@{os.getpid()}")
        return await self.store.accept(known, **options)


MUTANTS = {
    "two transactions": TwoTransactions,
    "separate replies": SeparateReplies,
    "forgets events": ForgetsEvents,
}


async def bot(path, reading, writing, mutant):
    log = os.open(f"{path}.sent", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    acks = trio.lowlevel.FdStream(writing)
    lock = trio.Lock()

    async def acknowledge(event_id):
        async with lock:
            await acks.send_all(f"{event_id}\n".encode())

    async def submit(runtime, number, key, text):
        source = Source("wire", chat_id=key, user_id=key)
        inbound = Inbound(key, f"e{number}", text, source, command=text.startswith("/"))
        if mutant == "early":  # mutant M1: acknowledged before it is on disk
            await acknowledge(inbound.event_id)
        await runtime.submit(inbound)
        await acknowledge(inbound.event_id)

    async with (
        open_store(path) as store,
        open_actors(
            MUTANTS.get(mutant, lambda same: same)(store),
            build=lambda _: Echo(),
            agent_spec=default_spec,
            config=CONFIG,
            compressor=DeterministicCompressor(),
            adapters=[Wire(log)],
        ) as runtime,
        trio.open_nursery() as nursery,
    ):
        buffer = b""
        async for piece in trio.lowlevel.FdStream(reading):
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                nursery.start_soon(submit, runtime, *json.loads(line))


class Echo:
    run = staticmethod(echo)


# The platform


@attrs.define
class Platform:
    """The messages of users, and those that were acknowledged."""

    path: Path
    dice: random.Random
    mutant: str | None
    said: list = attrs.Factory(list)
    acked: set = attrs.Factory(set)
    first_acks: list = attrs.Factory(list)

    def next(self):
        """Return a message: most are new, some are repeated."""
        if self.said and self.dice.random() < 0.1:
            return self.dice.choice(self.said)
        number = len(self.said)
        text = f"{number:06} " + "word " * self.dice.randint(1, 30)
        if self.dice.random() < 0.05:
            text = "/compress"
        self.said.append((number, f"k{self.dice.randrange(KEYS)}", text))
        return self.said[-1]

    def fork(self):
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(ours_out)
            os.close(ours_in)
            random.seed(os.getpid())
            trio.run(bot, self.path, theirs_in, theirs_out, self.mutant)
            os._exit(0)
        os.close(theirs_in)
        os.close(theirs_out)
        return pid, ours_in, ours_out

    def life(self, *, last=False):
        """Run a bot until it is killed; the last one until it has done everything."""
        pid, reading, writing = self.fork()
        begun = time.monotonic()
        unacked = [m for m in self.said if f"e{m[0]}" not in self.acked]
        self.dice.shuffle(unacked)
        sent, heard, death = 0, b"", begun + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            while not last or sent > heard.count(b"\n") or unacked:
                while sent - heard.count(b"\n") < IN_FLIGHT and (unacked or not last):
                    message = unacked.pop() if unacked else self.next()
                    os.write(writing, json.dumps(message).encode() + b"\n")
                    sent += 1
                if not selector.select(max(0.0, death - time.monotonic())):
                    break
                if not heard and not last:
                    self.first_acks.append(time.monotonic() - begun)
                    death = time.monotonic() + self.dice.random() * MOST_SECONDS
                heard += os.read(reading, 65536)
        if not last:
            os.kill(pid, signal.SIGKILL)
        os.close(writing)  # the last bot drains and ends
        while piece := os.read(reading, 65536):
            heard += piece
        os.close(reading)
        os.waitpid(pid, 0)
        self.acked.update(line.decode() for line in heard.split(b"\n")[:-1])


# Violations in the file


def violations(platform):
    """Yield all violations."""
    with SessionStore(platform.path) as store:
        ask = partial(_ask, store)
        inbox = ask("SELECT event_id, id, state FROM inbox")
        states = {event.split("@")[0]: state for event, _, state in inbox}
        order = {event.split("@")[0]: number for event, number, _ in inbox}
        yield from (f"{e} was lost" for e in platform.acked if states.get(e) != "done")
        stored = Counter()
        for (session_id,) in ask("SELECT id FROM sessions"):
            rows = store.get_messages(session_id)
            begun = [row.content[:6] for row in rows if row.role == "user"]
            said = [number for number in begun if number.isdigit()]
            stored.update(set(said))
            if len(said) != len(set(said)):
                yield f"{session_id} says something twice"
            places = [order.get(f"e{int(number)}", 0) for number in said]
            if places != sorted(places):
                yield f"{session_id} is out of order"
        for number, _, text in platform.said:
            if text != "/compress" and f"e{number}" in platform.acked and text[:6] not in stored:
                yield f"{text[:6]} is in no transcript"
        turns = ask("SELECT turn_id, count(*) FROM outbox GROUP BY 1 HAVING count(*) > 1")
        kinds = 'SELECT count(*) FROM outbox WHERE turn_id = ? AND body LIKE \'%"kind":"reply"%\''
        yield from (f"turn {t} has two replies" for t, _ in turns if ask(kinds, t)[0][0] > 1)
        answers = {json.loads(body)["text"] for (body,) in ask("SELECT body FROM outbox")}
        spoken = ask("SELECT DISTINCT content FROM all_messages WHERE role = 'assistant'")
        yield from (f"{text!r} was not sent" for (text,) in spoken if text not in answers)
        for what, sql in VIOLATIONS.items():
            yield from (f"{what}: {row}" for row in ask(sql))
        yield from store.integrity_check()
    yield from sending_violations(platform.path)


def _ask(store, sql, *values):
    return store.snapshot(lambda tx: tx.all(sql, *values))


def sending_violations(path):
    lines = [line.split() for line in Path(f"{path}.sent").read_text().splitlines()]
    seen, newest = set(), {}
    for outbox_id, recovered, lane in lines:
        if outbox_id in seen and recovered != "True":
            yield f"reply {outbox_id} was sent twice and does not say so"
        if outbox_id not in seen and int(outbox_id) < newest.get(lane, 0):
            yield f"reply {outbox_id} was sent too late"
        seen.add(outbox_id)
        newest[lane] = max(newest.get(lane, 0), int(outbox_id))


VIOLATIONS = {
    "not sent": "SELECT id, state FROM outbox WHERE state <> 'sent'",
    "not done": "SELECT id, state FROM inbox WHERE state <> 'done'",
    "a fork": "SELECT parent_no FROM sessions WHERE kind = 'compression' "
    "GROUP BY 1 HAVING count(*) > 1",
    "an end without a child": "SELECT id FROM sessions p WHERE end_reason = 'compression' AND "
    "NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_no = p.no AND c.kind = 'compression')",
    "a route to an ended session": "SELECT r.session_key FROM routes r "
    "JOIN sessions s ON s.id = r.session_id WHERE s.ended_at IS NOT NULL",
    "a boundary": "SELECT id FROM boundaries WHERE closed_at IS NULL",
}


def fill(path, sessions):
    """Create conversations that are not used."""
    with SessionStore(path) as store:
        for number in range(sessions):
            store.create_session(f"old{number}", "wire", session_key=f"old{number}")
            store.append_message(f"old{number}", "user", "hello")
            store.switch(f"old{number}", f"old{number}")


def main(path, kills, seed, mutant=None, sessions=0):
    """Kill the bot this many times, and print the results as JSON."""
    fill(Path(path), sessions)
    platform = Platform(Path(path), random.Random(seed), mutant)
    for _ in range(kills):
        platform.life()
    platform.life(last=True)
    slowest = sorted(platform.first_acks)
    with SessionStore(path) as store:
        rotations = _ask(store, "SELECT count(*) FROM sessions WHERE kind = 'compression'")[0][0]
    report = {
        "said": len(platform.said),
        "acknowledged": len(platform.acked),
        "rotations": rotations,
        "first_ack_p99": slowest[int(len(slowest) * 0.99)] if slowest else 0.0,
        "violations": list(violations(platform))[:20],
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] or None, int(sys.argv[5]))
