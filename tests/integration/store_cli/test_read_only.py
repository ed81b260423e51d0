"""A database that may only be read can be listed, shown, searched and exported."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest

from hermes.messages import Attachment
from hermes.store import SessionStore
from tests.support.store_cli import json_lines

_PR_CAPBSET_DROP, _DAC_OVERRIDE, _DAC_READ_SEARCH = 24, 1, 2
ID = "20231114_221320_0a1b2c3d"


def without_privileges():
    """In a new process of root: obey the permissions of files."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
            assert libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


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


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_attached_files_of_a_read_only_database_can_be_read(filled, tmp_path, request, killed):
    code = (
        "import os, sys\nfrom hermes.messages import Attachment\n"
        "from hermes.store import SessionStore\nstore = SessionStore(sys.argv[1])\n"
        "file = store.put_file(Attachment(data=b'content'), session_key='k1')\n"
        "store.append_message('talk-2', 'user', 'look', parts=[file.part])\n"
        "print(file.id, flush=True)\n" + ("os._exit(0)" if killed else "store.close()")
    )
    made = subprocess.run(
        [sys.executable, "-c", code, filled], check=True, timeout=60, capture_output=True, text=True
    )
    if killed:
        filled.with_name("state.db-shm").unlink()
    file_id, here = made.stdout.strip(), [*filled.parent.rglob("*"), filled.parent]
    target = tmp_path.with_name(f"{tmp_path.name}-written")
    target.mkdir()
    for path in here:
        path.chmod(0o500 if path.is_dir() else 0o400)
    request.addfinalizer(lambda: [path.chmod(0o700) for path in here if path.exists()])
    assert f"[file, 7 bytes: {file_id}]" in run("show", "talk-2", "--db", filled).stdout
    assert run("file", file_id, "--to", target / "note", "--db", filled).returncode == 0
    assert (target / "note").read_bytes() == b"content"
    exported = run("export", "talk-2", "--db", filled).stdout
    assert [line["id"] for line in map(json.loads, exported.splitlines())] == [file_id, "talk-2"]
    assert run("backup", target / "copy.db", "--db", filled).returncode == 0
    assert run("check", "--full", "--db", filled).stdout.startswith("No problems found.\n")
    assert run("check", "--full", "--db", target / "copy.db").stdout == "No problems found.\n"
    (target / "lines").write_text(exported)
    refused = run("import", target / "lines", "--db", filled)
    assert (refused.returncode, refused.stderr) == (
        3,
        f"{filled} is read-only; copy it to another folder to change it\n",
    )


def test_a_folder_of_files_that_cannot_be_read_is_one_problem_for_each_file(filled, request):
    with SessionStore(filled) as store:
        file = store.put_file(Attachment(data=b"content"), session_key="k1")
        store.append_message("talk-2", "user", "look", parts=[file.part])
    folder = filled.with_name("state.db.blobs")
    folder.chmod(0)
    request.addfinalizer(lambda: folder.chmod(0o700))
    checked = run("check", "--full", "--db", filled)
    assert checked.returncode == 1
    assert checked.stdout.startswith(f"the content of {file.id} cannot be read: {folder}")
    assert checked.stdout.count("\n") == 1
    saved = run("file", file.id, "--to", filled.with_name("note"), "--db", filled)
    assert (saved.returncode, saved.stderr) == (
        4,
        f"the file {file.id} cannot be read: Permission denied\n",
    )
    pruned = run("prune", "--older-than", "2y", "--yes", "--db", filled)
    assert (pruned.returncode, pruned.stdout) == (0, "Deleted 0 sessions with 0 messages.\n")
    backed = run("backup", filled.with_name("copy.db"), "--db", filled)
    assert (backed.returncode, backed.stderr.count("\n")) == (4, 1)
    assert sorted(filled.parent.glob("copy*")) == []
