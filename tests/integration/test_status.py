"""`--status` reports on a bot from another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from hermes.errors import StoreInUse
from hermes.messages import Inbound
from hermes.run import status
from hermes.store import SessionStore
from hermes.store.sqlite import runtime_lock

BOT = """
import sys, trio
from pathlib import Path
from hermes import open_runtime
from hermes.run.telemetry import Telemetry

async def reply(turn):
    return "fine"

async def main():
    path = Path(sys.argv[1])
    telemetry = Telemetry(path=path, log_event=lambda *_, **__: None, interval=0.05)
    async with telemetry.observe(open_runtime(path, agent=reply)) as runtime:
        await runtime.ask("k", "hello")
        await telemetry.write_files(runtime)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)

trio.run(main)
"""


@pytest.fixture
def bot(path):
    """A bot on the database of the test that has answered once; it ends with its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", BOT, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.stdin.close()
    process.wait(30)
    process.stdout.close()


def files_of(path):
    return {each.name: each.read_bytes() for each in path.parent.iterdir()}


def test_a_running_bot_is_reported_from_another_process(bot, path):
    text, code = status.report(path)
    assert code == 0
    assert text.startswith(f"Hermes is running on {path} (pid {bot.pid}).\n")
    assert "turns     1 complete; 0 running" in text
    assert "reused 0, built 1 cold" in text
    assert "inbox     0 waiting; 0 set aside within a day" in text
    found = json.loads(status.report(path, "json")[0])
    assert (found["running"], found["code"], found["problems"]) == (True, 0, [])
    assert found["metrics"]["turns"] == {"complete": 1}
    assert found["metrics"]["pid"] == bot.pid
    assert found["age_seconds"] < 60
    assert found["store"]["inbox_open"] == 0


def test_a_bot_that_has_shut_down_is_reported_and_nothing_is_changed(bot, path):
    bot.stdin.close()
    bot.wait(30)
    before = files_of(path)
    text, code = status.report(path)
    assert code == 1
    assert text.startswith(f"Hermes is not running on {path}.\ninbox     0 waiting")
    assert files_of(path) == before
    assert not status.status_path(path).exists()


def test_a_bot_that_was_killed_is_reported_as_not_running(bot, path):
    bot.send_signal(signal.SIGKILL)
    bot.wait(30)
    before = files_of(path)
    text, code = status.report(path)
    assert code == 1
    assert f"Hermes is not running on {path}." in text
    assert "did not shut down properly" in text
    assert "turns     1 complete" in text
    assert files_of(path).keys() == before.keys()
    assert files_of(path)["state.db"] == before["state.db"]
    assert files_of(path)["state.db-wal"] == before["state.db-wal"]


def test_reading_the_status_never_prevents_a_start(path):
    with SessionStore(path):
        pass
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from hermes.run import status\n"
            "print('ready', flush=True)\n"
            "while True: status.runtime_lock.owner(status.Path(sys.argv[1]))",
            str(path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout.readline() == "ready\n"
        for _ in range(300):
            runtime_lock.RuntimeLock(path).close()
    finally:
        reader.kill()
        reader.wait(30)
        reader.stdout.close()


def test_a_second_runtime_is_still_refused_and_its_owner_named(path):
    lock = runtime_lock.RuntimeLock(path)
    try:
        assert runtime_lock.owner(path) == f"pid {os.getpid()}"
        with pytest.raises(StoreInUse):
            runtime_lock.RuntimeLock(path)
    finally:
        lock.close()
    assert runtime_lock.owner(path) is None


def test_a_bot_that_hangs_is_reported(bot, path):
    bot.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, bot.pid, os.WSTOPPED)  # none of its threads writes any more
    try:
        file = status.status_path(path)
        metrics = replace(status.read(file), written_at=time.time() - 100)
        status.write(file, status.encode(metrics))
        text, code = status.report(path)
    finally:
        bot.send_signal(signal.SIGCONT)
    assert code == 1
    assert "It has not written its status for 100 seconds" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no status file."),
        (b"", "The status file is damaged; a running bot rewrites it."),
        (b"\xff\xfe{", "The status file is damaged; a running bot rewrites it."),
        (b'{"format": 1}', "The status file is damaged; a running bot rewrites it."),
        (b"[" * 100_000, "The status file is damaged; a running bot rewrites it."),
        (b'{"format": 2, "x": 1}', "The status file is from a newer Hermes; update this one."),
    ],
)
def test_an_unreadable_status_file_is_one_sentence(path, content, message):
    with SessionStore(path):
        pass
    if content is not None:
        status.status_path(path).write_bytes(content)
    lock = runtime_lock.RuntimeLock(path)  # a runtime without a status file
    try:
        text, code = status.report(path)
    finally:
        lock.close()
    assert code == 0
    assert text.splitlines()[0].startswith(message)
    assert "inbox     0 waiting" in text


def test_before_the_first_start_no_bot_is_running(path):
    for file in (path, path.parent / "nowhere" / "x.db"):
        text, code = status.report(file)
        assert (text, code) == (f"Hermes is not running on {file}, which does not exist yet.", 1)
    assert json.loads(status.report(path, "json")[0])["problems"] == []


def test_a_database_that_cannot_be_read_is_one_sentence(path, sql):
    path.write_bytes(b"no database at all" * 100)
    text, code = status.report(path)
    assert (code, text.count("\n")) == (3, 0)
    assert "not an SQLite file" in text
    path.unlink()
    with SessionStore(path):
        pass
    sql("PRAGMA user_version = 999")
    text, code = status.report(path)
    assert (code, text.count("\n")) == (3, 0)
    assert "newer Hermes" in text
    assert json.loads(status.report(path, "json")[0])["code"] == 3


def test_waiting_messages_are_read_from_the_database(path):
    with SessionStore(path) as store:
        for number in range(3):
            store.accept(Inbound("k", f"e{number}", "hello"))
        store.park_inbox([1], "begun too often")
        store.new_session("k")
        facts = store.facts()
        assert (facts.inbox_open, facts.hooks_open) == (2, len(store.pending_boundaries()))
    text, code = status.report(path)
    assert code == 1
    assert "inbox     2 waiting, the oldest for 0 seconds; 1 set aside within a day" in text
