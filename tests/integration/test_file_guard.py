"""The files of a running store: dropped locks, removed logs, orderly closing."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
import trio

from hermes.errors import ActorStopped, StoreFailed
from hermes.store import SessionStore, open_store
from tests.support.processes import foreign

ROOT = Path(__file__).parents[2]

ACCIDENTS = {
    "a second SQLite": """
import sqlite3
other = sqlite3.connect(path)
other.execute("SELECT count(*) FROM sqlite_master").fetchall()
other.close()
""",
    "a plain open and close": """
for suffix in ("", "-shm"):
    open(path + suffix, "rb").close()
""",
}

GUARDED = """
import sys
from hermes.store import SessionStore
path = sys.argv[1]
store = SessionStore(path)
store.create_session("before")
{accident}
print("accident", flush=True)
sys.stdin.readline()
store.create_session("after")
print("committed", flush=True)
sys.stdin.readline()
store.close()
"""

# The actor in the same place: a writer and two readers, in threads.
AWAITED = """
import sys, trio
from hermes.store import open_store
path = sys.argv[1]

async def main():
    async with open_store(path) as store:
        await store.create_session("before")
{accident}
        print("accident", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        await store.create_session("after")
        print("committed", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)

trio.run(main)
"""

# The same commits on a plain connection, without the guard.
UNGUARDED = """
import sys, apsw
path = sys.argv[1]
db = apsw.Connection(path)
columns = "id, source, kind, started_at, last_active"
insert = f"INSERT INTO sessions ({{columns}}) VALUES (?, '', 'new', 0, 0)"
db.execute(insert, ("before",))
{accident}
print("accident", flush=True)
sys.stdin.readline()
db.execute(insert, ("after",))
print("committed", flush=True)
sys.stdin.readline()
db.close()
"""


def run_victim(path, script, accident):
    """What a third process sees of the commit after the accident, and whether the log was there.

    Between the accident and the commit another process opens and closes the file: seeing nobody's
    lock, it would take itself for the last one and remove the log.
    """
    SessionStore(path).close()
    indent = " " * 8 if "async def" in script else ""
    text = "\n".join(indent + line for line in ACCIDENTS[accident].splitlines())
    child = subprocess.Popen(
        [sys.executable, "-c", script.format(accident=text), str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "accident\n"
        assert foreign(path, "SELECT count(*) FROM sessions") == [[1]]
        child.stdin.write("go on\n")
        child.stdin.flush()
        assert child.stdout.readline() == "committed\n"
        linked = Path(f"{path}-wal").exists()
        seen = foreign(path, "SELECT id FROM sessions ORDER BY no")
        child.communicate("end\n", timeout=30)
        assert child.returncode == 0
    return [session_id for (session_id,) in seen], linked


@pytest.mark.parametrize("script", [GUARDED, AWAITED], ids=["blocking", "awaited"])
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_a_dropped_lock_loses_nothing(path, script, accident):
    assert run_victim(path, script, accident) == (["before", "after"], True)
    with SessionStore(path) as store:
        assert store.integrity_check() == []
        assert store.get_session("after")


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_without_the_guard_the_commit_is_lost(path, accident):
    """The control (mutant M9): without the guard, the test above would fail."""
    assert run_victim(path, UNGUARDED, accident) == (["before"], False)


# Removed files


def _delete_log(path):
    Path(f"{path}-wal").unlink()


def _delete_database(path):
    path.unlink()


def _delete_shared_memory(path):
    Path(f"{path}-shm").unlink()


def _move_database(path):
    path.rename(path.with_name("moved.db"))


def _move_log(path):
    Path(f"{path}-wal").rename(path.with_name("moved-wal"))


def _replace_database(path):
    other = path.with_name("other.db")
    SessionStore(other).close()
    other.replace(path)


def _restore_over(path):
    """Restore a backup without stopping the store."""
    other = path.with_name("other.db")
    SessionStore(other).close()
    path.rename(path.with_name("old.db"))
    other.rename(path)


THEFTS = (
    _delete_log,
    _delete_database,
    _delete_shared_memory,
    _move_database,
    _move_log,
    _replace_database,
    _restore_over,
)


@pytest.mark.parametrize("steal", THEFTS)
def test_a_write_to_removed_files_is_not_acknowledged(path, steal):
    with SessionStore(path) as store:
        store.create_session("before")
        steal(path)
        with pytest.raises(StoreFailed) as caught:
            store.create_session("after")
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        with pytest.raises(StoreFailed):
            store.create_session("after all")


@pytest.mark.parametrize("steal", THEFTS)
async def test_the_actor_stops_when_its_files_are_removed(path, steal):
    async def write():
        async with open_store(path) as store:
            await store.create_session("before")
            steal(path)
            with pytest.raises(StoreFailed):
                await store.create_session("after")
            with pytest.raises(StoreFailed):
                await store.create_session("after all")

    with pytest.raises(StoreFailed):
        await write()


@pytest.mark.parametrize("steal", THEFTS)
async def test_the_sweep_detects_removed_files_without_a_write(path, steal):
    async def wait():
        async with open_store(path, sweep_interval=0.01) as store:
            await store.create_session("before")
            steal(path)
            await trio.sleep_forever()

    with trio.fail_after(3), pytest.raises(StoreFailed):
        await wait()


def test_after_the_log_was_deleted_the_file_opens_again(path):
    with SessionStore(path) as store:
        store.create_session("before")
        store.vacuum()  # everything is in the file itself
        _delete_log(path)
        with pytest.raises(StoreFailed):
            store.create_session("after")
    with SessionStore(path) as store:
        assert store.integrity_check() == []
        assert store.get_session("before")
        assert store.get_session("after") is None


# Orderly ends


def beside(path):
    return sorted(file.name for file in path.parent.glob(f"{path.name}-*"))


def test_the_last_close_removes_the_log(path):
    first, second = SessionStore(path), SessionStore(path)
    first.create_session("s")
    first.close()
    assert beside(path) == ["state.db-shm", "state.db-wal"]
    second.close()
    assert beside(path) == []
    with SessionStore(path) as store:
        assert store.get_session("s")


async def test_the_last_close_of_the_actor_removes_the_log(path):
    async with open_store(path) as store:
        await store.create_session("s")
    assert beside(path) == []


async def test_an_actor_and_a_session_store_may_close_in_either_order(path):
    early = SessionStore(path)
    async with open_store(path) as store:
        await store.create_session("1")
        early.close()
        assert beside(path) == ["state.db-shm", "state.db-wal"]
        foreign(path, "SELECT 1")
        await store.create_session("2")
        late = SessionStore(path)
    assert beside(path) == ["state.db-shm", "state.db-wal"]
    foreign(path, "SELECT 1")
    late.create_session("3")
    assert foreign(path, "SELECT id FROM sessions ORDER BY no") == [["1"], ["2"], ["3"]]
    late.close()
    assert beside(path) == []


VISITOR = """
import sys, apsw
for line in sys.stdin:
    db = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READWRITE)
    db.set_busy_timeout(5000)
    count = db.execute("SELECT count(*) FROM sessions").fetchone()[0]
    db.close()
    print(count, flush=True)
"""


@pytest.fixture
def visit(path):
    """Open, count and close the file in another process; returns the count."""
    SessionStore(path).close()
    command = [sys.executable, "-c", VISITOR, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as child:

        def count():
            child.stdin.write("visit\n")
            child.stdin.flush()
            return int(child.stdout.readline())

        yield count
        child.stdin.close()


def orders(names):
    """Each order in which the named stores can be opened and closed, as steps (name, opens)."""
    steps = [(name, opens) for name in names for opens in (True, False)]
    for order in itertools.permutations(steps):
        if all(order.index((name, True)) < order.index((name, False)) for name in names):
            yield order


@pytest.mark.parametrize("visited", [False, True], ids=["alone", "visited"])
def test_stores_of_one_process_open_and_close_in_any_order(path, visit, visited):
    total = 0
    for order in orders("ABC"):
        stores = {}
        for name, opens in order:
            if opens:
                stores[name] = SessionStore(path)
            else:
                stores.pop(name).close()
            if visited:
                assert visit() == total
            for store in stores.values():
                store.create_session(None)
                total += 1
            assert bool(beside(path)) == bool(stores)
        assert visit() == total
    with SessionStore(path) as store:
        assert store.integrity_check() == []


def test_a_second_close_does_nothing(path):
    store, other = SessionStore(path), SessionStore(path)
    store.close()
    store.close()
    other.create_session("s")
    other.close()
    with pytest.raises(ActorStopped):
        other.get_session("s")


def test_opening_again_leaves_no_descriptor_behind(path):
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    SessionStore(path).close()
    before = descriptors()
    for _ in range(20):
        first, second = SessionStore(path), SessionStore(path)
        first.close()
        second.close()
    assert descriptors() == before


def test_a_checkpoint_succeeds_beside_the_guard(path):
    """The guard's own locks must not block a checkpoint or a VACUUM."""
    with SessionStore(path) as store, SessionStore(path) as other:
        store.create_session("s")
        for number in range(200):
            other.append_message("s", "user", f"{number} " + "x" * 2000)
        store.vacuum()
        assert Path(f"{path}-wal").stat().st_size == 0
        db = apsw.Connection(str(path))
        db.execute("SELECT 1 FROM sessions").fetchall()
        assert db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
        db.close()
        other.append_message("s", "user", "still there")
        assert len(store.get_messages("s")) == 201
