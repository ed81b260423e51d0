"""C7: files of every schema version are migrated completely, or left as they are."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
from pathlib import Path

import apsw
import pytest

from hermes import Inbound
from hermes.errors import StoreRefused, UnknownSession
from hermes.messages import InboxReply
from hermes.store import SessionStore
from hermes.store.sqlite.schema import APPLICATION_ID, MIGRATIONS
from tests.support.folders import quick_folder
from tests.support.migrating import ROWS, open_server

CURRENT = len(MIGRATIONS)
OLDER = range(1, CURRENT)
SESSIONS = 1000


# Files


@pytest.fixture(scope="module")
def server():
    """Processes that are killed or run out of disk."""
    with open_server() as opened:
        yield opened


@pytest.fixture(scope="module")
def originals(server):
    """The folder with a file of each version; they must not be opened."""
    with quick_folder() as folder:
        for version in range(1, CURRENT + 1):
            for sessions in (SESSIONS, 20):
                path = folder / f"{version}-{sessions}" / "state.db"
                path.parent.mkdir()
                server.build(path, version, sessions)
                assert Path(f"{path}-wal").stat().st_size > 10_000
        yield folder


@pytest.fixture
def folder():
    """A folder for copies."""
    with quick_folder() as opened:
        yield opened


@pytest.fixture
def fixture(originals, folder):
    """Copy a file of a version, together with its WAL."""
    numbers = itertools.count()

    def copy(version, sessions=SESSIONS):
        target = folder / f"copy{next(numbers)}"
        shutil.copytree(originals / f"{version}-{sessions}", target)
        (target / "state.db-shm").unlink(missing_ok=True)  # as after a crash of the machine
        return target / "state.db"

    return copy


def rows_of(path):
    """Return the content of a file, without our code and without writing to it."""
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
    """Return the content that must be there afterwards, from a copy of the file."""
    scratch = path.parent.with_name(f"{path.parent.name}-reference")
    shutil.copytree(path.parent, scratch)
    return rows_of(scratch / "state.db")


def check(path, rows, sessions):
    """Check that the content is complete, the schema is current, and the store works."""
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


# Migration


@pytest.mark.parametrize("version", range(1, CURRENT + 1))
def test_a_file_of_each_version_opens_with_all_its_content(fixture, version):
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
    with SessionStore(backup) as store:  # it can be used instead of the original
        assert store.integrity_check() == []
    check(backup, rows, SESSIONS)


def test_inbox_ids_and_their_sequence_survive(fixture):
    path = fixture(8)
    db = apsw.Connection(str(path))
    insert = (
        "INSERT INTO inbox (id, platform, account, event_id, session_key, session_id, epoch, body, "
        "accepted_at) VALUES (?, 'embedded', '', ?, 'k', 's2', 1, ?, 5)"
    )
    body = json.dumps({"session_key": "k", "event_id": "kept", "text": "hello"})
    db.execute(insert, (41, "kept", body))
    db.execute(insert, (99, "gone", body))
    db.execute("DELETE FROM inbox WHERE id = 99")
    db.close()
    with SessionStore(path) as store:
        again = store.accept(Inbound("k", "kept", "hello", per_conversation=True))
        assert (again.receipt.inbox_id, again.duplicate) == (41, True)
        [row] = store.open_inbox("k")
        assert (row.inbox_id, row.inbound.text) == (41, "hello")
        assert store.accept(Inbound("k", "new", "hello")).receipt.inbox_id == 100


def test_a_session_belongs_to_the_keys_whose_routes_name_it(fixture):
    path = fixture(9)
    db = apsw.Connection(str(path))
    db.execute("UPDATE sessions SET session_key = 'a' WHERE id IN ('s2', 's4', 's6')")
    db.execute(
        "UPDATE sessions SET kind = 'compression', parent_no = 2 WHERE id = 's4'; "
        "UPDATE sessions SET ended_at = 5, end_reason = 'compression' WHERE id = 's2'"
    )
    insert = "INSERT INTO routes (session_key, session_id, epoch, last_active) VALUES (?, ?, 1, 5)"
    for key, session_id in (("a", "s4"), ("behind", "s2"), ("b", "s4"), ("c", "s8"), ("d", "s6")):
        db.execute(insert, (key, session_id))
    db.close()
    with SessionStore(path) as store:
        reached = {
            key: [i for i in ("s2", "s4", "s6", "s8", "s10") if store.find(i, session_key=key)]
            for key in ("a", "behind", "b", "c", "d", "e")
        }
        assert reached == {
            "a": ["s2", "s4", "s6"], "behind": ["s2", "s4"], "b": ["s2", "s4"], "c": ["s8"],
            "d": ["s6"], "e": [],
        }  # fmt: skip
        store.new_session("b")
        assert store.switch("b", "title 4").session_id == "s4"
        assert store.switch("a", "title 2").session_id == "s4"
        with pytest.raises(UnknownSession):
            store.switch("c", "s4")
        assert store.integrity_check() == []


def test_the_questions_of_an_earlier_version_are_shown_to_later_commands(fixture):
    path = fixture(10)
    db = apsw.Connection(str(path))
    for number, accepted_at in ((3, 10), (4, 30)):
        body = json.dumps({"session_key": "k", "event_id": f"e{number}", "text": "/approve"})
        db.execute(
            "INSERT INTO inbox (id, platform, account, event_id, scope, session_key, session_id, "
            "epoch, body, accepted_at) VALUES (?1, 'embedded', '', 'e' || ?1, '', 'k', 's2', 1, "
            "?2, ?3)",
            (number, body, accepted_at),
        )
    db.execute(
        "INSERT INTO approvals (asked_of, session_key, tool, arguments, asked_at, expires_at) "
        "VALUES ('k', 'k', 'mail', '{}', 20, 1e12)"
    )
    db.close()
    with SessionStore(path) as store:
        assert store.decide_approval("k", 1, approve=True, before=3) is None
        assert [call.approval_id for call in store.open_approvals("k", 4)] == [1]
        assert store.decide_approval("k", 1, approve=True, before=4).state == "approved"


def test_the_end_of_a_turn_no_longer_shows_its_questions(fixture):
    path = fixture(11)
    db = apsw.Connection(str(path))
    db.execute(
        "INSERT INTO inbox (id, platform, account, event_id, scope, session_key, session_id, "
        "epoch, body, accepted_at) VALUES (3, 'embedded', '', 'e', '', 'k', 's2', 1, ?, 10)",
        (json.dumps({"session_key": "k", "event_id": "e", "text": "hello"}),),
    )
    db.execute(
        "INSERT INTO approvals (asked_of, session_key, tool, arguments, asked_at, expires_at, "
        "turn_id) VALUES ('k', 'k', 'mail', '{}', 20, 1e12, 3)"
    )
    db.close()
    with SessionStore(path) as store:
        store.answer(InboxReply(session_key="k", inbox_ids=[3]))
        late = store.accept(Inbound("k", "late", "/approve", command=True)).receipt.inbox_id
        assert store.open_approvals("k", late) == []
        store.mark_shown({1: 3})
        assert [call.approval_id for call in store.open_approvals("k", late)] == [1]


def test_a_file_stays_as_it_is_if_the_last_step_fails(fixture):
    path = fixture(1)
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE wrong_codes (n)")  # a later step creates a table of this name
    db.close()
    rows = reference(path)
    with pytest.raises(StoreRefused, match="wrong_codes"):
        SessionStore(path)
    assert version_of(path) == (1, APPLICATION_ID)
    assert rows_of(path) == rows
    tables = apsw.Connection(str(path)).execute("SELECT name FROM sqlite_schema").fetchall()
    assert ("routes",) not in tables, "the steps before it are undone"


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
def test_leftovers_of_older_versions_are_cleaned_up_once(fixture, version):
    path = fixture(version, 20)
    with SessionStore(path) as store:
        assert store.get_session("ghost") is None
        assert store.get_session("orphan").end_reason == "orphaned_compression"
        assert store.get_session("s1").end_reason is None
        store.create_session("tui", "tui", started_at=1.0)
        store.end_session("tui", "cli_close")
    with SessionStore(path) as store:  # the second opening cleans up nothing
        assert store.get_session("tui")


def test_a_current_file_is_not_cleaned_up(fixture):
    with SessionStore(fixture(CURRENT, 20)) as store:
        assert store.get_session("ghost")
        assert store.get_session("orphan").end_reason is None


# Interrupted migrations


@pytest.mark.parametrize("version", [0, *OLDER])
def test_a_kill_at_every_statement_of_a_migration_loses_nothing(
    fixture, folder, server, version, prove, campaign
):
    def fresh():
        if version:
            return fixture(version, 20)
        new = folder / f"new{len(list(folder.iterdir()))}"
        new.mkdir()
        return new / "state.db"

    rows = reference(fresh()) if version else None
    statements = server.open_until(fresh(), 0)
    assert statements > 20
    # A file of the first version meets every migration, and so all the statements of the others.
    step = 1 if prove or version in {0, *OLDER[:1], *OLDER[-1:]} else 6
    for nth in range(1 + version % step, statements + 1, step):
        for _ in range(3 if prove else 1):
            path = fresh()
            assert server.open_until(path, nth) is None
            with SessionStore(path) as store:
                assert store.integrity_check() == []
                # A kill between the migration and the cleanup must not prevent the cleanup.
                assert store.get_session("ghost") is None, f"killed at statement {nth}"
            if rows is not None:
                check(path, rows, 20)
            shutil.rmtree(path.parent)
            campaign.count(kills=1)


@pytest.mark.parametrize("version", OLDER)
def test_a_migration_that_is_killed_repeatedly_completes(fixture, server, version):
    path = fixture(version, 20)
    rows = reference(path)
    for nth in range(5, 60, 6):
        server.open_until(path, nth)
    SessionStore(path).close()
    check(path, rows, 20)


def only_the_ends(version, prove):
    if not prove and version not in {OLDER[0], OLDER[-1]}:
        pytest.skip("only with --prove")


@pytest.mark.parametrize("version", OLDER)
def test_a_full_disk_leaves_the_old_version(fixture, server, version, prove):
    """Files may have a maximal number of bytes, from none to enough."""
    only_the_ends(version, prove)
    path = fixture(version)
    rows = reference(path)
    size = Path(f"{path}-wal").stat().st_size
    refusals = 0
    for limit in [*range(0, 2 * size, size // 10), 10 * size]:
        target = fixture(version)
        refusal = server.open_limited(target, limit)
        if refusal is not None:
            refusals += 1
            assert len(refusal.splitlines()) == 1
            assert str(target) in refusal
            assert version_of(target)[0] in range(version, CURRENT)
        SessionStore(target).close()  # there is space again
        check(target, rows, SESSIONS)
        shutil.rmtree(target.parent)
    assert refusals > 3
    assert refusal is None


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of a given size; the test is skipped if that is not allowed."""
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
def test_a_disk_that_runs_full_leaves_the_old_version(fixture, small_disk, server, version, prove):
    only_the_ends(version, prove)
    path = fixture(version)
    rows = reference(path)
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    refusals = 0
    for tenths in range(0, 40, 3):
        folder = small_disk(size + 32768 + size * tenths // 10)
        shutil.copytree(path.parent, folder, dirs_exist_ok=True)
        target = folder / "state.db"
        refusal = server.open_limited(target)
        if refusal is not None:
            refusals += 1
            assert len(refusal.splitlines()) == 1
            assert str(target) in refusal
        roomy = folder.with_name(f"roomy{tenths}")
        shutil.copytree(folder, roomy)
        assert version_of(roomy / "state.db")[0] in range(version, CURRENT + 1)
        SessionStore(roomy / "state.db").close()
        check(roomy / "state.db", rows, SESSIONS)
    assert refusals >= 1  # the last step needs little space
    assert refusal is None


# Refused files


def settle(path):
    """Move the WAL into the file."""
    db = apsw.Connection(str(path))
    db.execute("SELECT count(*) FROM sessions").fetchall()
    db.close()
    assert not Path(f"{path}-wal").exists()


def digest(path):
    files = (path, Path(f"{path}-wal"))
    return [hashlib.sha256(f.read_bytes()).hexdigest() if f.exists() else None for f in files]


@pytest.mark.parametrize("logged", [True, False], ids=["with a WAL", "without a WAL"])
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
def test_an_unsuitable_file_is_refused_and_not_changed(
    fixture, server, version, pragma, words, logged
):
    path = fixture(version, 20)
    server.set_pragma(path, pragma)
    assert Path(f"{path}-wal").stat().st_size > 0
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


def test_an_empty_file_becomes_a_new_store(tmp_path):
    path = tmp_path / "state.db"
    path.touch()
    with SessionStore(path) as store:
        store.create_session("s")
    assert {file.name for file in tmp_path.iterdir()} == {"state.db", "state.db.lock"}
    assert version_of(path) == (CURRENT, APPLICATION_ID)
