"""Files of every schema version, and processes that open them and are cut short.

`python -m tests.support.migrating` is a server that forks a process for each command, which costs
milliseconds; a new interpreter costs a quarter of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import apsw

from hermes.errors import StoreRefused
from hermes.store import SessionStore
from hermes.store.sqlite import search
from hermes.store.sqlite.schema import APPLICATION_ID, MIGRATIONS

ROOT = Path(__file__).parents[2]
ROWS = 3
"""Messages in each session with an even number."""
SPAN = 1 << 32
"""The ids of the messages of session `n` start at `n * SPAN`."""


# Files


def build(path, version, sessions):
    """Create a file of a schema version whose content is all in the WAL.

    Sessions with an even number have messages, the others have none.
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
                _insert_message(db, number * SPAN + seq, f"word{number} row {seq}")
        _insert_leftovers(db, sessions)
    for script in MIGRATIONS[1:version]:
        db.execute(script)
    return db


def _insert_message(db, message_id, text):
    sql = "INSERT INTO messages (id, role, content, created_at) VALUES (?, 'user', ?, 5)"
    db.execute(sql, (message_id, text))


def _insert_leftovers(db, last):
    """An unused compression child, and an empty session of a terminal."""
    insert = (
        "INSERT INTO sessions (no, id, source, kind, parent_no, started_at, last_active, ended_at, "
        "end_reason, seq, message_count, revision) VALUES (?, ?, ?, ?, ?, 1, 1, ?, ?, ?, ?, ?)"
    )
    parent, child, ghost = last + 1, last + 2, last + 3
    db.execute(insert, (parent, "parent", "cli", "new", None, 1, "compression", 0, 0, 0))
    db.execute(insert, (child, "orphan", "cli", "compression", parent, None, None, 1, 1, 1))
    db.execute(insert, (ghost, "ghost", "tui", "new", None, 1, "cli_close", 0, 0, 0))
    _insert_message(db, child * SPAN + 1, "the summary")


# Commands of the server, each in a separate process


def _build(path, version, sessions):
    db = build(path, version, sessions)
    os.kill(os.getpid(), signal.SIGKILL)
    db.close()


def _pragma(path, pragma):
    db = apsw.Connection(path)
    db.pragma("wal_autocheckpoint", 0)
    db.execute(f"PRAGMA {pragma}")
    os.kill(os.getpid(), signal.SIGKILL)


def _open_until(path, left):
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
    return statements


def _open_limited(path, limit):
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error instead of a signal
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        SessionStore(path).close()
    except StoreRefused as error:
        return str(error)
    return None


COMMANDS = {
    "build": _build, "pragma": _pragma, "open until": _open_until, "open limited": _open_limited,
}  # fmt: skip


def serve():
    """Run the main program: JSON lines in, JSON lines out."""
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, json.dumps(COMMANDS[command](*arguments)).encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor
            result = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answer = {"status": status, "result": json.loads(result or b"null")}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Server:
    """The client of the server."""

    def __init__(self, process):
        self._process = process

    def _ask(self, *command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def build(self, path, version, sessions):
        """Create a file as a process of this version leaves it if it is killed."""
        assert self._ask("build", str(path), version, sessions)["status"] == -signal.SIGKILL

    def set_pragma(self, path, pragma):
        """Change a number in the header of a file; the change stays in the WAL."""
        assert self._ask("pragma", str(path), pragma)["status"] == -signal.SIGKILL

    def open_until(self, path, nth):
        """Open a file in a process that is killed at its n-th statement.

        Returns the number of statements if it was not killed, or None.
        """
        answer = self._ask("open until", str(path), nth)
        assert answer["status"] in {0, -signal.SIGKILL}, answer
        return answer["result"]

    def open_limited(self, path, limit=None):
        """Open a file in a process whose files may have this many bytes.

        Returns the error, or None if there was none.
        """
        answer = self._ask("open limited", str(path), limit)
        assert answer["status"] == 0, answer
        return answer["result"]


@contextlib.contextmanager
def open_server():
    """Start the server."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.migrating"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Server(process)
        process.stdin.close()


if __name__ == "__main__":
    serve()
