"""The PostgreSQL servers of the tests: they hold what they promise, and leave nothing behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres_databases import plain
from tests.support.postgres_server import Installation, PostgresServer

PROGRAM = """
from tests.support.postgres_databases import plain
from tests.support.postgres_server import running_server
with running_server() as server:
    print(server.installation.folder, flush=True)
    input()
"""
ROOT = Path(__file__).parents[2]


def ask(url, statement):
    with psycopg.connect(url, autocommit=True) as db:
        return db.execute(statement).fetchone()[0]


def test_a_database_is_empty_for_each_test(postgres):
    with psycopg.connect(plain(postgres.shared())) as db:
        db.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, parent int)")
        db.execute("INSERT INTO t (parent) VALUES (1), (2)")
    with psycopg.connect(plain(postgres.shared())) as db:
        assert db.execute("SELECT * FROM t").fetchall() == []
        assert db.execute("INSERT INTO t DEFAULT VALUES RETURNING id").fetchone() == (1,)
        db.execute("DROP TABLE t")


def test_a_connection_that_a_test_left_does_not_block_the_next(postgres):
    left = psycopg.connect(plain(postgres.shared()))
    left.execute("CREATE TABLE IF NOT EXISTS held (id int)")
    left.execute("LOCK TABLE held")
    postgres.shared()
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    left.close()


def test_a_server_can_crash_and_start_again(postgres_server):
    with psycopg.connect(postgres_server.url) as db:
        db.execute("CREATE TABLE t AS SELECT 7 AS id")
    postgres_server.restart("immediate")
    assert ask(postgres_server.database_url("postgres", tcp=True), "SELECT id FROM t") == 7
    assert ask(postgres_server.url, "SHOW fsync") == "on"


def test_a_standby_can_be_promoted():
    with Installation() as installation:
        primary = PostgresServer(installation)
        primary.create()
        primary.start()
        standby = PostgresServer(installation)
        standby.copy(primary)
        standby.start()
        assert ask(standby.url, "SELECT pg_is_in_recovery()")
        primary.stop("immediate")
        standby.promote()
        assert not ask(standby.url, "SELECT pg_is_in_recovery()")


def test_a_server_that_cannot_start_says_why():
    with Installation() as installation:
        server = PostgresServer(installation, no_such_setting="on")
        server.create()
        with pytest.raises(RuntimeError, match="no_such_setting"):
            server.start()
        folder = installation.folder
    assert not folder.exists()


def test_a_server_ends_with_a_killed_process_of_the_tests():
    program = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        folder = Path(process.stdout.readline().strip())
        assert processes_in(folder)
        process.send_signal(signal.SIGKILL)
        process.stdout.read()  # ends when the last process that has it ends: the guard
    assert not folder.exists()
    assert not processes_in(folder)


def processes_in(folder):
    """The processes whose working directory is in this folder, which may have been removed."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [process] if str((process / "cwd").readlink()).startswith(str(folder)) else []
    return found
