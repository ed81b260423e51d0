"""An import never changes a file of the home."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import apsw
import pytest

from hermes.errors import StoreError, StoreRefused
from hermes.store.cli.opening import run_chunked
from hermes.store.import_hermes_agent.importer import Counts, import_home
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.source import open_home
from tests.support.agent_homes import NOW
from tests.support.agent_imports import checksums, run_import, texts

GATEWAY = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
print("ready", flush=True)
for line in sys.stdin:
    if line == "stop\\n":
        db.execute("INSERT INTO sessions (id, source) VALUES ('late', 'cli')")
        db.close()
        break
    db.execute(line)
    print("done", flush=True)
"""


@pytest.fixture
def gateway(home):
    """A process that has the home open, with a change in its WAL file; call it to run SQL."""
    home.session("a", "x")
    home.close()
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(home.path / "state.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"

    def run(sql):
        process.stdin.write(f"{sql}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"

    run("INSERT INTO sessions (id, source) VALUES ('in the WAL', 'cli')")
    yield run
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


IMPORT = """
import sys
from pathlib import Path
from hermes.store import SessionStore
from hermes.store.import_hermes_agent.source import open_home
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.importer import import_home
from hermes.store.cli.opening import run_chunked
with SessionStore(sys.argv[2]) as store, open_home(Path(sys.argv[1]), ImportNotes(0.0)) as home:
    print(run_chunked(store, import_home(home), lambda _: None).sessions.imported)
"""


def import_in_subprocess(folder, path):
    return subprocess.check_output(
        [sys.executable, "-c", IMPORT, str(folder), str(path)], text=True, timeout=60
    )


def test_a_home_in_use_is_read_beside_its_gateway(gateway, home, path):
    before = checksums(home.path)
    assert import_in_subprocess(home.path, path) == "2\n"
    assert checksums(home.path) == before
    gateway("INSERT INTO sessions (id, source) VALUES ('later', 'cli')")
    assert import_in_subprocess(home.path, path) == "1\n"


@pytest.mark.parametrize(
    "files", [("state.db", "state.db-wal"), None], ids=["without shm", "all files"]
)
def test_a_copied_home_is_read_with_its_wal_file(gateway, home, path, tmp_path, files):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in files or [file.name for file in home.path.iterdir()]:
        subprocess.run(["cp", home.path / name, copy / name], check=True)
    before = checksums(copy)
    assert import_in_subprocess(copy, path) == "2\n"
    assert checksums(copy) == before


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_home_that_is_not_in_use_is_not_changed(home, path, mode):
    home.session("a", "x")
    home.run(f"PRAGMA journal_mode = {mode}")
    home.close()
    before = checksums(home.path)
    home.path.chmod(0o500)
    try:
        assert import_in_subprocess(home.path, path) == "1\n"
    finally:
        home.path.chmod(0o700)
    assert checksums(home.path) == before


def test_a_hot_journal_is_not_changed(home, path, tmp_path):
    home.session("a", "x")
    home.run("PRAGMA journal_mode = delete")
    home.run("PRAGMA cache_size = 1")
    home.run("BEGIN")
    for number in range(100):
        home.session(f"undone {number}", "y" * 5000)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in home.path.iterdir():
        subprocess.run(["cp", file, copy / file.name], check=True)
    assert (copy / "state.db-journal").stat().st_size > 512
    before = checksums(copy)
    assert import_in_subprocess(copy, path) == "1\n"
    assert checksums(copy) == before


def test_a_change_during_the_import_is_noticed(home, store):
    for name in ("a", "b", "c"):
        home.session(name, "x")
    home.close()

    def change(number):
        if number == 1:
            db = apsw.Connection(str(home.path / "state.db"))
            db.execute("UPDATE messages SET content = 'changed'")
            db.close()

    with open_home(home.path, ImportNotes(NOW)) as opened:
        with pytest.raises(StoreError, match="was modified during the import"):
            run_chunked(store, import_home(opened), change)
    assert texts(store, "a") == ["x"]
    assert store.get_session("c") is None
    assert run_import(store, home.path).sessions == Counts(imported=3)


def test_a_damaged_home_is_reported(home, store):
    for number in range(200):
        home.session(f"s{number}", "text " * 100)
    home.close()
    file = home.path / "state.db"
    content = bytearray(file.read_bytes())
    content[20 * 4096 : 40 * 4096] = b"\xa5" * (20 * 4096)
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"state.db"):
        run_import(store, home.path)
    assert store.integrity_check() == []


# What may never end

ENDLESS = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n)"


@pytest.mark.parametrize("table", ["sessions", "messages", "schema_version"])
def test_a_view_instead_of_a_table_is_refused(home, tmp_path, table):
    home.session("a", "x")
    home.close()
    columns = "i AS id, 'x' AS source, 's' AS session_id, 'user' AS role, i AS version"
    with apsw.Connection(str(home.path / "state.db")) as db:
        db.execute(f"DROP TABLE IF EXISTS {table}")
        db.execute(f"CREATE VIEW {table} AS {ENDLESS} SELECT {columns} FROM n")
    with pytest.raises(StoreRefused) as refused:
        run_import(tmp_path / "new.db", home.path)
    assert str(refused.value).endswith(f"{table} is a view, not a table")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [b"platform_message_id", b"gateway_routing", b"a version"])
def test_a_name_that_is_not_utf8_is_refused(home, tmp_path, name):
    home.session("a", "x")
    home.run("INSERT INTO schema_version VALUES ('a version')")
    home.close()
    file = home.path / "state.db"
    file.write_bytes(file.read_bytes().replace(name, name.replace(b"o", b"\xeb")))
    with pytest.raises(StoreRefused) as refused:
        run_import(tmp_path / "new.db", home.path)
    assert str(refused.value).startswith(f"{file} is damaged: ")
    assert str(refused.value).endswith(" is not UTF-8")


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_device_instead_of_a_companion_file_is_refused(home, tmp_path, suffix):
    home.session("a", "x")
    home.close()
    file = home.path / "state.db"
    mode = "wal" if suffix == "-wal" else "delete"
    with contextlib.closing(apsw.Connection(str(file))) as db:
        assert db.pragma("journal_mode", mode) == mode
    (home.path / f"state.db{suffix}").symlink_to("/dev/zero")
    with pytest.raises(StoreRefused, match=r"is not a regular file"):
        run_import(tmp_path / "new.db", home.path)
