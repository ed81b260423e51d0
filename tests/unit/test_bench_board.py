"""The benchmark's own arithmetic: ratios are taken per repetition, then medianed."""

from __future__ import annotations

import json
import math

import pytest

from bench import agents, runtime_cells, runtime_sheet, store_cells, store_goals, switch
from bench.board import Board, Goal, Ref, Spread
from bench.report import Column, Measured, Sheet, Table, document, write
from bench.store_cells import Cells, Idle

OURS, THEIRS = Ref("cell", "ours", "rate"), Ref("cell", "theirs", "rate")
SHEETS = {
    "store": store_goals.sheet(store_cells.FULL),
    "runtime": runtime_sheet.sheet(runtime_cells.FULL),
    "agents": agents.sheet(agents.FULL),
    "switch": switch.sheet(switch.FULL),
}


def board(ours, theirs=()):
    filled = Board()
    for value in ours:
        filled.add("cell", "ours", {"rate": value})
    for value in theirs:
        filled.add("cell", "theirs", {"rate": value})
    return filled


def test_every_goal_of_the_issue_is_judged():
    assert len(store_goals.GOALS) == 16
    assert len(agents.goals(agents.FULL)) == 7


def test_a_ratio_is_taken_within_each_repetition():
    measured = board([10, 40, 90], [10, 10, 10]).measured(Goal("", OURS, 1, THEIRS))
    assert measured == Spread(4, 1, 9, 2.5, 6.5, (1, 4, 9))


def test_a_repetition_without_a_number_says_nothing_of_the_others():
    filled = board([10, math.nan, 40, math.inf, 90], [10, 10, 0, 10, 10])
    measured = filled.measured(Goal("", OURS, 1, THEIRS))
    assert measured is not None
    assert measured.values == (1, 9)


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf]])
def test_without_any_number_a_goal_is_not_measured(values):
    goal = Goal("", OURS, 1)
    assert board(values).measured(goal) is None
    assert goal.outcome(None) == "not measured"


def test_a_file_of_results_is_json_whatever_was_measured(tmp_path):
    filled = board([math.nan], [1, math.inf])
    sheet = Sheet([Goal("g", OURS, 1, THEIRS)], [Table("cell", "t", (Column("rate", "r"),))])
    measured = Measured(filled, sheet, {"load": [math.inf, 1]}, {"x": {"y": math.nan}}, {})
    file = tmp_path / "new" / "x.json"
    write(file, document(measured))

    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads(file.read_text(), parse_constant=refuse)
    assert content["machine"] == {"load": [None, 1]}
    assert content["versions"] == {"x": {"y": None}}
    assert content["goals"][0]["measured"] is None
    assert [(figure["who"], figure["values"]) for figure in content["figures"]] == [("theirs", [1])]
    assert list(file.parent.iterdir()) == [file]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    """Who reads the old one meanwhile reads all of it."""
    file = tmp_path / "x.json"
    write(file, {"benchmark": "old"})
    with file.open() as old:
        write(file, {"benchmark": "new"})
        assert json.load(old) == {"benchmark": "old"}


def test_a_file_that_cannot_be_made_leaves_the_old_one(tmp_path):
    file = tmp_path / "x.json"
    write(file, {"benchmark": "old"})
    with pytest.raises(TypeError):
        write(file, {"benchmark": object()})
    assert json.loads(file.read_text()) == {"benchmark": "old"}


@pytest.mark.parametrize("name", SHEETS)
def test_everything_that_is_shown_is_explained_in_a_sentence(name):
    sheet = SHEETS[name]
    columns = [(t.cell, column) for t in sheet.tables for column in t.columns]
    said = {
        **{goal.text: goal.explains for goal in sheet.goals},
        **{table.cell: table.explains for table in sheet.tables},
        **{f"{cell}, {column.heading}": column.explains for cell, column in columns},
        **{plot.title: plot.explains for plot in sheet.plots},
    }
    assert {what for what, words in said.items() if not sentence(words)} == set()
    for _, column in columns:
        if column.figure.endswith("rate"):
            assert column.better == "higher"
        if column.figure.endswith(("ms", "us", "mib", "kib", "seconds")):
            parser = column.figure == "json_ms"  # which is not ours
            assert column.better == ("neither" if parser else "lower")


def sentence(words):
    return len(words) > 10 and not words[0].islower() and words.endswith(".")


@pytest.mark.parametrize("name", SHEETS)
def test_what_a_goal_judges_is_also_in_a_table(name):
    sheet = SHEETS[name]
    assert {goal.figure.cell for goal in sheet.goals} <= {table.cell for table in sheet.tables}


class Alike(Idle):
    """A driver that stores as durably as all others, and does nothing else."""

    def ask(self, do, **arguments):
        return {"wal": 1, "synchronous": 2} if do == "durability" else {}


class Told:
    def __init__(self):
        self.expected, self.steps = [], []

    def expect(self, count):
        self.expected.append(count)

    def step(self, text):
        assert self.expected, "a step before anything was expected"
        self.steps.append(text)


@pytest.mark.parametrize("plan", [store_cells.FULL, store_cells.QUICK])
@pytest.mark.parametrize("peers", [(), ("hermes-agent",), ("hermes-agent", "openai-agents")])
def test_the_steps_of_the_store_are_known_from_the_beginning(tmp_path, plan, peers):
    told = Told()
    fleet = {name: Alike() for name in ("ours", "floors", *peers)}
    Cells(plan, fleet, Board(), tmp_path, told).all()
    assert told.expected == [len(told.steps)]
    assert list(tmp_path.iterdir()) == []


def test_a_quick_run_does_not_miss_what_is_stated_for_a_full_one():
    slow, broken = (
        Goal("speed", Ref("c", "w", "f"), 2),
        Goal("rule", Ref("c", "w", "f"), 2, at_any_size=True),
    )
    missed, met = Spread.of([3.0]), Spread.of([1.0])
    assert slow.outcome(missed) == broken.outcome(missed) == "FAIL"
    assert slow.outcome(missed, quick=True) == "not judged"
    assert broken.outcome(missed, quick=True) == "FAIL"
    assert slow.outcome(met, quick=True) == "pass"
    assert slow.outcome(None, quick=True) == "not measured"
