"""Sessions of a JSON-RPC client, and the agents behind them."""

from __future__ import annotations

import pytest
import trio

from hermes.context import set_current_session_id
from hermes.events import TextDelta
from hermes.store import SessionStore
from hermes.testing import ScriptedAgent
from tests.support.jsonrpc_client import Problem

LONG = " ".join(["a long message that makes the conversation grow"] * 40)


def scripted(*entries):
    """A builder of one `ScriptedAgent`."""
    agent = ScriptedAgent(script=entries)
    return lambda _: agent


class Gate:
    """A step of a script that waits until the test opens it."""

    def __init__(self):
        self.reached, self.open = trio.Event(), trio.Event()

    async def __call__(self, turn):
        self.reached.set()
        await self.open.wait()


def rotating(new):
    """Steps of an agent that compresses its session by itself during the turn."""

    async def rotate(_):
        set_current_session_id(new)

    return [rotate, TextDelta("on"), "on"]


async def new_session(client, text="hello", **params):
    """Create a session with one answered message; returns its handle."""
    handle = (await client.call("session.create", **params))["session_id"]
    await client.call("prompt.submit", session_id=handle, text=text)
    await client.event("message.complete", handle)
    return handle


async def long_session(client, exchanges=6):
    """Create a session with several long messages; returns its handle."""
    handle = await new_session(client, LONG)
    for _ in range(exchanges - 1):
        await client.call("prompt.submit", session_id=handle, text=LONG)
        await client.event("message.complete", handle)
    return handle


async def stored_id(client, handle):
    return (await client.call("session.resume", session_id=handle))["stored_session_id"]


async def error_code(client, method, /, **params):
    """Call a method that fails; returns the code of its error."""
    with pytest.raises(Problem) as problem:
        await client.call(method, **params)
    return problem.value.code


async def transcript(client, handle):
    """The texts of a session."""
    rows = (await client.call("session.history", session_id=handle))["messages"]
    return [row["text"] for row in rows]


def stored_sessions(path):
    with SessionStore(path) as store:
        return {each.session.id: each.session for each in store.list_sessions(limit=1000)}
