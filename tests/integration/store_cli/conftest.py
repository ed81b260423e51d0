"""Fixtures: databases for the admin commands."""

from __future__ import annotations

import subprocess
import sys

import apsw
import pytest

from hermes.messages import Message, ToolCall
from hermes.store import Clock, Rotation, SessionStore
from hermes.store.sqlite.schema import APPLICATION_ID, MIGRATIONS
from tests.support.store_cli import DAY, HOSTILE, NOW


@pytest.fixture
def filled(path):
    """A file with a compressed conversation, a hostile one, and one that ended long ago."""
    with SessionStore(path, clock=Clock(wall=lambda: NOW)) as store:
        store.create_session("talk", "telegram", model="big", session_key="k1", system_prompt="Hm")
        call = ToolCall("1", "clock", '{"zone": "UTC"}')
        store.append_messages(
            "talk",
            [
                Message("user", "What time is it?"),
                Message("assistant", tool_calls=(call,)),
                Message("tool", "12:00", tool_call_id="1", tool_name="clock"),
                Message("assistant", "Noon.\nOr so."),
                Message("user", "a slip"),
            ],
        )
        store.rewind("talk", store.get_messages("talk")[-1].id)
        store.set_session_title("talk", "The time")
        rotation = Rotation(
            session_id="talk",
            messages=[Message("user", "It was about noon.")],
            rotation_id="r",
            rewrites=store.head("talk").rewrites,
            upto=store.get_messages("talk")[-1].id,
            child_session_id="talk-2",
        )
        store.rotate(rotation)
        store.create_session("evil", "cli")
        store.append_message("evil", "user", f"{HOSTILE}\nsecond line")
    with SessionStore(path, clock=Clock(wall=lambda: NOW - 200 * DAY)) as store:
        store.create_session("old", "cli")
        store.append_message("old", "user", "long ago")
        store.end_session("old", "closed")
    return path


@pytest.fixture
def runtime(filled):
    """Another process that owns the file, as a bot does; its `pid` is in error messages."""
    code = (
        "import sys, trio\nfrom hermes.store import open_store\n"
        "async def main():\n"
        "    async with open_store(sys.argv[1]):\n"
        "        print('ready', flush=True)\n"
        "        await trio.to_thread.run_sync(sys.stdin.read)\n"
        "trio.run(main)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(filled)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.fixture
def older(path):
    """A file with the schema before the current one."""
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = wal").fetchall()
    db.create_scalar_function("hermes_words", lambda text: text, 1, flags=apsw.SQLITE_DETERMINISTIC)
    db.create_scalar_function("hermes_tools", lambda text: text, 1, flags=apsw.SQLITE_DETERMINISTIC)
    for script in MIGRATIONS[:-1]:
        db.execute(script).fetchall()
    db.execute(
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {len(MIGRATIONS) - 1}"
    )
    db.close()
    return path
