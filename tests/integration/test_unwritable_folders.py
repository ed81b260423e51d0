"""A folder or file that the user may not write to is reported with what to do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.store import SessionStore

ROOT = Path(__file__).parents[2]
_PR_CAPBSET_DROP, _DAC_OVERRIDE = 24, 1


def without_privileges():
    """In a new process of root: obey the permissions of files."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(_PR_CAPBSET_DROP, _DAC_OVERRIDE, 0, 0, 0) == 0


def chat(path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "hermes", "--db", str(path)], input="hello\n",
        capture_output=True, text=True, timeout=60, check=False, preexec_fn=without_privileges,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    return done.stderr


@pytest.fixture
def folder(tmp_path):
    """A folder in which nothing can be created."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o500)
    yield folder
    folder.chmod(0o700)


def test_a_folder_that_cannot_be_written_is_named(folder):
    problem = chat(folder / "state.db")
    assert problem == (
        f"{folder}/state.db.lock cannot be opened: Permission denied; let this user write to the "
        f"folder {folder}, or choose another database\n"
    )


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "state.db"
    with SessionStore(path):
        pass
    for file in tmp_path.iterdir():
        file.chmod(0o400)
    problem = chat(path)
    assert problem == (
        f"{path}.lock cannot be opened: Permission denied; let this user read and write that file, "
        "or choose another database\n"
    )
