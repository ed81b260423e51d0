"""`prune`, `check`, `vacuum` and `migrate`, unusable files, and use beside a runtime."""

from __future__ import annotations

import json
import re
from pathlib import Path

import apsw
import pytest

from hermes.settings import installation
from hermes.store import SessionStore
from hermes.store.sqlite.schema import APPLICATION_ID, MIGRATIONS
from tests.support.store_cli import COMMANDS, json_lines, run

CURRENT = len(MIGRATIONS)


def test_prune_reports_in_a_dry_run_what_it_would_delete(filled):
    done = run("prune", "--older-than", "90d", "--dry-run", "--db", filled, check=0)
    assert done.stdout.splitlines()[-1] == "Would delete 1 session with 1 message."
    assert re.search(r"^old +cli +1 +2026-", done.stdout, re.MULTILINE)
    [result] = json_lines(
        run("prune", "--older-than", "12w", "--dry-run", "--json", "--db", filled)
    )
    assert result == {"session_ids": ["old"], "messages": 1, "dry_run": True}
    assert (
        json_lines(run("prune", "--older-than", "10mo", "--yes", "--json", "--db", filled))[0][
            "messages"
        ]
        == 0
    )
    run("prune", "--platform", "telegram", "--yes", "--db", filled, check=0)
    assert run("show", "old", "--db", filled).returncode == 0
    done = run("prune", "--older-than", "3mo", "--yes", "--db", filled, check=0)
    assert done.stdout == "Deleted 1 session with 1 message.\n"
    assert run("show", "old", "--db", filled).returncode == 1


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_prune_deletes_nothing_without_a_terminal_or_an_option(filled, options):
    done = run("prune", *options, "--db", filled)
    assert done.returncode == 2
    assert done.stderr.startswith("Nothing was deleted: add --yes to delete")
    assert run("show", "old", "--db", filled).returncode == 0


def test_prune_without_anything_to_delete_asks_nothing(filled):
    done = run("prune", "--older-than", "2y", "--db", filled, check=0)
    assert done.stdout == "Deleted 0 sessions with 0 messages.\n"


@pytest.mark.parametrize("age", ["", "x", "-1d", "1e9d", "9999999d", "5 parsecs", "30", "6m"])
def test_an_invalid_age_is_a_usage_error(filled, age):
    done = run("prune", f"--older-than={age}", "--db", filled)
    assert done.returncode == 2
    assert f"{age!r} is not an age: expected a number and min, h, d, w, mo" in done.stderr
    assert ("m could be minutes or months" in done.stderr) == (age == "6m")


def test_check_reports_problems(filled, sql):
    assert run("check", "--db", filled, check=0).stdout == "No problems found.\n"
    sql("UPDATE sessions SET message_count = 7 WHERE id = 'old'")
    done = run("check", "--db", filled)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "the message counter of session old is 7 instead of 1\n"
    [result] = json_lines(run("check", "--json", "--db", filled))
    assert (result["ok"], len(result["problems"])) == (False, 1)
    sql("UPDATE sessions SET message_count = 1 WHERE id = 'old'")
    sql("DELETE FROM search_data WHERE id > 10")
    assert run("check", "--db", filled).returncode == 1


def test_check_reports_damaged_pages(filled):
    with filled.open("r+b") as file:
        file.seek(4096 * 12)
        file.write(b"\xa5" * 4096 * 4)
    done = run("check", "--db", filled)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout


def test_vacuum_shrinks_the_file(filled):
    with SessionStore(filled) as store:
        store.create_session("big", "cli")
        store.append_message("big", "user", "x" * 1_000_000)
        store.delete_session("big")
    [result] = json_lines(run("vacuum", "--json", "--db", filled, check=0))
    assert result["bytes_after"] == filled.stat().st_size < result["bytes_before"] - 900_000
    assert " KiB before, " in run("vacuum", "--db", filled, check=0).stdout


def test_migrate_reports_both_versions_and_the_backup(older):
    def version():
        return int.from_bytes(older.read_bytes()[60:64], "big")

    done = run("migrate", "--dry-run", "--db", older, check=0)
    backup = f"{older}.schema{CURRENT - 1}.backup"
    change = f"from schema {CURRENT - 1} to {CURRENT}; the backup is {backup}.\n"
    assert done.stdout == f"Would migrate {change}"
    assert version() == CURRENT - 1
    assert sorted(file.name for file in older.parent.iterdir()) == ["state.db", "state.db.lock"]
    done = run("migrate", "--db", older, check=0)
    assert done.stdout == f"Migrated {change}"
    assert version() == CURRENT
    assert Path(backup).exists()
    [result] = json_lines(run("migrate", "--json", "--db", older, check=0))
    assert result == {"from": CURRENT, "to": CURRENT, "dry_run": False, "backup": None}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "migrate"])
def test_nothing_but_migrate_changes_an_older_file(older, command):
    before = older.read_bytes()
    done = run(command, *COMMANDS[command], "--db", older)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"{older} has schema {CURRENT - 1}, but this version of Hermes needs {CURRENT}; "
        f"run: {installation.command('store migrate --db')} {older}\n"
    )
    assert older.read_bytes() == before


# Unusable files


def damaged(path):
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)


def foreign(path):
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE recipes (id)")
    db.close()


def newer(path):
    db = apsw.Connection(str(path))
    db.execute(f"CREATE TABLE x (y); PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {CURRENT + 1}")
    db.close()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_text("no database"), "not an SQLite file"),
        (damaged, "damaged"),
        (foreign, "another program"),
        (newer, "newer Hermes"),
    ],
    ids=["missing", "folder", "text", "damaged", "foreign", "newer"],
)
def test_an_unusable_file_is_reported_in_one_sentence(tmp_path, command, make, sentence):
    path = tmp_path / "state.db"
    make(path)
    before = sorted(file.name for file in tmp_path.iterdir())
    done = run(command, *COMMANDS[command], "--db", path)
    assert (done.returncode, done.stdout) == (3, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_invalid_usage_is_reported_with_exit_code_2():
    for arguments in ([], ["nonsense"], ["list", "--limit", "0"], ["list", "--ended", "--open"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "usage:" in done.stderr or "there is no command" in done.stderr
    assert "exit codes" in run("--help", check=0).stdout


# Beside a runtime


def test_commands_work_beside_a_runtime(filled, runtime, tmp_path):
    run("list", "--db", filled, check=0)
    run("show", "talk", "--db", filled, check=0)
    run("search", "noon", "--db", filled, check=0)
    exported = run("export", "--all", "--db", filled, check=0).stdout
    run("backup", tmp_path / "copy.db", "--db", filled, check=0)
    done = run("check", "--db", filled, check=0)
    assert "index was not checked, because a runtime is using the file" in done.stdout
    line = json.loads(exported.splitlines()[0]) | {"id": "another", "title": None}
    run("import", "-", "--db", filled, text=json.dumps(line), check=0)
    run("prune", "--yes", "--db", filled, check=0)


@pytest.mark.parametrize("command", ["vacuum", "migrate"])
def test_exclusive_commands_name_the_process_that_owns_the_file(filled, runtime, command):
    done = run(command, "--db", filled)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"already in use by another Hermes runtime (pid {runtime.pid})" in done.stderr
    assert done.stderr.count("\n") == 1
