"""Opening a file: the properties of a store's file, and files that are refused and not changed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
import trio

from hermes.errors import StoreInUse, StoreRefused
from hermes.store import SessionStore, open_store
from hermes.store.sqlite.file_lock import refuse_network_file_system, refuse_old_sqlite
from hermes.store.sqlite.runtime_lock import LOCK_PAUSE, LOCK_TRIES
from hermes.store.sqlite.schema import APPLICATION_ID, MIGRATIONS
from tests.support.faulty_vfs import Fault, FaultyVFS

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["blocking", "awaited"])
def open_file(request):
    """Open a path with one of the two kinds of store, and close it again."""

    def blocking(path):
        SessionStore(path).close()

    def awaited(path):
        async def opened():
            async with open_store(path):
                pass

        trio.run(opened)

    return {"blocking": blocking, "awaited": awaited}[request.param]


def refused(open_file, path, *, named=None):
    """The error for the path; it must be one sentence that names the path."""
    with pytest.raises(StoreRefused) as caught:
        open_file(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert str(named or path) in sentence
    return sentence


def contents(folder):
    """Name and digest of every file in the folder, except lock files."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.is_file() and file.suffix != ".lock"
    }


def make_store(path, rows=200):
    with SessionStore(path) as store:
        store.create_session("s")
        for number in range(rows):
            store.append_message("s", "user", f"{number} " + "x" * 500)


# Properties of a store's file


def test_the_file_uses_wal_full_sync_strict_tables_and_our_application_id(path, sql):
    with SessionStore(path) as store:
        assert store._db.pragma("journal_mode") == "wal"
        assert store._db.pragma("synchronous") == 2  # FULL
        assert store._db.pragma("foreign_keys") == 1
        assert store._db.pragma("application_id") == APPLICATION_ID
        assert store._db.pragma("user_version") == len(MIGRATIONS)
    assert sql("PRAGMA journal_mode") == [["wal"]]


async def test_every_connection_of_the_actor_uses_full_sync_and_checks_foreign_keys(path):
    def settings(db):
        return [db.pragma(name) for name in ("journal_mode", "synchronous", "foreign_keys")]

    async with open_store(path) as store:
        assert await store.run_alone(settings) == ["wal", 2, 1]
        assert await store.run_beside(settings) == ["wal", 2, 1]
        assert await store.snapshot(lambda tx: settings(tx.db)) == ["wal", 2, 1]


def test_every_table_is_strict(path, sql):
    SessionStore(path).close()
    tables = {
        name: strict
        for name, kind, strict in sql(
            "SELECT name, type, strict FROM pragma_table_list WHERE schema = 'main'"
        )
        if kind == "table" and not name.startswith("sqlite_")
    }
    assert tables.keys() >= {"sessions", "messages", "routes", "inbox", "outbox", "leases", "meta"}
    assert [name for name, strict in tables.items() if not strict] == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
async def test_the_files_are_private(path, umask):
    before = os.umask(umask)
    try:
        async with open_store(path) as store:
            await store.create_session("s")
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    names = ("state.db", "state.db-wal", "state.db-shm", "state.db.lock")
    assert modes == dict.fromkeys(names, 0o600)


def test_an_empty_file_becomes_a_store(path, open_file):
    path.touch()
    open_file(path)
    with SessionStore(path) as store:
        assert store.integrity_check() == []


def test_opening_waits_for_a_process_that_is_closing_the_file(path):
    """The last process that closes a file locks everyone else out for a moment."""
    make_store(path, rows=1)
    vfs = FaultyVFS()
    vfs.arm(Fault("xLock", "busy", 1))
    with SessionStore(path, vfs=vfs.name) as store:
        store.append_message("s", "user", "hello")
        assert len(store.load("s").messages) == 2
    assert vfs.fired


def test_a_symlink_opens_its_target(tmp_path, open_file):
    real = tmp_path / "real.db"
    make_store(real, rows=1)
    link = tmp_path / "link.db"
    link.symlink_to(real)
    open_file(link)
    with SessionStore(link) as store, SessionStore(real) as other:
        store.append_message("s", "user", "through the link")
        assert [m.content for m in other.get_messages("s")][1:] == ["through the link"]
    assert link.is_symlink()


def test_a_symlink_to_a_missing_file_creates_that_file(tmp_path, open_file):
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    open_file(link)
    assert link.is_symlink()
    assert (tmp_path / "real.db").stat().st_size > 0


async def test_a_symlink_does_not_bypass_the_lock(tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    async with open_store(tmp_path / "real.db"):
        with pytest.raises(StoreInUse):
            async with open_store(link):
                pass


def test_a_backup_opens_as_a_store(tmp_path, open_file):
    make_store(tmp_path / "state.db", rows=10)
    with SessionStore(tmp_path / "state.db") as store:
        store.backup(tmp_path / "copy.db")
    open_file(tmp_path / "copy.db")
    with SessionStore(tmp_path / "copy.db") as copy:
        assert len(copy.get_messages("s")) == 10


# Refused files


def test_a_directory_is_refused(tmp_path, open_file):
    refused(open_file, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused(tmp_path, open_file):
    folder = tmp_path / "none"
    refused(open_file, folder / "state.db", named=folder)
    assert not folder.exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path, open_file):
    (tmp_path / "file").write_text("not a folder")
    refused(open_file, tmp_path / "file" / "state.db", named=tmp_path / "file")


def test_a_file_that_is_not_regular_is_refused(tmp_path, open_file):
    os.mkfifo(tmp_path / "pipe")
    refused(open_file, tmp_path / "pipe")


def test_a_cycle_of_symlinks_is_refused(tmp_path, open_file):
    (tmp_path / "a.db").symlink_to(tmp_path / "b.db")
    (tmp_path / "b.db").symlink_to(tmp_path / "a.db")
    refused(open_file, tmp_path / "a.db")


@pytest.mark.parametrize("length", [252, 300])
def test_a_name_that_is_too_long_is_refused(tmp_path, open_file, length):
    refused(open_file, tmp_path / ("x" * length))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc takes no files, even of root")
def test_a_folder_in_which_files_cannot_be_created_is_refused(open_file):
    refused(open_file, Path("/proc/state.db"))


def _text(path):
    path.write_text("Dear diary,\nthis is no database.\n" * 50)


def _short(path):
    path.write_bytes(b"hello")


def _one_byte(path):
    path.write_bytes(b"h")


def _noise(path):
    path.write_bytes(hashlib.shake_256(b"noise").digest(20_000))


def _zeros(path):
    path.write_bytes(bytes(8192))


def _foreign(path):
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    db.close()


def _foreign_in_wal(path):
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    db.close()


def _foreign_with_our_version(path):
    db = apsw.Connection(str(path))
    db.execute(f"CREATE TABLE theirs (x); PRAGMA user_version = {len(MIGRATIONS)}")
    db.close()


def _foreign_without_tables(path):
    db = apsw.Connection(str(path))
    db.execute("PRAGMA application_id = 1196444487")
    db.close()


def _future(path):
    make_store(path, rows=1)
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()


def _cut(size):
    def cut(path):
        make_store(path)
        whole = path.read_bytes()
        length = size if size > 0 else len(whole) + size
        assert 0 < length < len(whole)
        path.write_bytes(whole[:length])

    return cut


def _overwritten(first, last, value):
    def overwrite(path):
        make_store(path)
        whole = bytearray(path.read_bytes())
        whole[first:last] = bytes([value]) * (last - first)
        path.write_bytes(whole)

    return overwrite


UNFIT = {
    "text": _text,
    "a few bytes": _short,
    "one byte": _one_byte,
    "noise": _noise,
    "zeros": _zeros,
    "another program's": _foreign,
    "another program's in WAL": _foreign_in_wal,
    "another program's with our version": _foreign_with_our_version,
    "another program's without tables": _foreign_without_tables,
    "of a newer Hermes": _future,
    "cut in the header": _cut(60),
    "cut after the first page": _cut(4096),
    "cut in the middle": _cut(50_000),
    "cut inside a page": _cut(50_001),
    "the last page missing": _cut(-4096),
    "the last byte missing": _cut(-1),
    "magic gone": _overwritten(0, 16, 0),
    "page size mad": _overwritten(16, 18, 0xFF),
    "first page gone": _overwritten(0, 4096, 0xAA),
    "schema gone": _overwritten(100, 4096, 0xAA),
    "schema zeroed": _overwritten(100, 4096, 0),
}


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT.keys())
def test_an_unsuitable_file_is_refused_and_not_changed(path, open_file, make):
    make(path)
    before = path.read_bytes()
    refused(open_file, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("make", [_foreign_in_wal, _future, _cut(50_000)])
def test_nothing_is_left_beside_a_refused_file(path, open_file, make):
    make(path)
    before = contents(path.parent)
    refused(open_file, path)
    assert contents(path.parent) == before


@pytest.mark.parametrize("make", [_foreign_in_wal, _future, _cut(50_000)])
def test_a_refused_file_is_refused_again(path, open_file, make):
    make(path)
    before = path.read_bytes()
    refused(open_file, path)
    refused(open_file, path)
    assert path.read_bytes() == before


def test_a_refused_file_is_not_locked_afterwards(path):
    """Every refusal releases the lock."""

    async def opened():
        async with open_store(path):
            pass

    _text(path)
    with pytest.raises(StoreRefused):
        trio.run(opened)
    path.unlink()
    trio.run(opened)


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        *((kind, False) for kind in ("nfs4", "cifs", "virtiofs", "fuse.sshfs", "9p")),
        *((kind, False) for kind in ("fuse.ceph", "fuse.juicefs", "gfs2", "orangefs", "vmhgfs")),
        *((kind, True) for kind in ("ext4", "tmpfs", "btrfs", "overlay", "xfs")),
    ],
)
def test_a_network_file_system_is_refused(tmp_path, kind, fits):
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 259:255 / / rw,relatime shared:1 - nfs4 elsewhere:/ rw\n"
        f"36 22 {os.major(device)}:{os.minor(device)} / {tmp_path} rw,relatime shared:2 "
        f"master:3 - {kind} server:/export rw,vers=4.2\n"
    )
    path = tmp_path / "state.db"
    if fits:
        refuse_network_file_system(path, mounts)
    else:
        with pytest.raises(StoreRefused) as caught:
            refuse_network_file_system(path, mounts)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        assert kind in str(caught.value)
    assert not path.exists()


def test_without_a_list_of_mounts_nothing_is_refused(tmp_path):
    refuse_network_file_system(tmp_path / "state.db", tmp_path / "none")


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("3.7.0", False),
        ("3.40.1", False),
        ("3.44.5", False),
        ("3.44.6", True),
        ("3.44.7", True),
        ("3.45.0", False),
        ("3.45.6", False),
        ("3.50.6", False),
        ("3.50.7", True),
        ("3.50.10", True),
        ("3.51.0", False),
        ("3.51.2", False),
        ("3.51.3", True),
        ("3.52.0", False),
        ("3.53.0", True),
        ("3.54.1", True),
        ("3.100.0", True),
        ("4.0.0", True),
        (apsw.sqlite_lib_version(), True),
    ],
)
def test_an_sqlite_that_can_lose_its_log_is_refused(version, fits):
    if fits:
        refuse_old_sqlite(version)
        return
    with pytest.raises(StoreRefused) as caught:
        refuse_old_sqlite(version)
    assert "\n" not in str(caught.value)
    assert version in str(caught.value)


# One runtime per file


RUNTIME = """
import sys, trio
from hermes.store import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        await store.create_session("from the runtime")
        print("open", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)

trio.run(main)
"""


@pytest.fixture
def runtime(path):
    """A runtime in another process; it ends at a line of input."""
    child = subprocess.Popen(
        [sys.executable, "-c", RUNTIME, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "open\n"
        yield child
        child.kill()


@contextmanager
def recorded_flocks():
    """Record the operation of each `flock` of this process. A hook cannot be removed again."""
    operations, active = [], True

    def hook(event, args):
        if active and event == "fcntl.flock":
            operations.append(args[1])

    sys.addaudithook(hook)
    yield operations
    active = False


async def refused_as_second(path):
    with recorded_flocks() as flocks, pytest.raises(StoreInUse) as caught:
        async with open_store(path):
            pass
    assert flocks == [fcntl.LOCK_EX | fcntl.LOCK_NB] * LOCK_TRIES
    assert LOCK_TRIES * LOCK_PAUSE < 1
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_a_second_runtime_in_this_process_is_refused(path):
    async with open_store(path) as store:
        assert f"pid {os.getpid()}" in await refused_as_second(path)
        await store.create_session("the first goes on")
    async with open_store(path) as store:
        assert await store.get_session("the first goes on") is not None


async def test_a_second_runtime_in_another_process_is_refused(path, runtime):
    assert f"pid {runtime.pid}" in await refused_as_second(path)
    runtime.communicate("end\n", timeout=30)
    assert runtime.returncode == 0
    async with open_store(path) as store:
        assert await store.get_session("from the runtime") is not None


async def test_the_lock_dies_with_its_process(path, runtime):
    runtime.send_signal(signal.SIGKILL)
    runtime.wait(30)
    async with open_store(path) as store:
        assert await store.get_session("from the runtime") is not None


def test_any_number_of_session_stores_work_beside_a_runtime(path, runtime):
    stores = [SessionStore(path) for _ in range(5)]
    for number, store in enumerate(stores):
        store.create_session(f"beside {number}")
    assert all(store.get_session(f"beside {n}") for store in stores for n in range(5))
    for store in stores:
        store.close()
    runtime.communicate("end\n", timeout=30)
    assert runtime.returncode == 0
    with SessionStore(path) as store:
        assert store.integrity_check() == []
        assert store.get_session("from the runtime")


async def test_a_session_store_opens_before_and_after_a_runtime(path):
    with SessionStore(path) as early:
        async with open_store(path) as store:
            early.create_session("early")
            assert await store.get_session("early") is not None
        early.create_session("late")
    async with open_store(path) as store:
        assert await store.get_session("late") is not None


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT.keys())
def test_no_lock_file_is_left_beside_a_refused_file(path, open_file, make):
    """A lock file beside a file of another program may have a meaning there."""
    make(path)
    lock = path.with_name(f"{path.name}.lock")
    lock.unlink(missing_ok=True)  # of the store that some of these files once were
    refused(open_file, path)
    assert not lock.exists()
