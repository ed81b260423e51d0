"""Run `python -m hermes.store`: in this process, in another one, or at a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import subprocess
import sys

from hermes.store.__main__ import main

NOW = 1_800_000_000.0
DAY = 86_400.0
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\u202egnp.exe\r[bold]x[/bold]"
COMMANDS = {
    "list": [],
    "show": ["talk"],
    "file": ["file_1", "--to", "/nowhere/file"],
    "search": ["words"],
    "export": ["--all"],
    "backup": ["/nowhere/copy.db"],
    "check": [],
    "prune": [],
    "vacuum": [],
    "migrate": [],
}


def in_process(*arguments, text=None):
    """Run the command in this process, which saves half a second of startup."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO((text or "").encode()))
        try:
            code = main([*map(str, arguments)])
        except SystemExit as usage_error:
            code = usage_error.code
        finally:
            sys.stdin = before
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return subprocess.CompletedProcess(arguments, code, out, err)


def in_subprocess(*arguments, text=None, env=None):
    """Run the command in a separate process."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "hermes.store", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )


def run(*arguments, check=None, how=in_process, **options):
    """Run the command; with `check`, require this exit code and nothing on stderr."""
    done = how(*arguments, **options)
    assert "Traceback" not in done.stderr
    if check is not None:
        assert (done.returncode, done.stderr) == (check, ""), done.stdout + done.stderr
    return done


def json_lines(done):
    """Return the decoded lines of `--json` output."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def start_at_terminal(*arguments, columns=100):
    """Start the command at a pseudo terminal. Return the process and our end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "hermes.store", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def read_terminal(ours, until=None):
    """Return the output up to the bytes `until`, or all of it."""
    output = b""
    while until is None or until not in output:
        if not select.select([ours], [], [], 30)[0]:
            raise AssertionError(f"only {output!r} was printed")
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        output += chunk
    return output


def at_terminal(*arguments, columns=100):
    """Run the command at a terminal. Return its output and exit code."""
    process, ours = start_at_terminal(*arguments, columns=columns)
    output = read_terminal(ours)
    os.close(ours)
    return output.decode(), process.wait(30)


def without_colors(output):
    """Return terminal output without the color codes and line ends of the command itself."""
    return re.sub("\x1b\\[[0-9;]*m", "", output).replace("\r\n", "\n")
