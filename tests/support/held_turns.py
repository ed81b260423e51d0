"""Turns that run until a test releases them, and messages that arrive meanwhile."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager

import trio

from hermes.errors import HermesError
from hermes.messages import TurnResult
from hermes.testing import inspect, texts_of
from tests.support.runtime import SECONDS


class HeldAgent:
    """An agent that holds each turn until the test releases it.

    `turn0=step` runs an async function instead, in the first turn, and returns its text or result.
    """

    def __init__(self, **steps):
        self.turns = []
        self.steps = {int(name.removeprefix("turn")): step for name, step in steps.items()}
        self._started = trio.Event()
        self._releases = {}

    def _release_of(self, number):
        return self._releases.setdefault(number, trio.Event())

    async def run(self, turn):
        number = len(self.turns)
        self.turns.append(turn)
        self._started.set()
        step = self.steps.get(number)
        if step is not None:
            answer = await step(turn)
            return answer if isinstance(answer, TurnResult) else TurnResult(text=answer)
        await self._release_of(number).wait()
        return TurnResult(text=f"answer {number}")

    async def wait_started(self, number=0):
        """Wait until the turn with this number has started, and return it."""
        while len(self.turns) <= number:
            self._started = trio.Event()
            await self._started.wait()
        return self.turns[number]

    def release(self, *numbers):
        """Let turns end, by number; by default the current one."""
        for number in numbers or [len(self.turns) - 1]:
            self._release_of(number).set()

    def inputs(self):
        """The texts of the messages of each turn."""
        return [[message.content for message in turn.input] for turn in self.turns]


class PendingReply:
    """A call of `ask` in another task."""

    def __init__(self):
        self._done = trio.Event()
        self.reply = self.error = None

    async def run(self, ask):
        try:
            self.reply = await ask()
        except HermesError as error:
            self.error = error
        self._done.set()

    @property
    def done(self):
        return self._done.is_set()

    async def wait(self):
        """Return the reply, or raise what `ask` raised."""
        await self._done.wait()
        if self.error is not None:
            raise self.error
        return self.reply


class HeldRuntime:
    """A runtime, its agent, and a nursery for messages that nobody waits for."""

    def __init__(self, runtime, agent, nursery):
        self.runtime, self.agent, self.nursery = runtime, agent, nursery
        self.store = inspect(runtime).store

    async def send(self, text, key="k", **options):
        """Ask in another task; returns when the message is on disk and delivered."""
        before, pending = await self._accepted(), PendingReply()
        ask = functools.partial(self.runtime.ask, key, text, **options)
        self.nursery.start_soon(pending.run, ask)
        while await self._accepted() == before and not pending.done:
            pass
        await self.settle()
        return pending

    async def _accepted(self):
        return await self.store.snapshot(lambda tx: tx.one("SELECT count(*) FROM inbox")[0])

    async def settle(self):
        """Wait until everything that was committed before has been delivered."""
        await self.store.transact(lambda tx: None)

    async def history(self, key="k"):
        """Role and text of each stored message of a conversation."""
        return texts_of(await self.runtime.conversation(key).history(include_waiting=False))

    async def inbox(self):
        """Id, state and number of attempts of each inbox row."""
        return await self.store.snapshot(
            lambda tx: tx.all("SELECT id, state, attempts FROM inbox ORDER BY id")
        )


@asynccontextmanager
async def held_runtime(start, agent=None, **options):
    """Open a runtime with a `HeldAgent` that all conversations share."""
    agent = HeldAgent() if agent is None else agent
    with trio.fail_after(SECONDS):
        async with (
            start(build_agent=lambda _: agent, **options) as runtime,
            trio.open_nursery() as nursery,
        ):
            yield HeldRuntime(runtime, agent, nursery)
