"""`export`, `import` and `backup`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import apsw
import pytest

from hermes.store import SessionStore
from hermes.store.sqlite.copies import backups
from tests.support.agent_homes import Home
from tests.support.store_cli import HOSTILE, in_subprocess, json_lines, run


def test_an_export_can_be_imported_elsewhere(filled, tmp_path):
    other = tmp_path / "other.db"
    exported = run("export", "--all", "--db", filled, check=0).stdout
    done = run("import", "-", "--db", other, text=exported, check=0)
    assert done.stdout == "Imported 4 sessions, 8 messages.\n"
    assert run("export", "--all", "--db", other, check=0).stdout == exported
    again = run("import", "-", "--json", "--db", other, text=exported, check=0)
    [result] = json_lines(again)
    assert (result["sessions"], sorted(result["skipped"])) == (0, ["evil", "old", "talk", "talk-2"])


def test_an_export_escapes_control_characters(filled):
    exported = run("export", "evil", "--db", filled, check=0).stdout
    assert json.loads(exported)["messages"][0]["content"].startswith(HOSTILE)
    assert "\x9b" not in exported
    assert "\u202e" not in exported


def test_an_export_to_a_file_is_complete_and_private(filled, tmp_path):
    target = tmp_path / "talk.jsonl"
    done = run("export", "The time", "old", "old", "-o", target, "--db", filled, check=0)
    assert done.stdout.startswith(f"Exported 2 sessions to {target} (")
    assert target.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == ["talk-2", "old"]
    done = run("export", "old", "-o", target, "--db", filled)
    assert (done.returncode, done.stderr) == (
        3,
        f"{target} already exists; choose another file name\n",
    )
    [result] = json_lines(
        run("export", "old", "-o", tmp_path / "b.jsonl", "--json", "--db", filled, check=0)
    )
    assert result == {
        "sessions": 1,
        "file": str(tmp_path / "b.jsonl"),
        "bytes": (tmp_path / "b.jsonl").stat().st_size,
    }
    assert list(tmp_path.glob("*.partial")) == []


def test_an_export_that_fails_leaves_nothing_behind(filled, tmp_path):
    with SessionStore(filled) as store:
        store.create_session("wide", "cli")
        store.append_message("wide", "user", "word " * 100_000)
    target = tmp_path / "wide.jsonl"
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 64; exec "$@"', "-", sys.executable, "-m", "hermes.store",
         "export", "wide", "-o", str(target), "--db", str(filled)],
        capture_output=True, text=True, timeout=60, check=False,
        # Coverage could not write its data file under this limit.
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "File too large" in done.stderr
    assert list(tmp_path.glob("wide*")) == []


def test_export_needs_sessions_or_all(filled):
    for arguments in ([], ["old", "--all"]):
        done = run("export", *arguments, "--db", filled)
        assert (done.returncode, done.stdout) == (2, "")
    assert run("export", "old", "nobody", "--db", filled).returncode == 1


def test_an_invalid_file_imports_nothing(tmp_path):
    (tmp_path / "lines").write_text('{"format": "nonsense\x1b"}\n')
    done = run("import", tmp_path / "lines", "--db", tmp_path / "new.db")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("line 1 is not an exported session")
    assert run("import", tmp_path / "nobody", "--db", tmp_path / "new.db").returncode == 3
    assert run("import", tmp_path, "--db", tmp_path / "new.db").returncode == 3


def test_a_file_that_is_not_utf8_imports_nothing(filled, tmp_path):
    with SessionStore(filled) as store:
        lines = [store.export_session("old").encode(), store.export_session("talk").encode()]
    lines[1] = lines[1].replace(b"talk", b"t\xe4lk")
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    done = run("import", tmp_path / "lines", "--db", tmp_path / "new.db")
    assert (done.returncode, done.stdout) == (3, "")
    wrong = lines[1].index(b"\xe4") + 1
    assert done.stderr == f"line 2 is not UTF-8, from byte {wrong} on\n"
    assert not (tmp_path / "new.db").exists()


def test_line_separators_inside_of_a_message_do_not_end_the_line(path, tmp_path):
    with SessionStore(path) as store:
        store.create_session("s")
        store.append_message("s", "user", "a\u2028b\u2029c\x85d")
        (tmp_path / "lines").write_text(store.export_session("s") + "\r\n\n")
    done = run("import", tmp_path / "lines", "--db", tmp_path / "new.db", check=0)
    assert done.stdout == "Imported 1 session, 1 message.\n"
    with SessionStore(tmp_path / "new.db") as store:
        assert store.get_messages("s")[0].content == "a\u2028b\u2029c\x85d"


def test_a_home_is_imported_with_a_report(tmp_path, path):
    home = Home(tmp_path / "home")
    home.session("root", "one", ended_at=1, end_reason="compression")
    home.session("a", "two", parent_session_id="root")
    home.session("b", "three\x1b", parent_session_id="root", ended_at=1, end_reason="x")
    home.session("bad\x1b[2J", "four")
    home.routes({"agent:main:telegram:dm:1": home.entry(1, "a", suspended=True)})
    home.close()
    done = run("import", home.path, "--db", path, check=0)
    rows = [line.split() for line in done.stdout.splitlines()]
    for row in (
        ["sessions", "3", "0", "1"],
        ["messages", "3", "0", "1"],
        ["routes", "1", "0", "0"],
    ):
        assert row in rows
    assert "imported as a fork" in done.stdout
    assert "was suspended; it continues" in done.stdout
    assert "\x1b" not in done.stdout
    [result] = json_lines(run("import", home.path / "state.db", "--json", "--db", path, check=0))
    assert result["sessions"] == {"imported": 0, "already_present": 3, "skipped": 1}
    assert {note["code"] for note in result["notes"]} == {"fork", "bad-id", "suspended"}


def test_the_report_names_what_was_cleaned_up_after_an_import(tmp_path, path):
    home = Home(tmp_path / "home")
    home.session("root", "one", ended_at=1, end_reason="compression")
    for number in range(4):
        parent = home.session(f"p{number}", "x", ended_at=1, end_reason="compression")
        home.session(f"c{number}", "x", parent_session_id=parent, started_at=1, api_call_count=0)
    home.close()
    with SessionStore(path) as store:
        store.create_session("ghost", "tui", started_at=1)
        store.end_session("ghost", "tui_close")
    done = run("import", home.path, "--db", path, check=0)
    assert "compression: 4 sessions (c0, c1, c2 …).\n" in done.stdout
    assert "ended: 1 session (ghost).\n" in done.stdout
    [result] = json_lines(run("import", home.path, "--json", "--db", path, check=0))
    assert (result["finalized_orphans"], result["pruned_ghosts"]) == ([], [])


def test_an_import_creates_the_default_file(tmp_path, filled):
    exported = run("export", "old", "--db", filled, check=0).stdout
    env = {"XDG_DATA_HOME": str(tmp_path / "data")}
    run("import", "-", text=exported, env=env, how=in_subprocess, check=0)
    assert [
        line["id"]
        for line in json_lines(run("list", "--json", env=env, how=in_subprocess, check=0))
    ] == ["old"]


def test_a_backup_is_a_usable_database(filled, tmp_path):
    target = tmp_path / "copy.db"
    done = run("backup", target, "--db", filled, check=0)
    assert done.stdout.startswith(f"Copied to {target} (")
    assert run("export", "--all", "--db", target, check=0).stdout == (
        run("export", "--all", "--db", filled, check=0).stdout
    )
    assert run("backup", target, "--db", filled).returncode == 3
    [result] = json_lines(run("backup", tmp_path / "b.db", "--json", "--db", filled, check=0))
    assert result["bytes"] == (tmp_path / "b.db").stat().st_size


def test_a_backup_is_a_snapshot_while_others_write(filled, tmp_path):
    with SessionStore(filled) as store, SessionStore(filled) as other:
        store.create_session("wide", "cli")
        store.append_message("wide", "user", "word " * 2_000_000)
        steps = []

        def write(done, total):
            steps.append((done, total))
            other.append_message("wide", "user", f"meanwhile {done}")

        store.backup(tmp_path / "copy.db", progress=write)
    assert len(steps) > 2
    assert steps == sorted(set(steps))  # it never started again
    assert steps[-1][0] == steps[-1][1]
    with SessionStore(tmp_path / "copy.db") as copy:
        assert copy.get_session("wide").message_count == 1
        assert copy.integrity_check() == []


def test_a_backup_that_is_interrupted_leaves_nothing_behind(filled, tmp_path):
    def interrupt(_done, _total):
        raise KeyboardInterrupt

    with SessionStore(filled) as store:
        with pytest.raises(KeyboardInterrupt):
            store.backup(tmp_path / "copy.db", progress=interrupt)
        store.append_message("evil", "user", "the store still works")
    assert list(tmp_path.glob("copy*")) == []


@pytest.mark.parametrize("replace", [False, True])
def test_a_backup_is_not_changed_by_the_log_of_an_earlier_database(filled, tmp_path, replace):
    target = tmp_path / "copy.db"
    with SessionStore(target) as earlier:
        for n in range(9):
            earlier.create_session(f"earlier {n}", "cli")
        shutil.copyfile(f"{target}-wal", tmp_path / "kept")
    (tmp_path / "kept").rename(f"{target}-wal")
    (tmp_path / "copy.db-journal").write_bytes(b"of an earlier transaction")
    if replace:
        db = apsw.Connection(str(filled))
        backups.backup(db, target, replace=True)
        db.close()
    else:
        target.unlink()
        run("backup", target, "--db", filled, check=0)
    assert sorted(path.name for path in tmp_path.glob("copy.db-*")) == []
    with SessionStore(target) as copy, SessionStore(filled) as store:
        ids = [[each.session.id for each in opened.list_sessions()] for opened in (copy, store)]
        assert copy.integrity_check() == []
    assert ids[0] == ids[1]


@pytest.mark.parametrize("suffix", [".partial", "-wal"])
def test_a_folder_in_the_way_of_a_backup_is_named(filled, tmp_path, suffix):
    obstacle = tmp_path / f"copy.db{suffix}"
    obstacle.mkdir()
    done = run("backup", tmp_path / "copy.db", "--db", filled)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{obstacle} cannot be removed: Is a directory\n"
    assert list(tmp_path.glob("copy*")) == [obstacle]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("cat /dev/zero", "line 1 is longer than 268435456 bytes"),
        ("yes word", "line 1 is not an exported session: "),
    ],
)
def test_an_import_from_a_pipe_that_never_ends_stops_at_a_wrong_line(tmp_path, command, problem):
    limited = f'{command} | (ulimit -v 1500000; "$0" -m hermes.store import - --db "$1")'
    arguments = ["sh", "-c", limited, sys.executable, str(tmp_path / "new.db")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(problem)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_import_from_what_may_never_end_is_refused(tmp_path, kind):
    source = tmp_path / "source"
    if kind == "pipe":
        os.mkfifo(source)  # with nobody who writes to it
    else:
        source.symlink_to("/dev/zero")
    done = run("import", source, "--db", tmp_path / "new.db")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{source} is not a regular file; use - to read from a pipe\n"
    assert not (tmp_path / "new.db").exists()
