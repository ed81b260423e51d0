"""Conversations that are compressed.

A conversation is ten exchanges of about fifty tokens in a window of a thousand, of which five
hundred may be used: the eleventh message is one too many. Other processes are real ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from msgspec.structs import asdict

from hermes.config import CompressionConfig
from hermes.context import current_session_id
from hermes.messages import (
    TurnResult,
)
from hermes.protocols import Summary
from hermes.store import SessionStore
from hermes.testing import texts_of
from hermes.transcript.tokens import estimate_tokens

ROOT = Path(__file__).parents[2]
SMALL = CompressionConfig(window=1000, max_output=0, share=0.5, tail_share=0.2, protect_first=0)
FULL = 10
"""Exchanges that fit; before the next one the conversation is compressed."""
OVER = 500
"""Tokens from which on a conversation is compressed."""
SUMMARY = "what was said before"


def question(number):
    """Return a message of 80 characters, about 24 tokens."""
    return f"question {number:03} ".ljust(80, "x")


def numbers(texts):
    """Return the numbers of the questions among these texts."""
    return [int(text[9:12]) for text in texts if text and text.startswith("question ")]


class Gate:
    """A step that waits until the gate is opened."""

    def __init__(self):
        self.begun = trio.Event()
        self.go = trio.Event()

    async def __call__(self, *_):
        self.begun.set()
        await self.go.wait()

    async def reached(self):
        """Wait until a task waits at the gate."""
        with trio.fail_after(20):
            await self.begun.wait()


class ScriptedCompressor:
    """A compressor that runs an async function, or returns a short summary."""

    def __init__(self, then=None):
        self.then = then
        self.requests = []
        self.together = 0
        self.most_together = 0

    async def summarize(self, request, /):
        self.requests.append(request)
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        try:
            await trio.lowlevel.checkpoint()
            said = None if self.then is None else await self.then(request)
        finally:
            self.together -= 1
        return said if isinstance(said, Summary) else Summary(said or SUMMARY)

    def __len__(self):
        return len(self.requests)


class RecordingAgent:
    """An agent that records what it is shown, and answers from a script or with an echo."""

    def __init__(self, *script):
        self.script = list(script)
        self.turn_ids = []
        self.asked = []
        self.shown = []
        self.sizes = []
        self.sessions = []
        self.closed = 0

    async def run(self, turn, /):
        await trio.lowlevel.checkpoint()
        self.turn_ids.append(turn.turn_id)
        self.asked.append(turn.text)
        self.shown.append(texts_of(turn.history))
        self.sizes.append(estimate_tokens([*turn.history, *turn.input]))
        self.sessions.append((turn.session_id, current_session_id()))
        step = self.script.pop(0) if self.script else None
        if callable(step):
            step = await step(turn)
        if isinstance(step, BaseException):
            raise step
        return step or TurnResult(text=f"echo: {turn.text}")

    async def aclose(self):
        await trio.lowlevel.checkpoint()
        self.closed += 1


def failing(error):
    """Return a compressor step that raises."""

    async def then(_):
        raise error

    return then


async def never(_):
    """A compressor step that does not end."""
    await trio.sleep_forever()


async def at_length(request):
    """Return a summary that is longer than the messages."""
    return "and so on " * sum(len(message.content or "") for message in request.messages)


async def talk(runtime, count=FULL, *, key="k", first=0):
    """Send questions and return the replies."""
    return [await runtime.ask(key, question(n)) for n in range(first, first + count)]


async def collect(answers, verb, *args, **options):
    """Call a verb and append its result."""
    answers.append(await verb(*args, **options))


@asynccontextmanager
async def during_compression(gate, verb, *args):
    """Run a block in the middle of the compression that a verb causes; yields its results."""
    answers = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, answers, verb, *args)
        await gate.reached()
        yield answers
        gate.go.set()


async def next_event(events, kind):
    """Return the next event of this kind."""
    with trio.fail_after(20):
        async for envelope in events:
            if isinstance(envelope.event, kind):
                return envelope.event
    raise AssertionError(f"there was no {kind.__name__}")


# The contents of the file


def problems(path):
    """Return what is wrong with the file: forks, orphans, leases, routes to ended sessions."""
    with SessionStore(path) as store:
        return [
            *_find(store, "a fork", "SELECT parent_no, count(*) FROM sessions "
                    "WHERE kind = 'compression' GROUP BY parent_no HAVING count(*) > 1"),
            *_find(store, "an end without a child", "SELECT id FROM sessions p "
                    "WHERE end_reason = 'compression' AND NOT EXISTS (SELECT 1 FROM sessions c "
                    "WHERE c.parent_no = p.no AND c.kind = 'compression')"),
            *_find(store, "a child of a living parent", "SELECT c.id FROM sessions c "
                    "JOIN sessions p ON p.no = c.parent_no WHERE c.kind = 'compression' "
                    "AND p.end_reason IS DISTINCT FROM 'compression'"),
            *_find(store, "a route to a past", "SELECT r.session_key FROM routes r "
                    "JOIN sessions s ON s.id = r.session_id WHERE s.end_reason = 'compression'"),
            *_find(store, "a lease", "SELECT holder FROM leases WHERE holder IS NOT NULL"),
            *_find(store, "an open message", "SELECT id FROM inbox WHERE state <> 'done'"),
            *store.integrity_check(),
        ]  # fmt: skip


def _find(store, what, sql):
    return [f"{what}: {row}" for row in store.snapshot(lambda tx: tx.all(sql))]


def lineage(path, key="k"):
    """Return the sessions of a conversation, from the first to the current one."""
    with SessionStore(path) as store:
        return store.get_compression_lineage(store.get_route(key).session_id)


def rows_in(path, session_id):
    """Return the rows of a session."""
    with SessionStore(path) as store:
        return store.get_messages(session_id)


def contents(path, session_id):
    """Return the texts of a session."""
    return [row.content for row in rows_in(path, session_id)]


def sent_to_users(path):
    """Return kind and text of all messages to users, in order."""
    with SessionStore(path) as store:
        found = store.snapshot(lambda tx: tx.all("SELECT body FROM outbox ORDER BY id"))
    bodies = [json.loads(row[0]) for row in found]
    return [(body["kind"], body["text"]) for body in bodies]


def same(left, right):
    """Whether rows are equal, except for their ids."""
    return [_without_id(row) for row in left] == [_without_id(row) for row in right]


def _without_id(row):
    return {name: value for name, value in asdict(row).items() if name != "id"}


# Other processes


def elsewhere(path, world, code, **given):
    """Run code on a `SessionStore` of the same file, in another process with the same clock.

    Returns what the code assigns to `answer`.
    """
    program = (
        "import json, sys\n"
        "from hermes.messages import *\n"
        "from hermes.store import Clock, SessionStore\n"
        "path, now, steady, given = json.loads(sys.argv[1])\n"
        "globals().update(given)\n"
        "answer = None\n"
        "clock = Clock(wall=lambda: now, steady=lambda: steady)\n"
        "with SessionStore(path, clock=clock) as store:\n"
        + textwrap.indent(textwrap.dedent(code).strip(), "    ")
        + "\nprint(json.dumps(answer))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([str(path), world.now, world.steady, given])],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KEEP_TAIL = """
rows = store.get_messages(session_id)[-3:]
tail = [Message(row.role, row.content, row.timestamp) for row in rows]
"""
ROTATE = """
tail = globals().get("tail", [])
transcript = store.load(session_id)
route = store.get_route(key) if key else None
rotated = store.rotate(Rotation(
    session_id=session_id,
    messages=[Message("user", "the summary of another"), *tail],
    rotation_id="elsewhere",
    rewrites=transcript.head.rewrites,
    upto=transcript.messages[-1].id,
    session_key=key,
    epoch=route and route.epoch,
))
answer = rotated.session_id
"""
HOLD = "answer = store.try_acquire_compression_lock(session_id, 'elsewhere', seconds)"
DROP_LEASES = "store.transact(lambda tx: tx.run('DROP TABLE leases'))"
