"""Other processes that use the same file."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

from hermes.config import is_database_url
from tests.support.engines import Sql

STATEMENT = """
import json, sys, apsw
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(5000)
print(json.dumps(db.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()))
"""
READER = """
import sys, apsw
db = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
db.execute("BEGIN")
db.execute("SELECT count(*) FROM sessions").fetchall()
print("reading", flush=True)
sys.stdin.readline()
"""
VERB = """
import json, sys
from hermes.store import SessionStore
with SessionStore(sys.argv[1]) as store:
    getattr(store, sys.argv[2])(*json.loads(sys.argv[3]))
"""


def foreign(path, statement, *values):
    """Run one SQL statement on the database in another process; return the rows."""
    if is_database_url(path):  # its server is another process
        with Sql(path) as run:
            return run(statement, *values)
    return json.loads(_run(STATEMENT, path, statement, values))


def foreign_store(path, verb, *args):
    """Call one verb of `SessionStore` on the file in another process."""
    _run(VERB, path, verb, args)


@contextmanager
def foreign_reader(path):
    """Another process in a read transaction, for the time of the block."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "reading\n"
        yield
        process.stdin.close()


def _run(program, path, what, values):
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), what, json.dumps(values)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout
