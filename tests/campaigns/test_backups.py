"""C8: backups are complete while several processes write, and open as a store."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import apsw
import pytest
import trio

from hermes.errors import StoreRefused
from hermes.messages import Message
from hermes.store import SessionStore, open_store
from tests.campaigns.backup_writers import ROWS, until_stored, writing
from tests.support.processes import foreign

ROOT = Path(__file__).parents[2]


def check(path, acknowledged):
    """Check that the turns of each writer are complete and in order, without a gap."""
    with SessionStore(path) as store:
        assert store.integrity_check() == []
        for writer, least in enumerate(acknowledged):
            route = store.get_route(f"writer {writer}")
            turns = defaultdict(list)
            # A writer that has not finished its first turn has a route but no session.
            begun = route is not None and store.get_session(route.session_id) is not None
            for message in store.get_messages(route.session_id) if begun else []:
                number, part, _ = message.content.split()
                turns[int(number)].append(int(part))
            assert list(turns) == list(range(len(turns)))
            assert len(turns) >= least
            assert all(parts == list(range(ROWS)) for parts in turns.values())
        assert store.check_search() is None


# Under load


def test_backups_under_load_are_complete(tmp_path, prove, campaign):
    """Several rounds, each with a new file: a check reads all of it, and it grows fast."""
    for number in range(12 if prove else 1):
        folder = tmp_path / f"round{number}"
        folder.mkdir()
        back_up_under_load(folder, 8)
        campaign.count(backups=8)
        shutil.rmtree(folder)


def back_up_under_load(folder, backups):
    path = folder / "state.db"
    slowest = 0.0
    with writing(path, folder) as writers, SessionStore(path) as store:
        writers.wait_for(5)
        for number in range(backups):
            before = writers.acknowledged()
            began = time.monotonic()
            target = store.backup(folder / f"copy{number}.db")
            slowest = max(slowest, time.monotonic() - began)
            assert foreign_check(target) == "ok"
            check(target, before)
            target.unlink()
            writers.wait_for(1)
        said = writers.stop()
    check(path, [writer["turns"] for writer in said])
    report(backups, slowest, said)


def foreign_check(target):
    """Return the result of SQLite's own check, before our code opens the copy."""
    return foreign(target, "PRAGMA integrity_check")[0][0]


def report(backups, slowest, said):
    turns = sum(writer["turns"] for writer in said)
    worst = max(writer["worst"] for writer in said)
    sys.stdout.write(
        f"\n{backups} backups, the slowest {slowest * 1000:.0f} ms, beside {turns} turns of "
        f"{len(said)} processes; worst turn {worst * 1000:.0f} ms, "
        f"{sum(writer['busy'] for writer in said)} times busy\n"
    )


def test_backups_of_the_actor_under_load_are_complete(path, tmp_path, prove, campaign):
    """Other processes and tasks of this one write meanwhile; the tasks do not wait for the copy."""
    backups = 10 if prove else 3
    campaign.count(backups=backups)

    async def append_for_ever(store, acknowledged, who):
        await store.create_session(f"task {who}")
        while True:
            await store.append_messages(
                f"task {who}", [Message("user", f"{acknowledged[who]} {p}") for p in range(ROWS)]
            )
            acknowledged[who] += 1

    async def main(writers):
        own = [0] * 5
        async with open_store(path) as store, trio.open_nursery() as nursery:
            for who in range(len(own)):
                nursery.start_soon(append_for_ever, store, own, who)
            for number in range(backups):
                for _ in range(5):  # commits that are shared with the tasks
                    await store.ensure_session("pace")
                before, tasks = writers.acknowledged(), list(own)
                target = await store.backup(tmp_path / f"copy{number}.db")
                await trio.to_thread.run_sync(check, target, before)
                await trio.to_thread.run_sync(check_tasks, target, tasks)
            nursery.cancel_scope.cancel()

    with writing(path, tmp_path, 1) as writers:
        writers.wait_for(3)
        trio.run(main, writers)
        said = writers.stop()
    check(path, [writer["turns"] for writer in said])


def check_tasks(path, acknowledged):
    with SessionStore(path) as store:
        for who, least in enumerate(acknowledged):
            texts = [m.content for m in store.get_messages(f"task {who}")]
            assert len(texts) % ROWS == 0
            assert len(texts) >= least * ROWS
            assert texts == [f"{n // ROWS} {n % ROWS}" for n in range(len(texts))]


def test_a_vacuum_under_load_keeps_everything(path, tmp_path, prove):
    with writing(path, tmp_path) as writers, SessionStore(path) as store:
        for _ in range(20 if prove else 3):
            writers.wait_for(5)
            until_stored(lambda _: store.vacuum(), None)
        said = writers.stop()
        assert store.integrity_check() == []
    check(path, [writer["turns"] for writer in said])
    report(0, 0, said)


@pytest.mark.mutant
def test_the_harness_detects_a_partial_turn_and_a_lost_turn(path, tmp_path):
    """Mutants: a copy without a row, and a copy without an acknowledged turn."""
    with writing(path, tmp_path, 1) as writers:
        writers.wait_for(5)
        (said,) = writers.stop()
    check(path, [said["turns"]])
    with pytest.raises(AssertionError):
        check(path, [said["turns"] + 1])
    with SessionStore(path) as store:
        session_id = store.get_route("writer 0").session_id
        store.rewind(session_id, store.get_messages(session_id)[-1].id)
    with pytest.raises(AssertionError):
        check(path, [0])


# One backup


@pytest.fixture
def stored(path):
    with SessionStore(path) as store:
        store.create_session("s")
        store.append_messages("s", [Message("user", f"{n} " + "x" * 2000) for n in range(2000)])
        yield store


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_backup_is_private_and_needs_no_other_file(stored, tmp_path, umask):
    before = os.umask(umask)
    try:
        target = stored.backup(tmp_path / "copy.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.glob("copy*")] == ["copy.db"]
    assert foreign(target, "PRAGMA journal_mode") == [["delete"]]


def test_an_existing_target_is_refused_and_not_changed(stored, tmp_path):
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(StoreRefused) as caught:
        stored.backup(target)
    assert str(target) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert target.read_text() == "precious"
    with pytest.raises(StoreRefused):
        stored.backup(stored.path)
    assert stored.integrity_check() == []


def test_a_target_in_a_missing_folder_is_refused(stored, tmp_path):
    with pytest.raises(StoreRefused) as caught:
        stored.backup(tmp_path / "none" / "copy.db")
    assert str(tmp_path / "none") in str(caught.value)


def test_a_backup_is_restored_by_moving_it_into_place(stored, path, tmp_path):
    target = stored.backup(tmp_path / "copy.db")
    stored.append_message("s", "user", "lost by the restore")
    stored.close()
    target.replace(path)
    with SessionStore(path) as store:
        assert len(store.get_messages("s")) == 2000
        store.append_message("s", "user", "and on")
        assert store.integrity_check() == []


KILLED = """
import os, signal, sys
import apsw
from hermes.store import SessionStore

left = int(sys.argv[3])

class Dying(apsw.VFS):
    def __init__(self):
        super().__init__("dying", "unix")
    def xOpen(self, name, flags):
        return File(name, flags)

class File(apsw.VFSFile):
    def __init__(self, name, flags):
        self.copy = not isinstance(name, str) and "copy" in name.filename()
        super().__init__("unix", name, flags)
    def xWrite(self, data, offset):
        global left
        if self.copy:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        super().xWrite(data, offset)

dying = Dying()
apsw.set_default_vfs("dying")
SessionStore(sys.argv[1]).backup(sys.argv[2])
print(int(sys.argv[3]) - left)
"""


def test_a_kill_in_the_middle_of_a_backup_leaves_no_copy(stored, path, tmp_path, prove):
    def attempt(write):
        command = [sys.executable, "-c", KILLED, str(path), str(tmp_path / "copy.db"), str(write)]
        return subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60
        )

    done = attempt(10**9)
    assert done.returncode == 0, done.stderr
    writes = int(done.stdout)
    assert writes > 100
    (tmp_path / "copy.db").unlink()
    for write in range(1, writes, writes // (100 if prove else 8)):
        assert attempt(write).returncode == -signal.SIGKILL
        assert not (tmp_path / "copy.db").exists()
    assert attempt(writes).returncode == -signal.SIGKILL
    stored.append_message("s", "user", "and on")  # the store itself is not affected
    target = stored.backup(tmp_path / "copy.db")
    assert [file.name for file in tmp_path.glob("copy*")] == ["copy.db"]
    with SessionStore(target) as copy:
        assert len(copy.get_messages("s")) == 2001


def test_files_of_an_earlier_partial_backup_do_not_get_into_the_copy(stored, tmp_path):
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("PRAGMA journal_mode = WAL").fetchall()
    other.execute("CREATE TABLE stale (x)")
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(tmp_path / f"other.db{suffix}", tmp_path / f"copy.db.partial{suffix}")
    (tmp_path / "copy.db.partial-journal").write_bytes(b"garbage")
    other.close()
    target = stored.backup(tmp_path / "copy.db")
    assert [file.name for file in tmp_path.glob("copy*")] == ["copy.db"]
    with SessionStore(target) as copy:
        assert copy.integrity_check() == []
        assert len(copy.get_messages("s")) == len(stored.get_messages("s"))


def test_a_backup_can_be_read_with_plain_sqlite(stored, tmp_path):
    """Conversations can be read without Hermes."""
    target = stored.backup(tmp_path / "copy.db")
    db = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READONLY)
    assert db.pragma("integrity_check") == "ok"
    assert db.execute("SELECT message_count FROM sessions").fetchall() == [(2000,)]
    db.close()
