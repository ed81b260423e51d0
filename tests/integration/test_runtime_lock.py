"""One runtime per file, also if its lock file is removed or replaced."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes import open_runtime
from hermes.errors import StoreInUse, StoreRefused
from hermes.run import status
from hermes.store import SessionStore, open_store
from hermes.store.sqlite.runtime_lock import RuntimeLock, owner, require_free
from tests.support.killed_programs import IN_TURN, start_program


async def echo(turn):
    return f"echo: {turn.text}"


def remove(lock):
    lock.unlink()


def replace(lock):
    lock.unlink()
    lock.touch()


def rename(lock):
    lock.rename(lock.with_name("moved.lock"))


@pytest.fixture
def running(path):
    """A process with a runtime in its first turn."""
    with start_program(path, IN_TURN) as child:
        assert child.stdout.readline() == "turn 1 one\n"
        yield child
        child.kill()


@pytest.mark.parametrize("attack", [remove, replace, rename])
async def test_a_runtime_without_its_lock_file_still_owns_the_database(path, running, attack):
    attack(Path(f"{path}.lock"))
    for _ in range(2):  # the first attempt may leave a lock file
        with pytest.raises(StoreInUse, match=r"already in use by another Hermes runtime"):
            async with open_runtime(path, agent=echo):
                pytest.fail("two runtimes would run the same turn")
        assert owner(path) is not None
        with pytest.raises(StoreInUse):
            require_free(path)
    assert status.examine(path).owner is not None
    with SessionStore(path) as store:  # foreign writers stay allowed
        store.create_session("foreign")
    running.kill()
    running.wait(30)
    assert owner(path) is None
    async with open_store(path) as store:
        assert await store.get_session("foreign") is not None


async def test_the_owner_of_a_file_that_is_created_keeps_it(path):
    async with open_store(path) as store:
        remove(Path(f"{path}.lock"))
        with pytest.raises(StoreInUse):
            async with open_store(path):
                pytest.fail("the file has two owners")
        await store.create_session("s")
    async with open_store(path) as store:
        assert await store.get_session("s")


def test_another_name_of_the_file_has_the_same_owner(path):
    SessionStore(path).close()
    other = path.with_name("other.db")
    os.link(path, other)
    lock = RuntimeLock(path)
    assert owner(other) is not None
    with pytest.raises(StoreInUse):
        RuntimeLock(other)
    lock.close()
    assert owner(other) is None
    RuntimeLock(other).close()


def test_neither_asking_nor_closing_drops_the_locks_of_a_store_in_the_same_process(path, sql):
    """Otherwise the other process would remove the WAL file when it closes the database."""
    with SessionStore(path) as store:
        lock = RuntimeLock(path)
        assert owner(path) == f"pid {os.getpid()}"
        with pytest.raises(StoreInUse):
            RuntimeLock(path)
        lock.close()
        assert owner(path) is None
        assert sql("SELECT count(*) FROM sessions") == [[0]]
        store.create_session("after")
        assert sql("SELECT id FROM sessions") == [["after"]]


def test_closing_leaves_no_descriptor_behind(path):
    SessionStore(path).close()

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(5):
        store, lock = SessionStore(path), RuntimeLock(path)
        assert owner(path)
        lock.close()
        store.close()
    assert descriptors() == before


@contextmanager
def no_writes():
    """Let this process create empty files, but write to none."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_lock_file_that_cannot_be_written_is_reported_and_released(path):
    SessionStore(path).close()
    with pytest.raises(StoreRefused) as refused, no_writes():
        RuntimeLock(path)
    assert str(refused.value) == f"{path}.lock cannot be written: File too large"
    assert owner(path) is None
    RuntimeLock(path).close()


def test_the_owner_is_unknown_if_the_lock_file_is_not_text(path):
    lock = RuntimeLock(path)
    Path(f"{path}.lock").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreInUse, match="already in use by another Hermes runtime"):
        RuntimeLock(path)
    lock.close()


OPENERS = """
import os, sys
from pathlib import Path
from hermes.errors import StoreRefused
from hermes.store.sqlite import file_lock

def refuse():
    try:
        with file_lock.no_trace(path, had_lock=False):
            raise StoreRefused("it belongs to another program")
    except StoreRefused:
        return 0

def open_alone():
    while (opening := file_lock.Opening(path)).waits:
        pass
    with opening:
        try:
            os.close(os.open(f"{path}.inside", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return 1
        for _ in range(20):
            os.sched_yield()
        os.unlink(f"{path}.inside")
        return 0

path, step = Path(sys.argv[1]), {"refuses": refuse, "opens": open_alone}[sys.argv[2]]
sys.stdin.readline()
print(sum(step() for _ in range(300)))
"""


def test_a_lock_file_that_is_removed_after_a_refusal_admits_one_waiter_at_a_time(path):
    pipe, command = subprocess.PIPE, [sys.executable, "-c", OPENERS, str(path)]
    processes = [
        subprocess.Popen([*command, role], stdin=pipe, stdout=pipe, text=True)
        for role in ("refuses", "opens", "opens")
    ]
    for process in processes:  # all of them begin at once
        process.stdin.write("\n")
        process.stdin.flush()
    overlaps = [process.communicate(timeout=60)[0] for process in processes]
    assert overlaps == ["0\n", "0\n", "0\n"]
