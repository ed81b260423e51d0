"""C7: files of every schema version migrate whole, whatever interrupts it, or are left alone."""

from __future__ import annotations

import hashlib
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from hermes.errors import StoreRefused
from hermes.store import SessionStore
from hermes.store.conversations import search
from hermes.store.schema import APPLICATION_ID, MIGRATIONS

ROOT = Path(__file__).parents[2]
CURRENT = len(MIGRATIONS)
OLDER = range(1, CURRENT)
SESSIONS = 1000
ROWS = 3
DAY = 86400.0
SPAN = 1 << 32


# Fixture files


def build(path, version, sessions=SESSIONS):
    """A file as the n-th version left it when its process was killed: the log holds it all.

    Even sessions have messages; the odd ones have none, and belong to terminals or to users.
    """
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.pragma("wal_autocheckpoint", 0)
    search.install(db)
    db.execute(MIGRATIONS[0])
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {version}")
    with db:
        for number in range(1, sessions + 1):
            rows = ROWS if number % 2 == 0 else 0
            db.execute(
                "INSERT INTO sessions (no, id, source, kind, title, started_at, last_active, seq, "
                "message_count, revision) VALUES (?, ?, 'cli', 'new', ?, ?, ?, ?, ?, ?)",
                (number, f"s{number}", f"title {number}", number, number, rows, rows, rows),
            )
            for seq in range(1, rows + 1):
                insert_message(db, number * SPAN + seq, f"word{number} row {seq}")
        insert_leftovers(db, sessions)
    for script in MIGRATIONS[1:version]:  # they take the rows over, as they did at the time
        db.execute(script)
    return db


def insert_message(db, message_id, text):
    sql = "INSERT INTO messages (id, role, content, created_at) VALUES (?, 'user', ?, 5)"
    db.execute(sql, (message_id, text))


def insert_leftovers(db, last):
    """A compression child that nobody continued, and an empty session of a terminal."""
    insert = (
        "INSERT INTO sessions (no, id, source, kind, parent_no, started_at, last_active, ended_at, "
        "end_reason, seq, message_count, revision) VALUES (?, ?, ?, ?, ?, 1, 1, ?, ?, ?, ?, ?)"
    )
    parent, child, ghost = last + 1, last + 2, last + 3
    db.execute(insert, (parent, "parent", "cli", "new", None, 1, "compression", 0, 0, 0))
    db.execute(insert, (child, "orphan", "cli", "compression", parent, None, None, 1, 1, 1))
    db.execute(insert, (ghost, "ghost", "tui", "new", None, 1, "cli_close", 0, 0, 0))
    insert_message(db, child * SPAN + 1, "the summary")


BUILD = """
import os, signal, sys
from pathlib import Path
from tests.campaigns.test_migrations import build
db = build(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def python(code, *arguments, **options):
    """Run a program to its end."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory):
    """A file of each version, with its log, as a killed process left it; do not open them."""
    folder = tmp_path_factory.mktemp("fixtures")
    for version in range(1, CURRENT + 1):
        for sessions in (SESSIONS, 20):
            path = folder / f"{version}-{sessions}" / "state.db"
            path.parent.mkdir()
            done = python(BUILD, path, version, sessions)
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert Path(f"{path}-wal").stat().st_size > 10_000
    return folder


@pytest.fixture
def fixture(fixtures, tmp_path):
    """A copy of a fixture file, together with its log."""
    number = 0

    def copy(version, sessions=SESSIONS):
        nonlocal number
        number += 1
        target = tmp_path / f"copy{number}"
        shutil.copytree(fixtures / f"{version}-{sessions}", target)
        (target / "state.db-shm").unlink(missing_ok=True)  # as after a crash of the machine
        return target / "state.db"

    return copy


def rows_of(path):
    """Everything that was in the file, read without our code; the file is not written to."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return (
            db.execute(
                "SELECT no, id, source, kind, parent_no, title, started_at, last_active, seq, "
                "message_count, revision FROM sessions WHERE id <> 'ghost' ORDER BY no"
            ).fetchall(),
            db.execute("SELECT id, role, content, created_at FROM messages ORDER BY id").fetchall(),
            db.pragma("integrity_check"),
        )
    finally:
        db.close()


def version_of(path):
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return db.pragma("user_version"), db.pragma("application_id")
    finally:
        db.close()


def reference(path):
    """What must be there afterwards, from a scratch copy of the fixture."""
    scratch = path.parent.with_name(f"{path.parent.name}-reference")
    shutil.copytree(path.parent, scratch)
    return rows_of(scratch / "state.db")


def check(path, rows, sessions):
    """Everything is there, the schema is current, and the store works."""
    assert rows_of(path) == rows
    assert version_of(path) == (CURRENT, APPLICATION_ID)
    with SessionStore(path) as store:
        assert store.integrity_check() == []
        assert store.check_search() is None
        assert len(rows[1]) == sessions // 2 * ROWS + 1
        assert [m.content for m in store.get_messages("s2")] == [
            f"word2 row {seq}" for seq in range(1, ROWS + 1)
        ]
        store.append_message("s2", "user", "and on")
        assert store.load("s2").head.message_count == ROWS + 1


# Migrating


@pytest.mark.parametrize("version", range(1, CURRENT + 1))
def test_a_file_of_each_version_opens_with_everything_in_it(fixture, version):
    path = fixture(version)
    rows = reference(path)
    SessionStore(path).close()
    check(path, rows, SESSIONS)


@pytest.mark.parametrize("version", OLDER)
def test_a_migration_makes_a_backup_first(fixture, version):
    path = fixture(version)
    rows = reference(path)
    SessionStore(path).close()
    backup = path.with_name(f"state.db.schema{version}.backup")
    assert backup.stat().st_mode & 0o777 == 0o600
    assert version_of(backup) == (version, APPLICATION_ID)
    assert rows_of(backup) == rows
    with SessionStore(backup) as store:  # it is as good as the original
        assert store.integrity_check() == []
    check(backup, rows, SESSIONS)


def test_a_current_file_is_not_backed_up(fixture):
    path = fixture(CURRENT)
    SessionStore(path).close()
    assert [file.name for file in path.parent.glob("*backup*")] == []


@pytest.mark.parametrize("version", range(1, CURRENT + 1))
def test_old_messages_can_be_searched(fixture, version):
    path = fixture(version, 20)
    with SessionStore(path) as store:
        for number in range(2, 21, 2):
            found = store.search_messages(f"word{number}")
            assert {hit.session_id for hit in found} == {f"s{number}"}
            assert len(found) == ROWS
        assert store.check_search() is None


@pytest.mark.parametrize("version", OLDER)
def test_what_older_versions_left_behind_is_tidied_once(fixture, version):
    path = fixture(version, 20)
    with SessionStore(path) as store:
        assert store.get_session("ghost") is None
        assert store.get_session("orphan").end_reason == "orphaned_compression"
        assert store.get_session("s1").end_reason is None
        store.create_session("tui", "tui", started_at=1.0)
        store.end_session("tui", "cli_close")
    with SessionStore(path) as store:  # the second opening tidies nothing
        assert store.get_session("tui")


def test_a_current_file_is_not_tidied(fixture):
    with SessionStore(fixture(CURRENT, 20)) as store:
        assert store.get_session("ghost")
        assert store.get_session("orphan").end_reason is None


# Interrupted


KILLER = """
import os, signal, sys
import apsw
from hermes.store import SessionStore

def open_until(path, left):
    statements = 0

    def trace(cursor, statement, bindings):
        nonlocal statements
        statements += 1
        if statements == left:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def hook(db):
        db.exec_trace = trace

    apsw.connection_hooks.append(hook)
    SessionStore(path).close()
    print(statements, flush=True)

for line in sys.stdin:
    left, path = line.rstrip().split(" ", 1)
    child = os.fork()
    if child == 0:
        open_until(path, int(left))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print("killed" if status == -signal.SIGKILL else f"exit {status}", flush=True)
"""


@pytest.fixture
def open_until():
    """Open a file in another process that is killed at its n-th statement.

    Says "killed", or how many statements there were.
    """
    with subprocess.Popen(
        [sys.executable, "-c", KILLER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as killer:

        def attempt(path, nth):
            killer.stdin.write(f"{nth} {path}\n")
            killer.stdin.flush()
            return killer.stdout.readline().rstrip()

        yield attempt
        killer.stdin.close()


@pytest.mark.parametrize("version", [0, *OLDER])
def test_a_kill_at_every_statement_of_a_migration_loses_nothing(
    fixture, tmp_path, open_until, version, prove
):
    def fresh():
        if version:
            return fixture(version, 20)
        folder = tmp_path / f"new{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return folder / "state.db"

    rows = reference(fresh()) if version else None
    statements = int(open_until(fresh(), 0))
    assert statements > 20
    for nth in range(1, statements + 1):
        for _ in range(3 if prove else 1):
            path = fresh()
            assert open_until(path, nth) == "killed"
            SessionStore(path).close()
            if rows is not None:
                check(path, rows, 20)
            with SessionStore(path) as store:
                assert store.integrity_check() == []
                # Migrated means tidied: a kill between the two must not leave it undone for good.
                assert store.get_session("ghost") is None, f"killed at statement {nth}"
            shutil.rmtree(path.parent)


@pytest.mark.parametrize("version", OLDER)
def test_a_migration_killed_again_and_again_arrives(fixture, open_until, version):
    path = fixture(version, 20)
    rows = reference(path)
    for nth in range(5, 60, 6):
        open_until(path, nth)
    SessionStore(path).close()
    check(path, rows, 20)


LIMITED = """
import sys
from hermes.errors import StoreRefused
from hermes.store import SessionStore
try:
    SessionStore(sys.argv[1]).close()
except StoreRefused as error:
    print(error)
    sys.exit(3)
"""


def only_the_ends(version, prove):
    if not prove and version not in {OLDER[0], OLDER[-1]}:
        pytest.skip("between the first and the last: part of make prove")


@pytest.mark.parametrize("version", OLDER)
def test_a_full_disk_leaves_the_old_version(fixture, version, prove):
    """Files may grow to so many bytes and no further, from nothing to enough."""
    only_the_ends(version, prove)
    path = fixture(version)
    rows = reference(path)
    size = Path(f"{path}-wal").stat().st_size
    refusals = 0
    for limit in [*range(0, 2 * size, size // 10), 10 * size]:
        target = fixture(version)

        def limited(limit=limit):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error instead of a signal
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        done = python(LIMITED, target, preexec_fn=limited)
        assert done.returncode in {0, 3}, (limit, done.stderr)
        if done.returncode == 3:
            refusals += 1
            assert len(done.stdout.splitlines()) == 1
            assert str(target) in done.stdout
            assert version_of(target)[0] in range(version, CURRENT)
        SessionStore(target).close()  # there is room again
        check(target, rows, SESSIONS)
        shutil.rmtree(target.parent)
    assert refusals > 3
    assert done.returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a given number of bytes; skipped where mounting is not allowed."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("only root may mount a small disk")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("version", OLDER)
def test_a_disk_that_is_really_full_leaves_the_old_version(fixture, small_disk, version, prove):
    only_the_ends(version, prove)
    path = fixture(version)
    rows = reference(path)
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    refusals = 0
    for tenths in range(1, 41, 3):
        folder = small_disk(size + 32768 + size * tenths // 10)
        shutil.copytree(path.parent, folder, dirs_exist_ok=True)
        target = folder / "state.db"
        done = python(LIMITED, target)
        assert done.returncode in {0, 3}, (tenths, done.stderr)
        if done.returncode == 3:
            refusals += 1
            assert len(done.stdout.splitlines()) == 1
            assert str(target) in done.stdout
        roomy = folder.with_name(f"roomy{tenths}")
        shutil.copytree(folder, roomy)
        assert version_of(roomy / "state.db")[0] in range(version, CURRENT + 1)
        SessionStore(roomy / "state.db").close()
        check(roomy / "state.db", rows, SESSIONS)
    assert refusals >= 2
    assert done.returncode == 0


# Refused


def alter(path, pragma):
    """Change a number in the file's header; the change lies in the log, and stays there."""
    code = """
import os, signal, sys, apsw
db = apsw.Connection(sys.argv[1])
db.pragma("wal_autocheckpoint", 0)
db.execute("PRAGMA " + sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert python(code, path, pragma).returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size > 0


def settle(path):
    """Move the log into the file."""
    db = apsw.Connection(str(path))
    db.execute("SELECT count(*) FROM sessions").fetchall()
    db.close()
    assert not Path(f"{path}-wal").exists()


def digest(path):
    files = (path, Path(f"{path}-wal"))
    return [hashlib.sha256(f.read_bytes()).hexdigest() if f.exists() else None for f in files]


@pytest.mark.parametrize("logged", [True, False], ids=["with a log", "without a log"])
@pytest.mark.parametrize(
    ("pragma", "words"),
    [
        (f"user_version = {CURRENT + 1}", "newer"),
        ("user_version = 9999", "newer"),
        ("application_id = 1234", "another program"),
        ("application_id = 0", "another program"),
    ],
)
@pytest.mark.parametrize("version", [1, CURRENT])
def test_a_file_that_is_not_for_us_is_refused_unchanged(fixture, version, pragma, words, logged):
    path = fixture(version, 20)
    alter(path, pragma)
    if not logged:
        settle(path)
    before = digest(path)
    for _ in range(2):
        with pytest.raises(StoreRefused) as caught:
            SessionStore(path)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert digest(path)[0] == before[0]
        if logged:
            assert digest(path)[1] == before[1]
    assert [file.name for file in path.parent.glob("*backup*")] == []


def test_an_empty_file_is_new(tmp_path):
    path = tmp_path / "state.db"
    path.touch()
    with SessionStore(path) as store:
        store.create_session("s")
    assert {file.name for file in tmp_path.iterdir()} == {"state.db", "state.db.lock"}
    assert version_of(path) == (CURRENT, APPLICATION_ID)
