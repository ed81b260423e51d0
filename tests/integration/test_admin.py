"""`python -m hermes.store`, as people and scripts start it: piped, and at a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from hypothesis import given, strategies as st

from hermes import sanitize
from hermes.messages import Message, ToolCall
from hermes.store import Clock, Rotation, SessionStore
from hermes.store.__main__ import main
from hermes.store.cli.output import json_line, json_safe, moment, size
from hermes.store.schema import APPLICATION_ID, MIGRATIONS
from tests.integration.agent_homes import Home

NOW = 1_800_000_000.0
DAY = 86_400.0
CURRENT = len(MIGRATIONS)
ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\u202egnp.exe\r[bold]x[/bold]"
COMMANDS = {
    "list": [],
    "show": ["talk"],
    "search": ["words"],
    "export": ["--all"],
    "backup": ["/nowhere/copy.db"],
    "check": [],
    "prune": [],
    "vacuum": [],
    "migrate": [],
}


def process(*arguments, text=None, env=None):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "hermes.store", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )


def here(*arguments, text=None):
    """The command in this process, which saves the half second in which a process starts."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO((text or "").encode()))
        try:
            code = main([*map(str, arguments)])
        except SystemExit as wrong_usage:
            code = wrong_usage.code
        finally:
            sys.stdin = before
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return subprocess.CompletedProcess(arguments, code, out, err)


def run(*arguments, check=None, how=here, **options):
    done = how(*arguments, **options)
    assert "Traceback" not in done.stderr
    if check is not None:
        assert (done.returncode, done.stderr) == (check, ""), done.stdout + done.stderr
    return done


def told(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def filled(path):
    """A file with a compressed conversation, one that ended long ago, and a hostile one."""
    with SessionStore(path, clock=Clock(wall=lambda: NOW)) as store:
        store.create_session("talk", "telegram", model="big", session_key="k1", system_prompt="Hm")
        call = ToolCall("1", "clock", '{"zone": "UTC"}')
        store.append_messages(
            "talk",
            [
                Message("user", "What time is it?"),
                Message("assistant", tool_calls=(call,)),
                Message("tool", "12:00", tool_call_id="1", tool_name="clock"),
                Message("assistant", "Noon.\nOr so."),
                Message("user", "a slip"),
            ],
        )
        store.rewind("talk", store.get_messages("talk")[-1].id)
        store.set_session_title("talk", "The time")
        rotation = Rotation(
            session_id="talk",
            messages=[Message("user", "It was about noon.")],
            rotation_id="r",
            rewrites=store.head("talk").rewrites,
            upto=store.get_messages("talk")[-1].id,
            child_session_id="talk-2",
        )
        store.rotate(rotation)
        store.create_session("evil", "cli")
        store.append_message("evil", "user", f"{HOSTILE}\nsecond line")
    with SessionStore(path, clock=Clock(wall=lambda: NOW - 200 * DAY)) as store:
        store.create_session("old", "cli")
        store.append_message("old", "user", "long ago")
        store.end_session("old", "closed")
    return path


@pytest.fixture
def runtime(filled):
    """Another process that owns the file, as a bot does."""
    code = (
        "import sys, trio\nfrom hermes.store import open_store\n"
        "async def main():\n"
        "    async with open_store(sys.argv[1]):\n"
        "        print('ready', flush=True)\n"
        "        await trio.to_thread.run_sync(sys.stdin.read)\n"
        "trio.run(main)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(filled)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.communicate(timeout=30)
    assert process.returncode == 0


# Reading


def test_list_shows_conversations_at_their_tips(filled):
    done = run("list", "--db", filled, how=process, check=0)
    assert "talk-2" in done.stdout
    assert "The time #2" in done.stdout
    assert "talk " not in done.stdout
    assert "2027-01-15" in done.stdout
    assert "\x1b" not in done.stdout
    found = told(run("list", "--db", filled, "--json", check=0))
    assert {each["id"] for each in found} == {"talk-2", "evil", "old"}
    [tip] = [each for each in found if each["id"] == "talk-2"]
    assert tip["root_session_id"] == "talk"
    assert (tip["message_count"], tip["last_active"]) == (1, NOW)


def test_list_takes_filters(filled):
    def ids(*options):
        return [each["id"] for each in told(run("list", "--json", *options, "--db", filled))]

    assert ids("--key", "k1") == ["talk-2"]
    assert set(ids("--platform", "cli")) == {"evil", "old"}
    assert ids("--ended") == ["old"]
    assert set(ids("--open")) == {"talk-2", "evil"}
    assert len(ids("--limit", "1")) == 1
    assert ids("--key", "nobody") == []
    assert run("list", "--key", "nobody", "--db", filled).returncode == 1


def test_show_is_readable(filled):
    done = run("show", "The time", "--db", filled, env={"TZ": "UTC"}, how=process, check=0)
    assert done.stdout.startswith("talk-2  The time #2\ntelegram · big · k1 · compression\n")
    done = run(
        "--db",
        filled,
        "show",
        "talk-2",
        "--all",
        "--rewound",
        env={"TZ": "UTC"},
        how=process,
        check=0,
    )
    assert done.stdout.startswith(
        "talk  The time\ntelegram · big · k1 · new\nended 2027-01-15 08:00 (compression)\n\n"
        "2027-01-15 08:00:00 user\n  What time is it?\n\n"
        '2027-01-15 08:00:00 assistant\n  → clock {"zone": "UTC"}\n\n'
        "2027-01-15 08:00:00 tool clock\n  12:00\n\n"
        "2027-01-15 08:00:00 assistant\n  Noon.\n  Or so.\n\n"
        "2027-01-15 08:00:00 user (taken back)\n  a slip\n\n"
        "talk-2  The time #2\n"
    )
    assert "a slip" not in run("show", "talk", "--db", filled, check=0).stdout
    talk, tip = told(run("show", "talk-2", "--all", "--rewound", "--json", "--db", filled, check=0))
    assert [message["live"] for message in talk["messages"]] == [True] * 4 + [False]
    assert talk["messages"][1]["tool_calls"] == [
        {"id": "1", "name": "clock", "arguments": '{"zone": "UTC"}'}
    ]
    assert (talk["system_prompt"], tip["parent_session_id"]) == ("Hm", "talk")


def test_show_takes_the_beginning_of_an_id_and_says_what_it_does_not_know(filled):
    assert run("show", "ol", "--db", filled, check=0).stdout.startswith("old ")
    done = run("show", "nobody\x1b[2J", "--db", filled)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "There is no session nobody␛[2J.\n"


@pytest.mark.parametrize("command", [["show", "evil"], ["list"], ["search", "second"]], ids=str)
@pytest.mark.parametrize("how", ["piped", "json", "terminal"])
def test_a_hostile_transcript_reaches_nobody_raw(filled, command, how):
    if how == "terminal":
        shown, code = at_terminal(*command, "--db", filled)
        assert code == 0
        shown = ours_removed(shown)
    else:
        options = ["--json"] if how == "json" else []
        forced = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "CLICOLOR_FORCE": "1"}
        shown = run(*command, *options, "--db", filled, env=forced, how=process, check=0).stdout
    assert [c for c in shown if (ord(c) < 32 and c not in "\n") or 126 < ord(c) < 160] == []
    assert "\u202e" not in shown
    if command[0] == "show" and how != "json":
        assert "␛]0;owned␇" in shown
        assert "[bold]x[/bold]" in shown


def test_search_finds_words(filled):
    [hit] = told(run("search", "noon", "AND", "so", "--json", "--db", filled, check=0))
    assert (hit["session_id"], hit["role"], hit["title"]) == ("talk", "assistant", "The time")
    assert ">>>Noon<<<" in hit["snippet"]
    assert ">>>Noon<<<" in run("search", "noon", "--db", filled, check=0).stdout
    assert len(told(run("search", "noon", "--role", "user", "--json", "--db", filled))) == 1
    assert len(told(run("search", "noon", "--limit", "1", "--json", "--db", filled))) == 1
    done = run("search", "nowhere", "--db", filled)
    assert (done.returncode, done.stdout) == (1, "Nothing was found.\n")
    assert run("search", "noon", "--key", "nobody", "--db", filled).returncode == 1


# Moving


def test_an_export_can_be_imported_elsewhere(filled, tmp_path):
    other = tmp_path / "other.db"
    exported = run("export", "--all", "--db", filled, check=0).stdout
    done = run("import", "-", "--db", other, text=exported, check=0)
    assert done.stdout == "Imported 4 sessions, 8 messages.\n"
    assert run("export", "--all", "--db", other, check=0).stdout == exported
    again = run("import", "-", "--json", "--db", other, text=exported, check=0)
    [facts] = told(again)
    assert (facts["sessions"], sorted(facts["skipped"])) == (0, ["evil", "old", "talk", "talk-2"])


def test_an_export_is_ascii_where_a_terminal_would_obey(filled):
    exported = run("export", "evil", "--db", filled, check=0).stdout
    assert json.loads(exported)["messages"][0]["content"].startswith(HOSTILE)
    assert "\x9b" not in exported
    assert "\u202e" not in exported


def test_an_export_to_a_file_is_whole_and_private(filled, tmp_path):
    target = tmp_path / "talk.jsonl"
    done = run("export", "The time", "old", "old", "-o", target, "--db", filled, check=0)
    assert done.stdout.startswith(f"Exported 2 sessions to {target} (")
    assert target.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == ["talk-2", "old"]
    done = run("export", "old", "-o", target, "--db", filled)
    assert (done.returncode, done.stderr) == (3, f"{target} exists; name a file that does not\n")
    [facts] = told(
        run("export", "old", "-o", tmp_path / "b.jsonl", "--json", "--db", filled, check=0)
    )
    assert facts == {
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
        # Who measures what is covered could not write that down either.
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "File too large" in done.stderr
    assert list(tmp_path.glob("wide*")) == []


def test_export_wants_to_know_what(filled):
    for arguments in ([], ["old", "--all"]):
        done = run("export", *arguments, "--db", filled)
        assert (done.returncode, done.stdout) == (2, "")
    assert run("export", "old", "nobody", "--db", filled).returncode == 1


def test_an_import_of_nonsense_takes_nothing(tmp_path):
    (tmp_path / "lines").write_text('{"format": "nonsense\x1b"}\n')
    done = run("import", tmp_path / "lines", "--db", tmp_path / "new.db")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("line 1 is no exported session")
    assert run("import", tmp_path / "nobody", "--db", tmp_path / "new.db").returncode == 3
    assert run("import", tmp_path, "--db", tmp_path / "new.db").returncode == 3


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
    assert "kept as kind fork" in done.stdout
    assert "was suspended there" in done.stdout
    assert "\x1b" not in done.stdout
    [facts] = told(run("import", home.path / "state.db", "--json", "--db", path, check=0))
    assert facts["sessions"] == {"taken": 0, "already_here": 3, "not_taken": 1}
    assert {note["code"] for note in facts["notes"]} == {"fork", "bad-id", "suspended"}


def test_an_import_makes_the_default_file(tmp_path, filled):
    exported = run("export", "old", "--db", filled, check=0).stdout
    env = {"XDG_DATA_HOME": str(tmp_path / "data")}
    run("import", "-", text=exported, env=env, how=process, check=0)
    assert [each["id"] for each in told(run("list", "--json", env=env, how=process, check=0))] == [
        "old"
    ]


def test_a_backup_is_a_store(filled, tmp_path):
    target = tmp_path / "copy.db"
    done = run("backup", target, "--db", filled, check=0)
    assert done.stdout.startswith(f"Copied to {target} (")
    assert run("export", "--all", "--db", target, check=0).stdout == (
        run("export", "--all", "--db", filled, check=0).stdout
    )
    assert run("backup", target, "--db", filled).returncode == 3
    [facts] = told(run("backup", tmp_path / "b.db", "--json", "--db", filled, check=0))
    assert facts["bytes"] == (tmp_path / "b.db").stat().st_size


def test_a_backup_goes_on_while_others_write_and_is_of_one_moment(filled, tmp_path):
    with SessionStore(filled) as store, SessionStore(filled) as other:
        store.create_session("wide", "cli")
        store.append_message("wide", "user", "word " * 2_000_000)
        seen = []

        def write(done, total):
            seen.append((done, total))
            other.append_message("wide", "user", f"meanwhile {done}")

        store.backup(tmp_path / "copy.db", progress=write)
    assert len(seen) > 2
    assert seen == sorted(set(seen))  # it never began again
    assert seen[-1][0] == seen[-1][1]
    with SessionStore(tmp_path / "copy.db") as copy:
        assert copy.get_session("wide").message_count == 1
        assert copy.integrity_check() == []


def test_a_backup_that_is_interrupted_leaves_nothing_behind(filled, tmp_path):
    def interrupt(_done, _total):
        raise KeyboardInterrupt

    with SessionStore(filled) as store:
        with pytest.raises(KeyboardInterrupt):
            store.backup(tmp_path / "copy.db", progress=interrupt)
        store.append_message("evil", "user", "it goes on")
    assert list(tmp_path.glob("copy*")) == []


# Caring


def test_prune_says_first_what_it_would_do(filled):
    done = run("prune", "--older-than", "90d", "--dry-run", "--db", filled, check=0)
    assert done.stdout == "Would delete 1 session with 1 message.\n"
    [facts] = told(run("prune", "--older-than", "12w", "--dry-run", "--json", "--db", filled))
    assert facts == {"session_ids": ["old"], "messages": 1, "dry_run": True}
    assert told(run("prune", "--older-than", "300d", "--json", "--db", filled))[0]["messages"] == 0
    run("prune", "--platform", "telegram", "--db", filled, check=0)
    assert run("show", "old", "--db", filled).returncode == 0
    done = run("prune", "--db", filled, check=0)
    assert done.stdout == "Deleted 1 session with 1 message.\n"
    assert run("show", "old", "--db", filled).returncode == 1


@pytest.mark.parametrize("age", ["", "x", "-1d", "1e9d", "9999999d", "5 parsecs"])
def test_an_age_that_is_none_is_wrong_usage(filled, age):
    assert run("prune", f"--older-than={age}", "--db", filled).returncode == 2


def test_check_finds_what_is_wrong(filled, sql):
    assert run("check", "--db", filled, check=0).stdout == "No damage was found.\n"
    sql("UPDATE sessions SET message_count = 7 WHERE id = 'old'")
    done = run("check", "--db", filled)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "session old counts 7 messages and has 1\n"
    [facts] = told(run("check", "--json", "--db", filled))
    assert (facts["ok"], len(facts["problems"])) == (False, 1)
    sql("UPDATE sessions SET message_count = 1 WHERE id = 'old'")
    sql("DELETE FROM search_data WHERE id > 10")
    assert run("check", "--db", filled).returncode == 1


def test_check_tells_of_pages_that_are_damaged(filled):
    with filled.open("r+b") as file:
        file.seek(4096 * 12)
        file.write(b"\xa5" * 4096 * 4)
    done = run("check", "--db", filled)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout


def test_vacuum_gives_space_back(filled):
    with SessionStore(filled) as store:
        store.create_session("big", "cli")
        store.append_message("big", "user", "x" * 1_000_000)
        store.delete_session("big")
    [facts] = told(run("vacuum", "--json", "--db", filled, check=0))
    assert facts["bytes_after"] == filled.stat().st_size < facts["bytes_before"] - 900_000
    assert " KiB before, " in run("vacuum", "--db", filled, check=0).stdout


@pytest.fixture
def older(path):
    """A file of the schema before this one."""
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = wal").fetchall()
    db.create_scalar_function("hermes_words", lambda text: text, 1, flags=apsw.SQLITE_DETERMINISTIC)
    db.create_scalar_function("hermes_tools", lambda text: text, 1, flags=apsw.SQLITE_DETERMINISTIC)
    for script in MIGRATIONS[:-1]:
        db.execute(script).fetchall()
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {CURRENT - 1}")
    db.close()
    return path


def test_migrate_says_from_where_to_where(older):
    def version():
        return int.from_bytes(older.read_bytes()[60:64], "big")

    done = run("migrate", "--dry-run", "--db", older, check=0)
    kept = f"{older}.schema{CURRENT - 1}.backup"
    way = f"from schema {CURRENT - 1} to {CURRENT}; the backup is {kept}.\n"
    assert done.stdout == f"Would migrate {way}"
    assert version() == CURRENT - 1
    assert sorted(file.name for file in older.parent.iterdir()) == ["state.db", "state.db.lock"]
    done = run("migrate", "--db", older, check=0)
    assert done.stdout == f"Migrated {way}"
    assert version() == CURRENT
    assert Path(kept).exists()
    [facts] = told(run("migrate", "--json", "--db", older, check=0))
    assert facts == {"from": CURRENT, "to": CURRENT, "dry_run": False, "backup": None}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "migrate"])
def test_nothing_but_migrate_changes_an_older_file(older, command):
    before = older.read_bytes()
    done = run(command, *COMMANDS[command], "--db", older)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"{older} has schema {CURRENT - 1} and this Hermes has {CURRENT}; "
        f"run: python -m hermes.store migrate --db {older}\n"
    )
    assert older.read_bytes() == before


# Files that cannot be used


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
        (lambda path: path.write_text("no database"), "no SQLite file"),
        (damaged, "damaged"),
        (foreign, "another program"),
        (newer, "newer Hermes"),
    ],
    ids=["missing", "folder", "text", "damaged", "foreign", "newer"],
)
def test_a_file_that_cannot_be_used_is_named_in_one_sentence(tmp_path, command, make, sentence):
    path = tmp_path / "state.db"
    make(path)
    before = sorted(file.name for file in tmp_path.iterdir())
    done = run(command, *COMMANDS[command], "--db", path)
    assert (done.returncode, done.stdout) == (3, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_wrong_usage_is_said_and_coded():
    for arguments in ([], ["nonsense"], ["list", "--limit", "0"], ["list", "--ended", "--open"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "usage:" in done.stderr
    assert "exit codes" in run("--help", check=0).stdout


# Beside a runtime


def test_what_reads_and_what_adds_works_beside_a_runtime(filled, runtime, tmp_path):
    run("list", "--db", filled, check=0)
    run("show", "talk", "--db", filled, check=0)
    run("search", "noon", "--db", filled, check=0)
    exported = run("export", "--all", "--db", filled, check=0).stdout
    run("backup", tmp_path / "copy.db", "--db", filled, check=0)
    done = run("check", "--db", filled, check=0)
    assert "index was not checked: a runtime is using the file" in done.stdout
    line = json.loads(exported.splitlines()[0]) | {"id": "another", "title": None}
    run("import", "-", "--db", filled, text=json.dumps(line), check=0)
    run("prune", "--db", filled, check=0)


@pytest.mark.parametrize("command", ["vacuum", "migrate"])
def test_what_must_be_alone_says_who_is_there(filled, runtime, command):
    done = run(command, "--db", filled)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"already in use by another Hermes runtime (pid {runtime.pid})" in done.stderr
    assert done.stderr.count("\n") == 1


# At a terminal


def start_at_terminal(*arguments, stderr=None):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "hermes.store", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs if stderr is None else stderr,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def read(ours, until=None):
    shown = b""
    while until is None or until not in shown:
        if not select.select([ours], [], [], 30)[0]:
            raise AssertionError(f"only {shown!r} was shown")
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        shown += chunk
    return shown


def at_terminal(*arguments):
    process, ours = start_at_terminal(*arguments)
    shown = read(ours)
    os.close(ours)
    return shown.decode(), process.wait(30)


def ours_removed(shown):
    """What is left of a terminal's text without our own colours and line ends."""
    return re.sub("\x1b\\[[0-9;]*m", "", shown).replace("\r\n", "\n")


def test_a_table_at_a_terminal_is_as_wide_as_that(filled):
    with SessionStore(filled) as store:
        store.set_session_title("old", "long " * 20)
    shown, code = at_terminal("list", "--db", filled)
    assert code == 0
    assert "\x1b[1m" in shown
    assert max(map(len, ours_removed(shown).split("\n"))) <= 100
    piped = run("list", "--db", filled, check=0).stdout
    assert ("long " * 20).strip() in piped


def test_long_work_shows_a_bar_only_at_a_terminal(filled, tmp_path):
    shown, code = at_terminal("backup", tmp_path / "copy.db", "--db", filled)
    assert (code, "copying" in shown) == (0, True)
    run("backup", tmp_path / "copy2.db", "--db", filled, how=process, check=0)


def test_ctrl_c_ends_with_130_and_nothing_half_done(filled):
    holder = apsw.Connection(str(filled))
    holder.execute("BEGIN IMMEDIATE")
    process, ours = start_at_terminal("prune", "--db", filled)
    read(ours, b"pruning")  # it waits for the lock now, or is about to
    process.send_signal(signal.SIGINT)
    shown = read(ours)
    assert process.wait(30) == 130
    os.close(ours)
    assert b"Interrupted" in shown
    assert b"Traceback" not in shown
    holder.execute("ROLLBACK")
    holder.close()
    run("show", "old", "--db", filled, check=0)
    assert run("check", "--db", filled).returncode == 0


LONG = """
import sys
from pathlib import Path
from hermes.store.cli.opening import opened

def ready():
    print("ready", flush=True)

def work(tx):
    tx.db.create_scalar_function("ready", ready, 0)
    tx.one("SELECT ready(), (WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
           "SELECT max(x) FROM n)")

with opened(Path(sys.argv[1])) as store:
    try:
        store.snapshot(work)
    except KeyboardInterrupt:
        print("interrupted", store.get_session("old").id)
"""


def test_ctrl_c_reaches_a_long_query(filled):
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, str(filled)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted old\n"


def test_ctrl_c_while_an_import_is_read_makes_no_file(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes.store", "import", "-", "--db", str(tmp_path / "new.db")],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(b"\n" * 1_000_000)  # more than a pipe holds: it is being read
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, b"Traceback" in errors) == (130, False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["export", "--all"], ["list"], ["show", "wide"]], ids=str)
def test_a_reader_who_has_seen_enough_is_no_error(filled, command):
    with SessionStore(filled) as store:
        store.create_session("wide", "cli")
        store.append_message("wide", "user", "word " * 100_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes.store", *command, "--db", str(filled)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # what is left waits in a buffer
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 0


def test_a_full_disk_behind_stdout_is_said(filled):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hermes.store", "list", "--db", str(filled)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 4
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_of_few_letters_is_no_error(filled):
    with SessionStore(filled) as store:
        store.set_session_title("old", "日本 → é")
    for command in (["list"], ["export", "old"]):
        done = subprocess.run(
            [sys.executable, "-m", "hermes.store", *command, "--db", str(filled)],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()


def test_without_rich_there_is_json(filled, tmp_path):
    (tmp_path / "rich.py").write_text("raise ImportError('not here')")
    env = {"PYTHONPATH": str(tmp_path)}
    done = run("list", "--db", filled, env=env, how=process)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "hermes-runtime[bot]" in done.stderr
    assert len(told(run("list", "--json", "--db", filled, env=env, how=process, check=0))) == 3


# Small things


@given(st.text())
def test_json_for_people_is_the_same_json(text):
    line = json_line({"text": text})
    assert json.loads(line) == {"text": text}
    assert line.isascii()
    assert line.isprintable()
    raw = json.dumps({"text": text}, ensure_ascii=False)
    assert json.loads(json_safe(raw)) == {"text": text}
    assert not sanitize.UNSAFE.search(json_safe(raw))


def test_sizes_and_times_are_human():
    assert [size(n) for n in (0, 1023, 1024, 1536, 5 * 1024**3, 2**60)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "1048576.0 TiB",
    ]  # fmt: skip
    assert [moment(m) for m in (None, 1e300, float("nan"))] == ["", "1e+300", "nan"]


# The pages about it


def shown(page):
    """The commands of a page, each with what the page says it prints."""
    text = (ROOT / "docs" / page).read_text()
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def steady(text):
    """The text without what another schema would change."""
    return re.sub(r"\d+\.\d KiB|the schema is \d+", "…", text)


def run_page(page, folder):
    for command, output in shown(page):
        done = subprocess.run(
            command.replace("python ", f"{sys.executable} ", 1),
            shell=True,
            cwd=folder,
            env={**os.environ, "HOME": str(folder), "TZ": "UTC"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = done.stdout.replace(str(folder), "/home/you")
        assert (done.stderr, steady(said)) == ("", steady(output)), command


def test_the_page_shows_what_is_shown(tmp_path):
    text = (ROOT / "docs" / "admin.md").read_text()
    for code in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    assert len(list(shown("admin.md"))) == 13
    run_page("admin.md", tmp_path)


def test_the_page_about_migrating_shows_what_is_shown(tmp_path):
    home = Home(tmp_path / ".hermes")
    talk, long = "20260102_030405_0a1b2c3d", "20260102_040000_abcdef"
    said = ("What time is it?", "Noon.", "And now?", "Later.")
    home.session(talk, *said, source="telegram", title="The time")
    home.say(talk, "a slip", active=0)
    home.session(long, "Think.", "Yes.", ended_at=NOW - 5, end_reason="compression")
    home.session("20260102_050000_123456", "It was thought.", "Go on.", parent_session_id=long)
    lost = home.session("20260102_050000_654321", "Lost.", parent_session_id=long)
    home.run(f"UPDATE sessions SET ended_at = 1, end_reason = 'ws_orphan_reap' WHERE id = '{lost}'")
    home.run("UPDATE messages SET timestamp = timestamp - 32600000")
    home.run("UPDATE sessions SET started_at = started_at - 32600000")
    key = "agent:main:telegram:dm:1"
    home.routing({key: home.entry(1, talk, suspended=True)})
    home.close()
    assert len(list(shown("migrating.md"))) == 4
    run_page("migrating.md", tmp_path)
