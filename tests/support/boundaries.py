"""Sessions that end, and hooks that are called for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

from hermes.config import Config
from hermes.messages import ExpiryPolicy, HookEvent, Source

ROOT = Path(__file__).parents[2]
FINALIZE, RESET, SWITCH = get_args(HookEvent)
HOUR = 3600.0
IDLE = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=60))
"""Conversations end after an hour without a message."""
TELEGRAM = Source("telegram", chat_id="c1", user_id="u1")
ROTATE = """
import sys
from hermes.store import SessionStore
with SessionStore(sys.argv[1]) as store:
    store.end_session(sys.argv[2], "compression")
    store.create_session("child", "elsewhere", parent_session_id=sys.argv[2])
    store.append_message("child", "user", "a summary")
"""


def hooks_of(recorder):
    """Return hooks for all events, all of them recorded."""
    return {event: [recorder.named(event)] for event in get_args(HookEvent)}


def rotate_elsewhere(path, session_id):
    """Compress a session in another process; the child is called "child"."""
    command = [sys.executable, "-c", ROTATE, str(path), session_id]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)


async def talk_at_length(runtime, key="k"):
    """Say enough for a compression to be worth it. Returns the session id."""
    for n in range(4):
        reply = await runtime.ask(key, f"{n} " + "many words " * 300)
    return reply.session_id


async def compress(runtime, key="k"):
    """Compress a conversation. Returns the id of the child."""
    change = await runtime.conversation(key).compress(keep_exchanges=1)
    assert change.changed, change.detail
    return change.session_id
