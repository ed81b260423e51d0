"""A database that may only be read can be listed, shown, searched and exported."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from hermes.store import SessionStore
from tests.support.store_cli import json_lines

_PR_CAPBSET_DROP, _DAC_OVERRIDE = 24, 1
ID = "20231114_221320_0a1b2c3d"


def without_privileges():
    """In a new process of root: obey the permissions of files."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(_PR_CAPBSET_DROP, _DAC_OVERRIDE, 0, 0, 0) == 0


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "hermes.store", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False, preexec_fn=without_privileges,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(params=["file and folder", "folder", "file"])
def read_only(request, filled):
    """A database whose file, folder or both cannot be written; there is no lock file beside it."""
    with SessionStore(filled) as store:
        store.index_pending()
    filled.with_name("state.db.lock").unlink()
    return protect(filled, request)


def protect(path, request):
    if "file" in request.param:
        for file in path.parent.iterdir():
            file.chmod(0o400)
    if "folder" in request.param:
        path.parent.chmod(0o500)
        request.addfinalizer(lambda: path.parent.chmod(0o700))
    return path


@pytest.fixture(params=["file and folder", "folder"])
def killed(request, filled):
    """The same after its writer was killed, so that there is a WAL file; it has no index."""
    code = (
        "import os, sys\nfrom hermes.store import SessionStore\nstore = SessionStore(sys.argv[1])\n"
        "store.append_message('evil', 'user', 'a heron')\nos._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, filled], check=True, timeout=60)
    filled.with_name("state.db-shm").unlink()
    return protect(filled, request)


def files(path):
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def test_a_read_only_database_can_be_read(read_only):
    before = files(read_only)
    listed = json_lines(run("list", "--json", "--db", read_only))
    assert {line["id"] for line in listed} == {"talk-2", "evil", "old"}
    assert "Noon." in run("show", "talk", "--db", read_only).stdout
    assert len(json_lines(run("search", "noon", "--json", "--db", read_only))) == 2
    exported = run("export", "--all", "--db", read_only)
    assert (exported.returncode, len(exported.stdout.splitlines())) == (0, 4)
    checked = run("check", "--db", read_only)
    assert checked.stdout == (
        "No problems found.\nThe search index was not checked, because the file is read-only.\n"
    )
    done = run("prune", "--dry-run", "--db", read_only)
    assert done.stdout.endswith("Would delete 1 session with 1 message.\n")
    assert files(read_only) == before


@pytest.mark.parametrize(
    "command",
    [["prune", "--yes"], ["archive", "old"], ["import", "-"], ["vacuum"], ["migrate"]],
    ids=" ".join,
)
def test_commands_that_write_say_that_it_is_read_only(read_only, command):
    before = files(read_only)
    done = run(*command, "--db", read_only)
    if command[0] != "import":  # of nothing
        assert (done.returncode, done.stdout) == (3, "")
        assert "is read-only; copy it to another folder to change it" in done.stderr
        assert done.stderr.count("\n") == 1
    assert files(read_only) == before


def test_what_a_killed_process_left_in_the_wal_is_read(killed):
    before = files(killed)
    assert "a heron" in run("show", "evil", "--db", killed).stdout
    assert "a heron" in run("export", "evil", "--db", killed).stdout
    done = run("search", "noon", "--json", "--db", killed)
    assert len(json_lines(done)) == 1
    assert "not indexed" in done.stderr
    assert files(killed) == before


def test_a_database_that_is_modified_meanwhile_is_reported(filled, request):
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from hermes.store.cli.read_only import ReadOnlyStore\n"
        "store = ReadOnlyStore(Path(sys.argv[1]))\nprint('ready', flush=True)\ninput()\n"
        "store.close()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, filled],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    with SessionStore(filled) as store:
        store.append_message("evil", "user", "more")
    _, errors = process.communicate("\n", timeout=30)
    assert "was modified meanwhile; run the command again" in errors
