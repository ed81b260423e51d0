"""`python -m bench` as a process: its files, its exit codes, its sentences, Ctrl-C, its bar."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from bench.board import Board, Ref
from bench.drivers import driver
from bench.progress import Counter
from bench.store_cells import ACTOR, BLOCKING, FEW, QUICK, Cells
from bench.store_goals import sheet
from tests.integration.tty import Tty

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.integration.bench_program"
PATIENCE = 60


def bench(*arguments, module="bench"):
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def small(folder, *arguments):
    """One of the small benchmarks, with its databases in `folder`."""
    return bench("-", *arguments, "--dir", folder, module=PROGRAM)


@pytest.fixture
def place(tmp_path):
    """Where databases are made; it is empty again at the end, whatever has happened."""
    folder = tmp_path / "databases"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def test_without_a_word_the_benchmarks_are_listed():
    done = bench()
    assert (done.returncode, done.stdout) == (2, "")
    for name in ("store", "runtime", "agents", "switch", "all", "page"):
        assert f"\n  {name} " in done.stderr


def test_a_run_writes_its_results_and_a_page(place, tmp_path):
    out = tmp_path / "new" / "mine.json"
    done = small(place, "three", "--quick", "--out", out)
    assert done.returncode == 0
    content = json.loads(out.read_text())
    assert {key: content[key] for key in ("benchmark", "about", "quick")} == {
        "benchmark": "three", "about": "What is done.", "quick": True,
    }  # fmt: skip
    assert [goal["outcome"] for goal in content["goals"]] == ["pass", "FAIL", "not judged"]
    assert "It is faster." in out.with_suffix(".html").read_text()
    assert sorted(out.parent.iterdir()) == [out.with_suffix(".html"), out]
    assert "1/1 three is measured" in done.stderr
    assert "QUICK" in done.stdout
    assert f"written to {out}" in done.stdout


def test_a_page_of_everything_shows_what_lies_beside_it(place, tmp_path):
    (tmp_path / "other.json").write_text('{"benchmark": "other"}')
    (tmp_path / "no.json").write_text("[]")
    page = tmp_path / "report.html"
    done = small(place, "three", "--out", tmp_path / "three.json", "--page", page)
    assert done.returncode == 0
    assert [name in page.read_text() for name in ("#b-three", "#b-other")] == [True, True]
    alone = tmp_path / "alone.html"
    small(place, "three", "--out", tmp_path / "three.json", "--page", alone)
    assert [name in alone.read_text() for name in ("#b-three", "#b-other")] == [True, False]


def test_databases_may_be_made_in_a_folder_with_a_relative_name(place, tmp_path):
    done = small(os.path.relpath(place, ROOT), "three", "--out", tmp_path / "x.json")
    assert done.returncode == 0


def test_a_driver_that_fails_ends_the_run_with_its_words(place, tmp_path):
    done = small(place, "fail", "--out", tmp_path / "x.json")
    assert done.returncode == 1
    assert "The benchmark stopped: ours fail: ValueError: no figures today" in done.stderr
    assert not (tmp_path / "x.json").exists()


def test_one_that_fails_does_not_stop_the_others(place, tmp_path):
    done = small(place, "all", "--quick", "--out", tmp_path / "all")
    assert done.returncode == 1
    assert {file.name for file in (tmp_path / "all").iterdir()} == {
        "three.json", "last.json", "report.html",
    }  # fmt: skip
    assert "RuntimeError: a mistake" in done.stderr
    assert done.stderr.endswith("Could not run: broken, fail.\n")
    assert "FAIL three: faster: 3.00 ms, wanted <= 1 ms" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines.count(["three", "1", "1", "1", "0"]) == 2  # both benchmarks are called so
    assert (tmp_path / "all" / "report.html").read_text().count("<section") == 2


def test_when_all_could_run_that_is_success(place, tmp_path):
    done = small(place, "good", "--out", tmp_path)
    assert done.returncode == 0
    assert "QUICK" not in done.stdout


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("hang", signal.SIGINT),
        ("all-hang", signal.SIGINT),
        ("hang", signal.SIGTERM),
        ("hang", signal.SIGHUP),
    ],
)
def test_a_signal_ends_drivers_and_what_they_started(place, tmp_path, command, number):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    process = subprocess.Popen(
        [sys.executable, "-m", PROGRAM, fifo, command, "--dir", place, "--out", tmp_path / "out"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )  # fmt: skip
    try:
        assert read(reader) == b"1\n"
        assert [folder.name.startswith(".run-") for folder in place.iterdir()] == [True]
        process.send_signal(number)
        assert read(reader) == b""  # nobody has the other end any more
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
    assert process.returncode == 130
    assert said.splitlines()[1:] == ["Interrupted: what was not finished is not written."]
    assert not (tmp_path / "out").exists() or command == "all-hang"


def test_the_quick_store_runs_without_any_peer(tmp_path):
    """As where none can be installed: what is ours is measured, the rest is told to be missing."""
    plan = attrs.evolve(QUICK, seconds=0.02, repetitions=1)
    board, steps = Board(), Counter()
    with ExitStack() as stack:
        fleet = {
            name: stack.enter_context(driver(name, Path(sys.executable), tmp_path))
            for name in ("ours", "floors")
        }
        Cells(plan, fleet, board, tmp_path, steps).all()
    shown = sheet(plan)
    for table in shown.tables:
        who = board.who(table.cell)
        assert {ACTOR, BLOCKING, FEW} & set(who)
        for column in table.columns:
            assert any(board.spread(Ref(table.cell, each, column.figure)) for each in who)
    outcomes = {goal.outcome(board.measured(goal)) for goal in shown.goals if peers(goal)}
    assert outcomes == {"not measured"}
    assert all(board.measured(goal) for goal in shown.goals if not peers(goal))


def peers(goal):
    return any(name in goal.text for name in ("hermes-agent", "openai-agents"))


def read(reader):
    assert select.select([reader], [], [], PATIENCE)[0], "nothing came"
    return os.read(reader, 100)


def test_a_terminal_shows_a_bar_and_is_clean_afterwards():
    with Tty([sys.executable, "-m", PROGRAM, "bar"], PYTHONPATH=str(ROOT)) as tty:
        assert tty.wait() == 0
        assert tty.restored
    assert "━" in tty.stream
    assert "0/3" in tty.stream or "2/3" in tty.stream
    assert "[third] step" in tty.stream
    assert tty.screen.text == "done"


def test_elsewhere_each_step_is_a_line():
    done = bench("bar", module=PROGRAM)
    assert done.stdout == "done\n"
    assert [line.split(" ", 1)[1] for line in done.stderr.splitlines()] == [
        "1/3 [first] step", "2/3 [second] step", "3/3 [third] step",
    ]  # fmt: skip
