"""`tools/mutants.py`: the list fits the code, and the runner reports what was caught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.mutants import MUTANTS, Mutant, compare, problem, run

ROOT = Path(__file__).parents[2]
EVERY = [mutant for mutants in MUTANTS.values() for mutant in mutants]


@pytest.mark.parametrize("mutant", EVERY, ids=[mutant.breaks for mutant in EVERY])
def test_every_mutant_can_be_applied(mutant):
    assert problem(ROOT, mutant) is None
    assert mutant.old != mutant.new


def test_no_two_mutants_break_the_same_guarantee():
    assert len({mutant.breaks for mutant in EVERY}) == len(EVERY)


@pytest.fixture
def tree(tmp_path):
    """A small project with one test."""
    (tmp_path / "hermes").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / "hermes" / "__init__.py").touch()
    (tmp_path / "hermes" / "sums.py").write_text("def add(a, b):\n    return a + b  # simple\n")
    (tmp_path / "tests" / "test_sums.py").write_text(
        "from hermes.sums import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ("a + b", "a - b", ("caught", "tests/test_sums.py::test_add")),
        ("# simple", "# too simple", ("survived", "")),
        ("a * b", "a - b", ("broken", "the old text occurs 0 times in hermes/sums.py")),
        ("def add", "def plus", ("broken", "")),
    ],
)
def test_the_runner_reports_whether_the_tests_caught_a_mutant(tree, old, new, outcome):
    mutant = Mutant(breaks="it adds", file="hermes/sums.py", old=old, new=new)
    became, by = run(tree, mutant, ["tests"], 60)
    assert became == outcome[0]
    assert outcome[1] in by
    assert (
        tree / "hermes" / "sums.py"
    ).read_text() == "def add(a, b):\n    return a + b  # simple\n"


def test_a_mutant_that_hangs_is_ended(tree):
    mutant = Mutant(
        breaks="it ends", file="hermes/sums.py", old="return", new="while True: pass\n    return"
    )
    assert run(tree, mutant, ["tests"], 3) == ("timeout", "")


def test_a_comparison_names_what_is_no_longer_caught(tmp_path, capsys):
    def results(name, **outcomes):
        fields = {"area": "store", "file": "x.py", "seconds": 1.0}
        rows = [
            {"name": "M01", "breaks": each, "outcome": outcome, **fields}
            for each, outcome in outcomes.items()
        ]
        (tmp_path / name).write_text(json.dumps(rows))
        return tmp_path / name

    before = results("before", kept="caught", lost="caught", gone="timeout", never="survived")
    after = results("after", kept="timeout", lost="survived", never="survived")
    assert compare(before, after) == 2
    said = capsys.readouterr().out
    assert "lost (survived)" in said
    assert "gone (missing)" in said
    assert compare(before, before) == 0
