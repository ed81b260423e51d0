"""Terminals, pipes and interrupts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from hermes.store import SessionStore
from tests.support.store_cli import (
    at_terminal,
    in_subprocess,
    json_lines,
    read_terminal,
    run,
    start_at_terminal,
    without_colors,
)
from tests.support.tty import END, INTERRUPT, Tty


@pytest.mark.parametrize("width", [80, 100])
def test_a_table_fits_the_width_of_the_terminal(filled, width):
    with SessionStore(filled) as store:
        store.create_session("20231114_221320_0a1b2c3d", "telegram")
        store.set_session_title("20231114_221320_0a1b2c3d", "long " * 20)
        store.append_message("20231114_221320_0a1b2c3d", "user", "noon and " * 20)
        store.end_session("20231114_221320_0a1b2c3d", "compression")
    for command in (["list"], ["search", "noon"], ["prune", "--older-than", "0d", "--dry-run"]):
        output, code = at_terminal(*command, "--db", filled, columns=width)
        lines = without_colors(output).rstrip("\n").split("\n")
        assert code == 0
        assert "\x1b[1m" in output
        assert max(map(len, lines)) <= width
        assert any(line.startswith("20231114_221320_0a1b2c3d  ") for line in lines)
        assert any("long" in line and "…" in line for line in lines)
    piped = run("list", "--db", filled, check=0).stdout
    assert ("long " * 20).strip() in piped


def test_prune_shows_what_it_would_delete_and_asks(filled):
    for answer, code, left in ((b"\n", 1, 0), (b"no\n", 1, 0), (b"y\n", 0, 1)):
        process, ours = start_at_terminal("prune", "--db", filled)
        shown = read_terminal(ours, b"[y/N] ")
        assert b"\nold  " in shown
        assert b"Delete 1 session with 1 message for good?" in shown
        os.write(ours, answer)
        output = read_terminal(ours)
        os.close(ours)
        assert process.wait(30) == code
        assert (b"Deleted 1 session" if code == 0 else b"Nothing was deleted.") in output
        assert run("show", "old", "--db", filled).returncode == left


@pytest.mark.parametrize(("key", "code"), [(INTERRUPT, 130), (END, 1)])
def test_leaving_the_question_of_prune_deletes_nothing_and_says_so(filled, key, code):
    with Tty([sys.executable, "-m", "hermes.store", "prune", "--db", str(filled)]) as term:
        term.until("[y/N]")
        term.type(key)
        assert term.wait() == code
        question, last = term.screen.text.splitlines()[-2:]
    assert "[y/N]" in question
    assert last == "Nothing was deleted."
    run("show", "old", "--db", filled, check=0)


def test_check_shows_what_it_is_checking(filled):
    output, code = at_terminal("check", "--db", filled)
    assert (code, "checking pages and indexes (1 of 5)" in output) == (0, True)


def test_a_progress_bar_is_shown_at_a_terminal_only(filled, tmp_path):
    output, code = at_terminal("backup", tmp_path / "copy.db", "--db", filled)
    assert (code, "copying" in output) == (0, True)
    run("backup", tmp_path / "copy2.db", "--db", filled, how=in_subprocess, check=0)


def test_ctrl_c_exits_with_130_and_a_consistent_file(filled):
    holder = apsw.Connection(str(filled))
    holder.execute("BEGIN IMMEDIATE")
    process, ours = start_at_terminal("prune", "--yes", "--db", filled)
    read_terminal(ours, b"pruning")  # it waits for the lock now, or is about to
    process.send_signal(signal.SIGINT)
    output = read_terminal(ours)
    assert process.wait(30) == 130
    os.close(ours)
    assert b"Interrupted" in output
    assert b"Traceback" not in output
    holder.execute("ROLLBACK")
    holder.close()
    run("show", "old", "--db", filled, check=0)
    assert run("check", "--db", filled).returncode == 0


LONG = """
import sys
from pathlib import Path
from hermes.store.cli.opening import open_current

def ready():
    print("ready", flush=True)

def work(tx):
    tx.db.create_scalar_function("ready", ready, 0)
    tx.one("SELECT ready(), (WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
           "SELECT max(x) FROM n)")

with open_current(Path(sys.argv[1])) as store:
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


def test_ctrl_c_while_an_import_reads_its_input_creates_no_file(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes.store", "import", "-", "--db", str(tmp_path / "new.db")],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(b"\n" * 1_000_000)  # more than a pipe buffers, so it is being read
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, b"Traceback" in errors) == (130, False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["export", "--all"], ["list"], ["show", "wide"]], ids=str)
def test_a_closed_pipe_is_an_error_of_an_export_only(filled, command):
    with SessionStore(filled) as store:
        store.create_session("wide", "cli")
        store.append_message("wide", "user", "word " * 100_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes.store", *command, "--db", str(filled)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # so that output is left in the buffer
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    if command[0] == "export":
        assert errors == b"The output was closed before the export was complete.\n"
    else:
        assert errors == b""
    assert process.wait(30) == (4 if errors else 0)


@pytest.mark.parametrize("command", [["list"], ["export", "--all"], ["export", "wide"]], ids=str)
def test_a_full_disk_behind_stdout_is_reported(filled, command):
    with SessionStore(filled) as store:
        store.create_session("wide", "cli")
        store.append_message("wide", "user", "word " * 100_000)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hermes.store", *command, "--db", str(filled)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 4
    assert done.stderr == "Cannot write the output: no space left on device.\n"


def test_an_ascii_terminal_is_not_an_error(filled):
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


def test_json_works_without_rich(filled, tmp_path):
    (tmp_path / "rich.py").write_text("raise ImportError('not here')")
    env = {"PYTHONPATH": str(tmp_path)}
    done = run("list", "--db", filled, env=env, how=in_subprocess)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert re.search(r"to install it: .* install .*\bbot\b", done.stderr)
    assert (
        len(json_lines(run("list", "--json", "--db", filled, env=env, how=in_subprocess, check=0)))
        == 3
    )
