"""A blob is flushed before the row that names it: its bytes, its name, and the folders above."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from hermes.errors import StoreError
from hermes.messages import Attachment
from hermes.store import SessionStore
from tests.support.attachments import blob_names, digest

DATA = b"flushed"
HASH = digest(DATA)


@pytest.fixture
def calls(monkeypatch, path):
    """Record what is created, renamed and flushed next to the database; real calls are made."""
    seen = []

    def short(where):
        return str(where).replace(f"{path}.blobs", "blobs").replace(str(path.parent), "folder")

    def record(name, describe):
        real = getattr(os, name)

        def recorded(*args, **kwargs):
            described = describe(*args)
            real(*args, **kwargs)
            seen.append((name, described))

        monkeypatch.setattr(os, name, recorded)

    def staged(where):
        return "staged" if "incoming/" in where else where

    record("fsync", lambda fd: staged(short(Path(f"/proc/self/fd/{fd}").readlink())))
    record("mkdir", lambda where, *_: short(where))
    record("rename", lambda old, new: (staged(short(old)), short(new)))
    return seen


def put(store):
    return store.put_file(Attachment(data=DATA), session_key="k")


STEPS = [
    ("mkdir", "blobs"),
    ("mkdir", "blobs/incoming"),
    ("fsync", "staged"),
    ("mkdir", f"blobs/{HASH[:2]}"),
    ("rename", ("staged", f"blobs/{HASH[:2]}/{HASH}")),
    ("fsync", f"blobs/{HASH[:2]}"),
    ("fsync", "blobs"),
    ("fsync", "folder"),
]


def test_the_bytes_are_flushed_then_the_name_and_each_new_folder(path, calls):
    with SessionStore(path) as store:
        put(store)
        assert calls == STEPS
        calls.clear()
        other = digest(b"other")[:2]
        store.put_file(Attachment(data=b"other"), session_key="k")
        flushed = [where for name, where in calls if name == "fsync"]
        assert flushed == ["staged", f"blobs/{other}", "blobs"]  # a new folder, in a known one
        calls.clear()
        put(store)
        moved = ("rename", ("staged", f"blobs/{HASH[:2]}/{HASH}"))  # the old one may be damaged
        assert calls == [("fsync", "staged"), moved, ("fsync", f"blobs/{HASH[:2]}")]


def test_there_is_no_row_before_everything_is_flushed(path, monkeypatch):
    with SessionStore(path) as store, apsw.Connection(str(path)) as other:
        real, counts = os.fsync, []

        def fsync(fd):
            real(fd)
            counts.append(other.execute("SELECT count(*) FROM files").get)

        monkeypatch.setattr(os, "fsync", fsync)
        put(store)
        assert len(counts) == 4
        assert set(counts) == {0}
    other.close()


@pytest.mark.parametrize("steps", range(1, len(STEPS) + 1))
def test_what_a_killed_process_did_not_flush_is_flushed_by_the_next(path, calls, steps):
    """The first process is killed after some steps; the second stores the same content."""
    done = STEPS[:steps]
    root = path.with_name(f"{path.name}.blobs")
    for name, where in done:
        if name == "mkdir":
            (root.parent / where.replace("blobs", root.name)).mkdir(mode=0o700)
        elif name == "rename":
            (root / HASH[:2] / HASH).write_bytes(DATA)
    calls.clear()
    with SessionStore(path) as store:
        put(store)
        assert store.integrity_check() == []
    flushed = [where for name, where in calls if name == "fsync"]
    assert set(flushed) == {"folder", "blobs", "staged", f"blobs/{HASH[:2]}"}
    assert [name for name, _ in calls[-3:]] == ["fsync"] * 3
    assert blob_names(path) == {HASH}


@pytest.mark.parametrize("number", range(4))
def test_a_flush_that_fails_stores_nothing(path, monkeypatch, number):
    real, left = os.fsync, [number]

    def fsync(fd):
        left[0] -= 1
        if left[0] == -1:
            raise OSError(5, "Input/output error")
        real(fd)

    with SessionStore(path) as store:
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError, match="could not be stored: Input/output error"):
            put(store)
        assert left == [-1]
        assert store.snapshot(lambda tx: tx.all("SELECT id FROM files")) == []
        assert list(root_of(path).glob("incoming/*")) == []
        stored = put(store)
        assert store.read_file(stored.id, session_key="k") == DATA


def root_of(path):
    return path.with_name(f"{path.name}.blobs")
