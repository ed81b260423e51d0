"""Commands whose standard output cannot be written: a full disk, a closed pipe, no output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.store import SessionStore

pytestmark = [
    pytest.mark.usefixtures("measure_programs"),
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here"),
]
ROOT = Path(__file__).parents[2]
HERMES = [sys.executable, "-P", "-W", "error", "-m", "hermes"]
FULL = "Cannot write the output: no space left on device.\n"
COMMANDS = [
    ["--version"],
    ["--help"],
    ["chat", "--help"],
    ["run", "--example-config"],
    ["--check-config"],
    ["status"],
    ["doctor", "--offline"],
    ["setup", "--no-chat"],
    ["store", "--help"],
    ["store", "list"],
    ["store", "export", "--all"],
    ["-p", "hello"],
    ["-p", "hello", "--json"],
    [],
]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with one conversation and without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "data" / "hermes").mkdir(parents=True)
    with SessionStore(tmp_path / "data" / "hermes" / "state.db") as store:
        store.create_session("talk", "console")
        store.append_message("talk", "user", "word " * 20_000)


def run(command, stdout, *, buffered=True, **options):
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    return subprocess.run(
        [*HERMES, *command], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False,
        text=True, env=environment, input="hello\n", **options,
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_disk_is_one_sentence_and_a_failure(home, command):
    with Path("/dev/full").open("w") as full:
        done = run(command, full)
    assert done.stderr == FULL
    assert done.returncode in {1, 4, os.EX_IOERR}


@pytest.mark.parametrize("command", COMMANDS[:3], ids=" ".join)
def test_a_full_disk_is_noticed_without_a_buffer(home, command):
    with Path("/dev/full").open("w") as full:
        done = run(command, full, buffered=False)
    assert (done.returncode, done.stderr) == (os.EX_IOERR, FULL)


@pytest.mark.parametrize("command", COMMANDS[4:10], ids=" ".join)
def test_a_reader_that_has_gone_is_not_reported(home, command):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(command, writer)
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode in {0, 1}


def test_a_status_that_could_not_be_written_does_not_look_like_a_bot_that_is_not_running(home):
    with Path("/dev/full").open("w") as full:
        assert run(["status"], full).returncode == os.EX_IOERR


def test_no_other_file_takes_the_place_of_a_closed_output(home):
    closed = {"preexec_fn": lambda: os.close(1)}
    for command in (["--version"], ["-p", "hello"], ["store", "list"]):
        done = run(command, None, **closed)
        assert done.stderr == "Cannot write the output: bad file descriptor.\n"
        assert done.returncode != 0


def test_an_error_that_cannot_be_reported_either_is_still_a_failure(home):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*HERMES, "--version"], stdout=full, stderr=full, timeout=60, check=False
        )
    assert done.returncode == os.EX_IOERR
