"""Backups with attached files: complete whatever others do meanwhile, or nothing."""

from __future__ import annotations

import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest

from hermes.errors import StoreBusy, StoreError, StoreRefused
from hermes.messages import Attachment
from hermes.store import SessionStore
from hermes.store.sqlite.blobs import BlobFolder
from hermes.store.sqlite.copies import backups
from hermes.store.sqlite.schema import APPLICATION_ID, MIGRATIONS
from tests.support.stores import KINDS, open_kind

pytestmark = pytest.mark.sqlite_only("a backup is a file")

KEY = "agent:main:telegram:dm:1"
OURS = ("state.db", "copy.db.lock")


def put(store, data, *, named=True):
    """Store a file, and name it in a message."""
    file = store.put_file(Attachment(data=data, name="a.txt"), session_key=KEY)
    if named:
        store.append_message("s", "user", "look", parts=[file.part])
    return file


@pytest.fixture
def filled(store):
    store.create_session("s", "test", session_key=KEY)
    return [put(store, f"file {number}".encode()) for number in range(5)]


@pytest.fixture
def target(path):
    return path.with_name("copy.db")


def beside(path):
    """The names next to a file, without those that belong to the store."""
    return sorted(each.name for each in path.parent.iterdir() if not each.name.startswith(OURS))


def content(path, file):
    with SessionStore(path) as copy:
        assert copy.integrity_check() == []
        return copy.read_file(file.id, session_key=KEY)


def blobs_of(path):
    return sorted(BlobFolder(path).all_blobs())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_backup_has_the_files(kind, path, world, target):
    async with open_kind(kind, path, clock=world.clock) as store:
        file = await store.put_file(Attachment(data=b"content"), session_key=KEY)
        assert await store.backup(target) == target
        world.pass_time(7200)
        assert await store.sweep_files() == 1
    assert content(target, file) == b"content"


def test_a_backup_is_private(store, filled, target):
    store.backup(target)
    folder = BlobFolder(target).path
    modes = {stat.S_IMODE(each.stat().st_mode) for each in [folder, *folder.iterdir()]}
    assert modes == {0o700}
    assert {stat.S_IMODE(each.stat().st_mode) for each in blobs_of(target)} == {0o600}
    assert beside(target) == ["copy.db", "copy.db.blobs"]


def test_a_backup_without_files_is_one_file(store, target):
    store.backup(target)
    assert beside(target) == ["copy.db"]


def test_a_backup_has_only_what_its_database_names(store, filled, target, world):
    folder = store.snapshot(lambda tx: tx.db.blobs)
    folder.new_file().write_bytes(b"being staged")
    left = folder.path_of("ab" * 32)
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"left by a process that was killed")
    store.backup(target)
    assert len(blobs_of(target)) == len(filled)
    assert all(each.parent.name == each.name[:2] for each in blobs_of(target))


def test_an_existing_target_or_folder_is_refused(store, filled, target):
    store.backup(target)
    before = blobs_of(target)
    with pytest.raises(StoreRefused, match=r"copy\.db already exists"):
        store.backup(target)
    target.unlink()
    with pytest.raises(StoreRefused, match=r"copy\.db\.blobs already exists"):
        store.backup(target)
    assert blobs_of(target) == before
    assert beside(target) == ["copy.db.blobs"]


def test_files_are_copied_to_another_file_system(store, filled, path):
    with TemporaryDirectory(prefix="hermes-", dir="/var/tmp") as folder:
        if Path(folder).stat().st_dev == path.stat().st_dev:
            pytest.skip("there is no second file system")
        target = store.backup(f"{folder}/copy.db")
        assert {each.stat().st_nlink for each in blobs_of(target)} == {1}
        assert {stat.S_IMODE(each.stat().st_mode) for each in blobs_of(target)} == {0o600}
        assert content(target, filled[0]) == b"file 0"


def test_files_are_linked_if_possible(store, filled, target):
    store.backup(target)
    assert {each.stat().st_nlink for each in blobs_of(target)} == {2}


def during(store, target, step):
    """Make a backup, and call `step` once while the database is copied."""
    waiting = [step]

    def progress(_done, _all):
        if waiting:
            waiting.pop()()

    return store.backup(target, progress=progress)


def test_a_file_that_is_stored_during_the_backup_is_not_missed(store, path, filled, target, world):
    added = []

    def add():
        with SessionStore(path, clock=world.clock) as other:
            added.append(put(other, b"late"))

    during(store, target, add)
    with SessionStore(target) as copy:
        assert copy.integrity_check() == []
        assert (len(copy.get_messages("s")), len(blobs_of(target))) == (5, 5)


def test_a_file_that_is_deleted_during_the_backup_is_in_it(store, path, filled, target, world):
    world.pass_time(7200)

    def delete():
        with SessionStore(path, clock=world.clock) as other:
            other.delete_session("s")
            assert other.sweep_files() == 5

    during(store, target, delete)
    assert content(target, filled[4]) == b"file 4"


class Interfering:
    """A folder of blobs that another process changes before and after it is listed."""

    def __init__(self, folder, before):
        self._folder, self._before = folder, before
        self.path = folder.path

    def path_of(self, digest):
        return self._folder.path_of(digest)

    def all_blobs(self):
        found = [*self._folder.all_blobs()]
        self._before()
        return found


def interfere(store, target, step, progress=None):
    """Make a backup; `step` runs after the blobs are listed, before the database is copied."""
    return store._run(lambda db: _with_folder(db, Interfering(db.blobs, step), target, progress))


def _with_folder(db, folder, target, progress):
    before, db.blobs = db.blobs, folder
    try:
        return backups.backup(db, target, progress=progress)
    finally:
        db.blobs = before


def test_a_file_that_is_stored_after_the_listing_is_taken(store, path, filled, target, world):
    added = []

    def add():
        if not added:
            with SessionStore(path, clock=world.clock) as other:
                added.append(put(other, b"late"))

    interfere(store, target, add)
    assert content(target, added[0]) == b"late"


def test_files_that_are_deleted_after_the_listing_are_not_missed(
    store, path, filled, target, world
):
    world.pass_time(7200)

    def delete():
        with SessionStore(path, clock=world.clock) as other:
            if other.get_session("s") is not None:
                other.delete_session("s")
                other.sweep_files()

    interfere(store, target, delete)
    with SessionStore(target) as copy:
        assert copy.integrity_check() == []
    assert beside(target) == ["copy.db"]


def test_a_backup_is_repeated_if_a_file_that_it_names_is_gone(store, path, filled, target, world):
    steps = []

    def add():
        if not steps:
            steps.append("added")
            with SessionStore(path, clock=world.clock) as other:
                other.create_session("t", "test", session_key=KEY)
                file = other.put_file(Attachment(data=b"late"), session_key=KEY)
                other.append_message("t", "user", "look", parts=[file.part])

    def delete(_done, _all):
        if steps == ["added"]:
            steps.append("deleted")
            world.pass_time(7200)
            with SessionStore(path, clock=world.clock) as other:
                other.delete_session("t")
                assert other.sweep_files() == 1

    interfere(store, target, add, delete)
    assert steps == ["added", "deleted"]
    with SessionStore(target) as copy:
        assert copy.integrity_check() == []
        assert copy.get_session("t") is None
    assert content(target, filled[0]) == b"file 0"


def test_a_backup_of_a_store_with_lost_files_has_the_others(store, filled, target, caplog):
    [lost, *_] = BlobFolder(store.path).all_blobs()
    lost.unlink()
    store.backup(target)
    assert caplog.messages == ["attached files are missing, also in the backup: 1"]
    assert len(blobs_of(target)) == 4


def test_a_failed_backup_leaves_nothing_behind(store, filled, target):
    for blob in BlobFolder(store.path).all_blobs():
        blob.unlink()
        blob.mkdir()  # it can neither be linked nor read
    with pytest.raises(StoreError, match=r"cannot be copied: .*; no backup was made"):
        store.backup(target)
    assert beside(target) == []


def test_a_backup_that_is_interrupted_while_the_database_is_copied_leaves_nothing(
    store, filled, target
):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        during(store, target, interrupt)
    assert beside(target) == []


def test_what_a_killed_backup_left_is_replaced(store, filled, target):
    [named, *_] = blobs_of(store.path)
    for left in (named.name, "ab" * 32):
        half = BlobFolder(target.with_name("copy.db.partial")).path_of(left)
        half.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(b"fi")
    store.backup(target)
    assert beside(target) == ["copy.db", "copy.db.blobs"]
    assert len(blobs_of(target)) == 5
    assert content(target, filled[0]) == b"file 0"
    assert {each.stat().st_size for each in blobs_of(target)} == {6}


def test_two_backups_to_one_target_do_not_disturb_each_other(store, path, filled, target, world):
    def second():
        with (
            SessionStore(path, clock=world.clock) as other,
            pytest.raises(StoreBusy, match=r"another backup to .* is running"),
        ):
            other.backup(target)

    during(store, target, second)
    assert content(target, filled[0]) == b"file 0"
    assert beside(target) == ["copy.db", "copy.db.blobs"]


def test_the_backup_before_a_migration_leaves_the_files_where_they_are(path):
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = wal").fetchall()
    for name in ("hermes_words", "hermes_tools"):
        db.create_scalar_function(name, lambda text: text, 1, flags=apsw.SQLITE_DETERMINISTIC)
    for script in MIGRATIONS[:-1]:
        db.execute(script).fetchall()
    version = len(MIGRATIONS) - 1
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}")
    db.close()
    blob = BlobFolder(path).path_of("ab" * 32)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"content")
    with SessionStore(path):
        pass
    assert path.with_name(f"state.db.schema{version}.backup").exists()
    assert blob.stat().st_nlink == 1
    assert [each.name for each in path.parent.iterdir() if each.is_dir()] == ["state.db.blobs"]
