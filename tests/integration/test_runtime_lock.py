"""One runtime per file, also if its lock file is removed or replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes import open_runtime
from hermes.errors import StoreInUse
from hermes.run import status
from hermes.store import SessionStore, open_store
from hermes.store.files.runtime_lock import RuntimeLock, owner, require_free
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
