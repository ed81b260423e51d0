"""Replies on their way to a platform that has trouble."""

from __future__ import annotations

import itertools

import trio

from hermes import Inbound, Source
from hermes.messages import TurnCommit
from hermes.store import SessionStore
from hermes.testing import MemoryAdapter, ScriptedAgent
from tests.support.killed_programs import table_rows

CHAT = Source("memory", chat_id="c")
LONG = "first line\nsecond line\nthird line\nfourth line"
PARTS = ["first line", "second line", "third line", "fourth line"]
"""The messages that `LONG` is sent in if a platform takes 15 characters."""


def saying(*texts):
    """Return a builder for an agent with these replies."""
    agent = ScriptedAgent(texts)
    return lambda _: agent


def outbox(path, columns="state"):
    """Return columns of the outbox; without tuples if it is only one."""
    found = table_rows(path, columns, "outbox")
    return [row[0] for row in found] if "," not in columns else found


def leave_replies(path, *outbound):
    """Store replies that are not sent yet."""
    with SessionStore(path) as store:
        accepted = store.accept(Inbound("seed", "e", "one")).receipt
        store.commit_turn(
            TurnCommit(
                session_key="seed",
                session_id=accepted.session_id,
                epoch=accepted.epoch,
                revision=0,
                inbox_ids=[accepted.inbox_id],
                outbox=outbound,
            )
        )


class TimedAdapter(MemoryAdapter):
    """A platform that records when it was called."""

    def __init__(self, **options):
        super().__init__(**options)
        self.times = []

    async def send(self, row):
        self.times.append(trio.current_time())
        await super().send(row)

    @property
    def pauses(self):
        """The seconds between the calls."""
        return [later - earlier for earlier, later in itertools.pairwise(self.times)]


class GatedAdapter(MemoryAdapter):
    """A platform that takes nothing before its gate is opened; `sending` is set when asked to."""

    def __init__(self, **options):
        super().__init__(**options)
        self.gate = trio.Event()
        self.sending = trio.Event()

    async def send(self, row):
        self.sending.set()
        await self.gate.wait()
        await super().send(row)
