"""Scripted conversations, and what they left in the store."""

from __future__ import annotations

import trio

from hermes.errors import HermesError
from hermes.events import TextDelta, TurnEnded
from hermes.messages import TurnResult
from hermes.testing import ScriptedAgent, inspect, texts_of

VIRTUAL_SECONDS = 2_000.0
"""How long a test with a virtual clock waits before it fails."""


def scripted(*entries):
    """Return a scripted agent and a builder for it."""
    agent = ScriptedAgent(script=entries)
    return agent, lambda _: agent


async def session_titles(store):
    """Return the titles of all sessions by id, oldest first."""
    return dict(await store.snapshot(lambda tx: tx.all("SELECT id, title FROM sessions")))


async def outbox_texts(store, turn_id):
    """Return the texts in the outbox for a turn."""
    sql = "SELECT body ->> '$.text' FROM outbox WHERE turn_id = ? ORDER BY id"
    return [row[0] for row in await store.snapshot(lambda tx: tx.all(sql, turn_id))]


async def history(runtime, key="k"):
    """Return role and text of each stored message of a conversation."""
    return texts_of(await runtime.conversation(key).history(include_waiting=False))


async def wait_ended(events, number):
    """Wait until this many turns have ended."""
    async for envelope in events:
        number -= isinstance(envelope.event, TurnEnded)
        if not number:
            return


async def reply_or_error(ask):
    """Call an async function; return its result or the `HermesError` that it raises."""
    try:
        return await ask()
    except HermesError as error:
        return error


async def release_transcripts(runtime):
    """Have all transcripts released, by one that takes more than 50,000 bytes."""
    await runtime.ask("large", "x" * 50_000)
    await inspect(runtime).wait_idle("large")


class GatedAgent(ScriptedAgent):
    """An agent that sets `began` when a turn starts, and waits in each turn for the gate."""

    def __init__(self, gate=None):
        super().__init__()
        self.gate = trio.Event() if gate is None else gate
        self.began = trio.Event()

    async def run(self, turn):
        self.turns.append(turn)
        self.began.set()
        turn.emit(TextDelta("half"))
        await self.gate.wait()
        return TurnResult(text=f"echo: {turn.text}")
