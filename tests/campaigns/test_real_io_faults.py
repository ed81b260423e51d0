"""C2a: the store reports real files and disks that are full, read-only, removed or replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from hermes.errors import (
    StoreFailed,
    StoreFull,
    StoreRefused,
)
from hermes.store import SessionStore
from tests.support.attachments import blob_names, content, put, staged_names
from tests.support.stores import KINDS, World, open_kind


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 1,000 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def fill(store) -> tuple[list[str], int]:
    """Append until ten appends have failed. Returns the acknowledged texts and the failures."""
    acknowledged, refused = [], 0
    for n in range(1000):
        text = f"row {n} " + "y" * 3000
        try:
            await store.append_message("s1", "user", text)
            acknowledged.append(text)
        except StoreFull:
            refused += 1
        if refused == 10:
            break
    return acknowledged, refused


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_reported_and_service_resumes_when_there_is_space(kind, small_disk):
    path = small_disk / "state.db"
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"z" * 150_000)

    async def live():
        async with open_kind(kind, path, clock=World().clock) as store:
            await store.create_session("s1")
            acknowledged, refused = await fill(store)
            ballast.unlink()
            appended = await store.append_message("s1", "user", "room again")
            texts = [message.content for message in await store.get_messages("s1")]
            return acknowledged, refused, appended.head.message_count, texts

    acknowledged, refused, count, texts = trio.run(live)
    assert refused == 10
    assert texts == [*acknowledged, "room again"]
    assert count == len(texts)
    with SessionStore(path) as store:
        assert [message.content for message in store.get_messages("s1")] == texts
        assert store.integrity_check() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_does_not_fit_on_the_disk_is_refused_and_leaves_nothing(kind, small_disk):
    path = small_disk / "state.db"

    async def live():
        async with open_kind(kind, path, clock=World().clock) as store:
            for size in (10_000_000, 1_200_000, 900_000):
                with pytest.raises(StoreFull, match="the disk is full"):
                    await put(store, b"\xff" * size)
                assert staged_names(path) == blob_names(path) == set()
            file = await put(store, b"\xff" * 1000)
            return await content(store, file.id)

    assert trio.run(live) == b"\xff" * 1000


_LIMITED = """
import resource, sys
from hermes.errors import HermesError, StoreError, StoreFailed
from hermes.store import SessionStore
store = SessionStore(sys.argv[1])
store.create_session("s1")
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
for n in range(1000):
    try:
        store.append_message("s1", "user", f"row {n} " + "y" * 3000, platform_message_id=str(n))
        print("ok", n, flush=True)
    except StoreFailed:
        print("unknown", n, flush=True)
        break
    except StoreError:
        print("fail", n, flush=True)
        break
"""


def test_a_file_that_may_not_grow_gives_no_false_acknowledgement(path):
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert lines[-1][0] in {"unknown", "fail"}
    told_ok = [n for told, n in lines if told == "ok"]
    assert len(told_ok) > 3
    with SessionStore(path) as store:
        stored = [message.platform_message_id for message in store.get_messages("s1")]
        assert stored in (told_ok, [*told_ok, lines[-1][1]])
        assert stored == told_ok or lines[-1][0] == "unknown"
        assert store.integrity_check() == []
        store.append_message("s1", "user", "resumes")


@pytest.fixture
def read_only(path):
    """A store whose folder cannot be written to."""
    with SessionStore(path) as store:
        store.create_session("s1")
    folder = str(path.parent)
    if os.geteuid() != 0:
        path.chmod(0o400)
        path.parent.chmod(0o500)
        yield path
        path.parent.chmod(0o700)
        return
    commands = (["mount", "--bind", folder, folder], ["mount", "-o", "remount,bind,ro", folder])
    for command in commands:
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("permissions do not bind root, and mounting is not permitted here")
    yield path
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_read_only_folder_is_refused_in_one_sentence(read_only):
    before = read_only.read_bytes()
    with pytest.raises(StoreRefused):
        SessionStore(read_only)
    assert read_only.read_bytes() == before


async def append_until_stopped(store) -> list[str]:
    """Return the outcomes of three appends."""
    told = []
    for n in range(3):
        try:
            await store.append_message("s1", "user", f"after {n}")
            told.append("ok")
        except StoreFailed:
            told.append("unknown")
    return told


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accident", ["log removed", "file replaced", "file removed"])
def test_removed_files_stop_the_store_without_a_false_acknowledgement(kind, accident, tmp_path):
    path, other = tmp_path / "state.db", tmp_path / "other.db"
    with SessionStore(other) as store:
        store.create_session("s1")
    with SessionStore(path) as store:
        store.create_session("s1")
    accidents = {
        "log removed": Path(f"{path}-wal").unlink,
        "file removed": path.unlink,
        "file replaced": lambda: other.replace(path),
    }
    told = []

    async def live():
        async with open_kind(kind, path, clock=World().clock) as store:
            await store.append_message("s1", "user", "before")
            accidents[accident]()
            told.extend(await append_until_stopped(store))

    if kind == "sync":
        trio.run(live)
    else:
        with pytest.raises(StoreFailed):
            trio.run(live)
    assert told == ["unknown"] * 3
    with SessionStore(path) as store:  # the file that is at this path now
        store.ensure_session("s1")
        store.append_message("s1", "user", "service resumes")
        assert "after 0" not in [message.content for message in store.get_messages("s1")]
        assert store.integrity_check() == []
