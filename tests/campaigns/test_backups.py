"""C8: backups while several processes write at full speed: each is whole, and opens as a store."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import apsw
import pytest
import trio

from hermes.errors import StoreBusy, StoreRefused
from hermes.messages import Committed, Inbound, Message, TurnCommit
from hermes.store import SessionStore, open_store
from tests.conftest import foreign

ROOT = Path(__file__).parents[2]
ROWS = 4
"""Rows of a turn: a backup has all of them or none."""
WRITERS = 3


# Writers


def one_turn(writer, number, head, epoch):
    """The number-th message of a writer and the turn that answers it."""
    key = f"writer {writer}"
    rows = [Message("user", f"{number} {part} " + "x" * 200) for part in range(ROWS)]
    return Inbound(key, f"{writer} {number}", "go"), lambda receipt: TurnCommit(
        session_key=key,
        session_id=receipt.session_id,
        epoch=receipt.epoch if epoch is None else epoch,
        revision=0 if head is None else head.revision,
        inbox_ids=[receipt.inbox_id],
        rows=rows,
    )


def until_stored(verb, request):
    """Send the request again while others hold the file; says how often, with the answer."""
    for busy in itertools.count():
        with contextlib.suppress(StoreBusy):
            return busy, verb(request)
    raise AssertionError


def write():
    """The main program of a writer: turn after turn, the last one on disk always in a counter."""
    path, counter, writer = sys.argv[1:]
    with SessionStore(path) as store, Path(counter).open("r+b") as file:
        acknowledged = mmap.mmap(file.fileno(), 0)
        go_on = bytes(8)  # and not what is read first: a late writer would miss the end
        number, worst, busy, head, epoch = 0, 0.0, 0, None, None
        while acknowledged[:8] == go_on:
            began = time.monotonic()
            inbound, turn = one_turn(writer, number, head, epoch)
            once, accepted = until_stored(store.accept, inbound)
            twice, done = until_stored(store.commit_turn, turn(accepted.receipt))
            assert isinstance(done, Committed)
            busy += once + twice
            head, epoch = done.head, done.epoch
            number += 1
            struct.pack_into("q", acknowledged, 8 + 8 * int(writer), number)
            worst = max(worst, time.monotonic() - began)
    sys.stdout.write(json.dumps({"turns": number, "worst": worst, "busy": busy}))


class Writers:
    """Processes that write as fast as they can, and a common page with what is acknowledged."""

    def __init__(self, path, folder, number=WRITERS):
        SessionStore(path).close()
        counter = folder / "acknowledged"
        counter.write_bytes(bytes(8 + 8 * number))
        with counter.open("r+b") as file:
            self.page = mmap.mmap(file.fileno(), 0)
        self.number = number
        code = "from tests.campaigns.test_backups import write; write()"
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(path), str(counter), str(writer)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for writer in range(number)
        ]

    def acknowledged(self):
        """How many turns of each writer are on disk, at least."""
        return struct.unpack_from(f"{self.number}q", self.page, 8)

    def wait_for(self, turns):
        """Wait for so many more turns, whoever has them: SQLite's lock is not fair."""
        goal = sum(self.acknowledged()) + turns
        give_up = time.monotonic() + 60
        while sum(self.acknowledged()) < goal:
            assert time.monotonic() < give_up
            assert all(process.poll() is None for process in self.processes)
            time.sleep(0.002)  # the counters are plain memory: nothing tells of their change

    def stop(self):
        """End the writers; returns what each says of itself."""
        self.page[:8] = b"\xff" * 8
        said = [json.loads(process.communicate(timeout=60)[0]) for process in self.processes]
        assert [process.returncode for process in self.processes] == [0] * self.number
        return said


@contextlib.contextmanager
def writing(path, folder, number=WRITERS):
    writers = Writers(path, folder, number)
    try:
        yield writers
    finally:
        for process in writers.processes:
            process.kill()
            process.wait(30)
            process.stdout.close()


def check(path, acknowledged):
    """The turns of each writer: whole, in order, without a gap, and all that were acknowledged."""
    with SessionStore(path) as store:
        assert store.integrity_check() == []
        for writer, least in enumerate(acknowledged):
            route = store.get_route(f"writer {writer}")
            turns = defaultdict(list)
            # A writer that has not finished its first turn has a route, and no session yet.
            begun = route is not None and store.get_session(route.session_id) is not None
            for message in store.get_messages(route.session_id) if begun else []:
                number, part, _ = message.content.split()
                turns[int(number)].append(int(part))
            assert list(turns) == list(range(len(turns)))
            assert len(turns) >= least
            assert all(parts == list(range(ROWS)) for parts in turns.values())
        assert store.check_search() is None


# Under load


def test_backups_under_load_are_whole(path, tmp_path, prove):
    backups = 100 if prove else 8
    slowest = 0.0
    with writing(path, tmp_path) as writers, SessionStore(path) as store:
        writers.wait_for(5)
        for number in range(backups):
            before = writers.acknowledged()
            began = time.monotonic()
            target = store.backup(tmp_path / f"copy{number}.db")
            slowest = max(slowest, time.monotonic() - began)
            assert foreign_check(target) == "ok"
            check(target, before)
            target.unlink()
            writers.wait_for(1)
        said = writers.stop()
    check(path, [writer["turns"] for writer in said])
    report(backups, slowest, said)


def foreign_check(target):
    """What SQLite itself says of the copy, before our code has touched it."""
    return foreign(target, "PRAGMA integrity_check")[0][0]


def report(backups, slowest, said):
    turns = sum(writer["turns"] for writer in said)
    worst = max(writer["worst"] for writer in said)
    sys.stdout.write(
        f"\n{backups} backups, the slowest {slowest * 1000:.0f} ms, beside {turns} turns of "
        f"{len(said)} processes; worst turn {worst * 1000:.0f} ms, "
        f"{sum(writer['busy'] for writer in said)} times busy\n"
    )


def test_backups_of_the_actor_under_load_are_whole(path, tmp_path, prove):
    """Beside other processes and with tasks of its own; the writer does not wait for the copy."""
    backups = 30 if prove else 3

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
                for _ in range(5):  # so many commits, in which the tasks have their share
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


def test_the_harness_notices_half_a_turn_and_a_lost_one(path, tmp_path):
    """What `check` is for: a copy that lacks a row, or a turn that was acknowledged."""
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
def test_a_backup_is_for_its_owner_alone_and_stands_alone(stored, tmp_path, umask):
    before = os.umask(umask)
    try:
        target = stored.backup(tmp_path / "copy.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.glob("copy*")] == ["copy.db"]
    assert foreign(target, "PRAGMA journal_mode") == [["delete"]]


def test_an_existing_target_is_refused_unchanged(stored, tmp_path):
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


def test_a_backup_is_restored_by_putting_it_in_place(stored, path, tmp_path):
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
    stored.append_message("s", "user", "and on")  # the store itself has noticed nothing
    target = stored.backup(tmp_path / "copy.db")
    assert [file.name for file in tmp_path.glob("copy*")] == ["copy.db"]
    with SessionStore(target) as copy:
        assert len(copy.get_messages("s")) == 2001


def test_a_backup_reads_as_plain_sqlite(stored, tmp_path):
    """Whoever has nothing of ours left can still read the conversations."""
    target = stored.backup(tmp_path / "copy.db")
    db = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READONLY)
    assert db.pragma("integrity_check") == "ok"
    assert db.execute("SELECT message_count FROM sessions").fetchall() == [(2000,)]
    db.close()
