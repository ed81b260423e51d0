"""`python -m bench` as a process: its files, its exit codes, and what a signal leaves behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.integration.bench_program"
TIMEOUT = 60


def small(folder, *arguments):
    """Run one of the small benchmarks, with its databases in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", PROGRAM, "-", *map(str, arguments), "--dir", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """The folder for databases; it must be empty at the end, whatever has happened."""
    folder = tmp_path / "databases"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def test_a_run_writes_its_results_and_a_page(folder, tmp_path):
    out = tmp_path / "new" / "mine.json"
    done = small(os.path.relpath(folder, ROOT), "three", "--quick", "--out", out)
    assert done.returncode == 0
    content = json.loads(out.read_text())
    assert (content["benchmark"], content["quick"]) == ("0three", True)
    assert [goal["outcome"] for goal in content["goals"]] == ["pass", "FAIL", "not judged"]
    assert "faster" in out.with_suffix(".html").read_text()
    assert sorted(out.parent.iterdir()) == [out.with_suffix(".html"), out]
    assert "cell: repetition 1 of 1" in done.stderr
    assert "QUICK" in done.stdout
    assert f"results written to {out}" in done.stdout


def test_a_driver_that_fails_stops_the_run_with_its_error(folder, tmp_path):
    done = small(folder, "fail", "--out", tmp_path / "x.json")
    assert done.returncode == 1
    assert "The benchmark stopped: ours fail: ValueError: no figures today" in done.stderr
    assert not (tmp_path / "x.json").exists()


def test_a_benchmark_that_fails_does_not_stop_the_others(folder, tmp_path):
    done = small(folder, "three-fail-three", "--quick", "--out", tmp_path / "all")
    assert done.returncode == 1
    assert {file.name for file in (tmp_path / "all").iterdir()} == {
        "0three.json", "2three.json", "report.html",
    }  # fmt: skip
    assert "ValueError: no figures today" in done.stderr
    assert "Failed: 1fail.\n" in done.stdout
    assert "FAIL 0three: faster: 3.00 ms, target <= 1 ms" in done.stdout
    assert (tmp_path / "all" / "report.html").read_text().count("<section") == 2


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("hang", signal.SIGINT),
        ("three-hang", signal.SIGINT),
        ("hang", signal.SIGTERM),
        ("hang", signal.SIGHUP),
    ],
)
def test_a_signal_ends_all_processes_and_removes_all_files(folder, tmp_path, command, number):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", PROGRAM, fifo, command, "--dir", folder, "--out", out],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )  # fmt: skip
    try:
        assert read(reader) == b"1\n"
        assert [each.name.startswith(".run-") for each in folder.iterdir()] == [True]
        process.send_signal(number)
        assert read(reader) == b""  # the other end is closed: the child of the driver has ended
        _, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "Interrupted: unfinished results were not written."
    assert "Traceback" not in errors
    assert [file.name for file in out.glob("*")] == (["0three.json"] if "three" in command else [])


def read(reader):
    assert select.select([reader], [], [], TIMEOUT)[0], "nothing came"
    return os.read(reader, 100)
