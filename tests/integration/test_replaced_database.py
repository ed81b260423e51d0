"""A database that is overwritten, moved or damaged under a running program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress

import apsw
import pytest
import trio

from hermes.errors import StoreFailed
from hermes.store import SessionStore, open_store
from tests.support.killed_programs import PREAMBLE, ROOT
from tests.support.processes import foreign, foreign_reader, foreign_store

# Accepts one message per line, and says so when it is acknowledged.
SERVER = """
async def main():
    async with open_runtime(path, agent=echo) as runtime:
        store, number = runtime._supervisor.store, 0
        say("ready")
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            match line.split():
                case ["accept"]:
                    number += 1
                    await runtime.submit(Inbound("k", f"e{number}", "hello"))
                    say("accepted")
                case ["backup", target]:
                    await store.backup(target)
                    say("copied")
                case ["checkpoint"]:
                    await store.vacuum()
                    await store.run_alone(lambda db: db.checkpoint())
                    say("moved")

trio.run(main)
"""


class Server:
    """A process with a runtime that accepts a message for each call of `accept`."""

    def __init__(self, path):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-W", "error", "-c", PREAMBLE + SERVER, str(path)]
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()

    def ask(self, line):
        """Send a command; returns the answer, which is empty if the process has ended."""
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self.process.stdout.readline().strip()


@contextmanager
def running(path):
    server = Server(path)
    with server.process:
        try:
            yield server
        finally:
            server.process.kill()


@pytest.fixture
def server(tmp_path):
    (tmp_path / "data").mkdir()
    with running(tmp_path / "data" / "state.db") as server:
        yield server


def other_store(path):
    with SessionStore(path) as store:
        for number in range(50):
            store.append_message(store.create_session(f"o{number}"), "user", "other " * 100)


def overwrite(path, server):
    """`cp other.db state.db`"""
    other = path.parent.parent / "other.db"
    other_store(other)
    shutil.copyfile(other, path)


def overwrite_with_an_empty_store(path, server):
    other = path.parent.parent / "empty.db"
    SessionStore(other).close()
    shutil.copyfile(other, path)


def overwrite_with_a_short_database(path, server):
    """Its last page is before the one that has the stamp."""
    other = path.parent.parent / "short.db"
    foreign(other, "CREATE TABLE one (a)")
    shutil.copyfile(other, path)


def restore_an_older_backup(path, server):
    """`cp backup.db state.db`, with a backup that this process made some time ago."""
    backup = path.parent.parent / "backup.db"
    assert server.ask(f"backup {backup}") == "copied"
    assert server.ask("accept") == "accepted"
    assert server.ask("checkpoint") == "moved"
    shutil.copyfile(backup, path)


def restore_a_backup_of_a_moment_ago(path, server):
    """It has the latest stamp."""
    backup = path.parent.parent / "backup.db"
    assert server.ask(f"backup {backup}") == "copied"
    assert server.ask("accept") == "accepted"
    shutil.copyfile(backup, path)


def restore_a_copy_made_by_vacuum(path, server):
    copy = path.parent.parent / "copy.db"
    foreign(path, f"VACUUM INTO '{copy}'")
    assert server.ask("accept") == "accepted"
    shutil.copyfile(copy, path)


def overwrite_before_another_process_checkpoints(path, server):
    """This moves the page with the stamp to the foreign file."""
    overwrite(path, server)
    with suppress(subprocess.CalledProcessError):  # it may find the file damaged
        foreign(path, "PRAGMA wal_checkpoint(PASSIVE)")


def truncate(path, server):
    with path.open("r+b") as file:
        file.truncate(0)


def cut(path, server):
    """Leave the first half, with the page that has the stamp."""
    assert server.ask("checkpoint") == "moved"
    os.truncate(path, path.stat().st_size // 2)


def cut_the_last_page(path, server):
    """Cut what a checkpoint has just written."""
    foreign(path, "CREATE TABLE large AS SELECT zeroblob(1000000)")
    assert server.ask("checkpoint") == "moved"
    os.truncate(path, path.stat().st_size - 4096)


def truncate_the_log(path, server):
    os.truncate(f"{path}-wal", 0)


def cut_the_log(path, server):
    log = path.with_name(f"{path.name}-wal")
    os.truncate(log, log.stat().st_size // 2)


def write_something_else_to_the_log(path, server):
    log = path.with_name(f"{path.name}-wal")
    with log.open("r+b") as file:
        file.write(b"x" * log.stat().st_size)


def overwrite_the_log_with_another(path, server):
    log, other = (each.with_name(f"{each.name}-wal") for each in (path, path.parents[1] / "o.db"))
    with SessionStore(path.parents[1] / "o.db") as store:
        session = store.create_session("o")
        while other.stat().st_size < log.stat().st_size:
            store.append_message(session, "user", "other " * 100)
        shutil.copyfile(other, log)


def write_something_else(path, server):
    path.write_text("not a database\n" * 10_000)


def move_the_folder(path, server):
    path.parent.rename(path.parent.with_name("moved"))


def replace_the_folder(path, server):
    move_the_folder(path, server)
    shutil.copytree(path.parent.with_name("moved"), path.parent)


@pytest.mark.parametrize(
    "attack",
    [
        overwrite,
        overwrite_with_an_empty_store,
        overwrite_with_a_short_database,
        restore_an_older_backup,
        restore_a_backup_of_a_moment_ago,
        restore_a_copy_made_by_vacuum,
        overwrite_before_another_process_checkpoints,
        truncate,
        cut,
        cut_the_last_page,
        truncate_the_log,
        cut_the_log,
        write_something_else_to_the_log,
        overwrite_the_log_with_another,
        write_something_else,
        move_the_folder,
        replace_the_folder,
    ],
)
def test_nothing_is_acknowledged_after_the_database_was_replaced(tmp_path, server, attack):
    for _ in range(5):
        assert server.ask("accept") == "accepted"
    attack(tmp_path / "data" / "state.db", server)
    assert_ends(server)


@pytest.mark.parametrize(
    "attack", [write_something_else_to_the_log, overwrite_the_log_with_another]
)
def test_an_overwritten_log_is_not_moved_into_the_database(tmp_path, server, attack):
    path = tmp_path / "data" / "state.db"
    assert server.ask("accept") == "accepted"
    attack(path, server)
    assert_ends(server)
    assert foreign(path, "PRAGMA integrity_check") == [["ok"]]


def rename(path, server):
    """`mv other.db state.db`"""
    other = path.parent.parent / "other.db"
    other_store(other)
    shutil.copyfile(other, path.parent / "new.db")
    (path.parent / "new.db").rename(path)


@pytest.mark.parametrize("attack", [overwrite, rename])
@pytest.mark.parametrize("stops", [False, True])
def test_a_file_that_was_put_in_the_place_of_the_database_stays_as_it_is(
    tmp_path, server, attack, stops
):
    """The WAL file, which SQLite would move into it, is kept under another name."""
    path = tmp_path / "data" / "state.db"
    for _ in range(5):
        assert server.ask("accept") == "accepted"
    attack(path, server)
    if stops:  # without another message
        _, errors = server.process.communicate(timeout=30)
        assert server.process.returncode != 0
        assert "while in use; the write-ahead log is kept as state.db-wal.lost-" in errors
    else:
        assert_ends(server)
    assert path.read_bytes() == (tmp_path / "other.db").read_bytes()
    assert len(list(path.parent.glob("state.db-wal.lost-*"))) == 1
    with running(path) as again:
        assert again.ask("accept") == "accepted"
    assert foreign(path, "SELECT count(*) FROM sessions WHERE id GLOB 'o*'") == [[50]]
    assert foreign(path, "PRAGMA integrity_check") == [["ok"]]


def test_the_log_of_another_database_is_not_used(tmp_path, server):
    path = tmp_path / "data" / "state.db"
    for _ in range(5):
        assert server.ask("accept") == "accepted"
    overwrite_the_log_with_another(path, server)
    assert_ends(server)
    assert len(list(path.parent.glob("state.db-wal.lost-*"))) == 1
    assert foreign(path, "SELECT count(*) FROM sessions WHERE id = 'o'") == [[0]]


def assert_ends(server):
    assert server.ask("accept") == ""
    _, errors = server.process.communicate(timeout=30)
    assert server.process.returncode != 0
    assert "StoreFailed" in errors


@pytest.mark.parametrize("had_runtime", [False, True])
@pytest.mark.parametrize("still_reads", [False, True])
def test_it_is_noticed_if_another_process_read_the_file_at_the_start(
    tmp_path, had_runtime, still_reads
):
    """The first checkpoint then cannot move the stamp into the file."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "state.db"
    with SessionStore(path) as store:
        store.create_session("before")
    if had_runtime:
        with running(path) as server:
            assert server.ask("accept") == "accepted"
    with ExitStack() as at_end:
        reader = at_end.enter_context(ExitStack())
        reader.enter_context(foreign_reader(path))
        server = at_end.enter_context(running(path))
        if not still_reads:
            reader.close()
        overwrite(path, server)
        assert_ends(server)


def test_readers_from_before_the_start_do_no_harm(tmp_path):
    """Each lets checkpoints go on to where it began, which may be before the first stamp."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "state.db"
    with ExitStack() as at_end:
        readers = [at_end.enter_context(ExitStack()) for _ in range(3)]
        for number, reader in enumerate(readers):
            foreign_store(path, "create_session", f"s{number}")
            reader.enter_context(foreign_reader(path))
        server = at_end.enter_context(running(path))
        for reader in readers:
            reader.close()
            foreign(path, "PRAGMA wal_checkpoint(PASSIVE)")
            assert server.ask("accept") == "accepted"
        overwrite(path, server)
        assert_ends(server)


def test_a_reader_after_vacuum_does_no_harm(tmp_path, server):
    """A checkpoint then may overwrite the old place of the stamp, but not write the new one."""
    path = tmp_path / "data" / "state.db"
    place = "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_sequence'"
    before = foreign(path, place)
    assert server.ask("accept") == "accepted"
    foreign(path, "PRAGMA auto_vacuum = FULL; VACUUM")
    assert foreign(path, place) != before
    with foreign_reader(path):
        assert server.ask("accept") == "accepted"
        foreign(path, "PRAGMA wal_checkpoint(PASSIVE)")
        assert server.ask("accept") == "accepted"
        overwrite(path, server)
        assert_ends(server)


def test_pages_that_are_not_in_the_file_yet_do_no_harm(tmp_path, server):
    """An incomplete checkpoint may move the number of pages into the file, but not all of them."""
    path = tmp_path / "data" / "state.db"
    assert server.ask("accept") == "accepted"
    foreign(path, "BEGIN; CREATE TABLE last (a); INSERT INTO last VALUES (1); COMMIT")
    with foreign_reader(path):
        foreign(path, "UPDATE last SET a = 2")
        foreign(path, "PRAGMA wal_checkpoint(PASSIVE)")
        pages = int.from_bytes(path.read_bytes()[28:32], "big")
        assert pages * 4096 > path.stat().st_size
        assert server.ask("accept") == "accepted"
        os.truncate(path, path.stat().st_size // 2)
        assert_ends(server)


def test_other_processes_that_checkpoint_and_vacuum_do_no_harm(tmp_path, server):
    path = tmp_path / "data" / "state.db"
    for _ in range(3):
        assert server.ask("accept") == "accepted"
        other_store(path) if foreign(path, "SELECT count(*) FROM sessions")[0][0] < 50 else None
        foreign(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        assert server.ask("accept") == "accepted"
        foreign(path, "VACUUM")
        assert server.ask("accept") == "accepted"
        foreign(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        assert server.ask("accept") == "accepted"
        assert server.ask("checkpoint") == "moved"


# Damage that a reader finds


def _zero_pages(path, *, root_of):
    """Overwrite a table's root page with zeros, as a failing disk would, and keep the file's times.

    Returns after another connection has made the readers forget what they have in memory.
    """
    page = foreign(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", root_of)[0][0]
    foreign(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))
    foreign(path, "INSERT INTO meta (key, value) VALUES ('seen', 'by readers')")


async def test_damage_that_a_reader_finds_ends_the_store(path):
    async def run():
        async with open_store(path) as store:
            await store.create_session("s")
            await trio.to_thread.run_sync(lambda: _zero_pages(path, root_of="sessions"))
            with pytest.raises(StoreFailed, match="damaged"):
                await store.get_session("s")
            with pytest.raises(StoreFailed):
                await store.get_meta("seen")
            await trio.sleep_forever()

    with trio.fail_after(20), pytest.raises(StoreFailed, match="damaged"):
        await run()


async def test_damage_that_a_long_read_finds_ends_the_store(path, tmp_path):
    async def run():
        async with open_store(path) as store:
            await store.create_session("s")
            await trio.to_thread.run_sync(lambda: _zero_pages(path, root_of="sessions"))
            with pytest.raises(StoreFailed, match="damaged"):
                await store.run_beside(lambda db: db.execute("SELECT * FROM sessions").fetchall())
            await trio.sleep_forever()

    with trio.fail_after(20), pytest.raises(StoreFailed, match="damaged"):
        await run()


async def test_a_damaged_search_index_ends_only_the_search(path):
    async with open_store(path) as store:
        await store.append_message(await store.create_session("s"), "user", "apples")
        assert len(await store.search_messages("apples")) == 1
        await store.transact(
            lambda tx: tx.run("UPDATE stems_data SET block = x'00' WHERE id <> 10")
        )
        with pytest.raises(StoreFailed, match="damaged"):
            await store.search_messages("apples")
        await store.rebuild_search()
        assert len(await store.search_messages("apples")) == 1


def test_the_stamp_is_found_after_many_checkpoints(path):
    """The number of rows in `sqlite_sequence` does not grow, and ids go on as before."""

    async def run():
        for _ in range(3):
            async with open_store(path) as store:
                for _ in range(3):
                    await store.create_session(None)
                    await store.run_alone(lambda db: db.checkpoint())

    trio.run(run)
    with apsw.Connection(str(path)) as db:
        rows = db.execute("SELECT name, count(*) FROM sqlite_sequence GROUP BY name").fetchall()
        assert ("hermes stamp", 1) in rows
        assert db.execute("SELECT max(no) FROM sessions").fetchall() == [(9,)]


async def test_the_stamp_is_in_the_file_soon_after_the_reader_has_ended(path):
    SessionStore(path).close()
    with ExitStack() as reader:
        reader.enter_context(foreign_reader(path))
        async with open_store(path) as store:
            await store.create_session("s")
            assert b"hermes stamp" not in path.read_bytes()
            reader.close()
            for _ in range(2):  # the first is answered before the checkpoint that follows it
                await store.create_session(None)
            assert b"hermes stamp" in path.read_bytes()
