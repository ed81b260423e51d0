"""Figures, goals and result files: ratios per repetition, one reader and writer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from bench.harness.measurements import Goal, Measurements, Ref
from bench.report import results
from bench.report.results import CommandError, Spread
from tests.support.bench import result

RESULTS = Path(__file__).parents[3] / "bench" / "results"
OURS, THEIRS = Ref("cell", "ours", "rate"), Ref("cell", "theirs", "rate")


def measured(ours, theirs=()):
    measurements = Measurements()
    for value in ours:
        measurements.add("cell", "ours", {"rate": value})
    for value in theirs:
        measurements.add("cell", "theirs", {"rate": value})
    return measurements


def test_a_ratio_is_taken_within_each_repetition():
    found = measured([90, 10, 20], [10, 10, 5]).judge(Goal("", OURS, 1, THEIRS))
    assert found.measured == Spread(4, 1, 9, 2.5, 6.5, (9, 1, 4))


def test_a_difference_is_taken_within_each_repetition():
    embedded = Ref("cell", "embedded", "rate")
    found = measured([90, 20, 30], [10, 10, 5])
    for value in (80, 10, 0):
        found.add("cell", "embedded", {"rate": value})
    goal = Goal("", OURS, 1, THEIRS, less=embedded)
    assert found.judge(goal).measured.values == (1, 1, 6)
    assert goal.refs == [OURS, embedded, THEIRS]
    missing = measured([90], [10]).judge(goal)
    assert (missing.measured, missing.outcome) == (None, "not measured")


def test_repetitions_without_a_number_are_left_out():
    found = measured([10, math.nan, 40, math.inf, 90], [10, 10, 0, 10, 10])
    assert found.judge(Goal("", OURS, 1, THEIRS)).measured.values == (1, 9)


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf]])
def test_a_goal_without_any_number_is_not_measured(values):
    found = measured(values).judge(Goal("", OURS, 1))
    assert (found.measured, found.outcome) == (None, "not measured")


@pytest.mark.parametrize(
    ("values", "at_least", "outcome"),
    [([1, 9, 9], False, "FAIL"), ([9, 1, 1], False, "pass"), ([1, 9, 9], True, "pass")],
)
def test_the_median_decides_on_a_goal(values, at_least, outcome):
    assert measured(values).judge(Goal("", OURS, 5, at_least=at_least)).outcome == outcome


def test_a_quick_run_fails_only_goals_that_hold_at_any_size():
    speed, rule = Goal("", OURS, 2), Goal("", OURS, 2, at_any_size=True)
    missed, met = measured([3.0]), measured([1.0])
    assert missed.judge(speed).outcome == missed.judge(rule).outcome == "FAIL"
    assert missed.judge(speed, quick=True).outcome == "not judged"
    assert missed.judge(rule, quick=True).outcome == "FAIL"
    assert met.judge(speed, quick=True).outcome == "pass"
    assert measured([]).judge(speed, quick=True).outcome == "not measured"


def test_a_written_result_is_read_back(tmp_path):
    file = tmp_path / "new" / "store.json"
    results.write(file, result())
    assert results.read(file) == result()
    assert list(file.parent.iterdir()) == [file]


def test_a_result_file_is_valid_json_and_replaced_as_a_whole(tmp_path):
    file = tmp_path / "x.json"
    results.write(file, result("old"))
    with file.open() as old, pytest.raises(ValueError, match="not JSON compliant"):
        results.write(file, result("new", machine={"load": math.inf}))
    with file.open() as old:
        results.write(file, result("new"))
        assert json.load(old)["benchmark"] == "old"
    assert json.loads(file.read_text(), parse_constant=pytest.fail)["benchmark"] == "new"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"{", "is not a result file: Input data was truncated"),
        (b"\xff\xfe", "is not a result file: "),
        (b'{"machine": {"a": ' + b"[" * 100_000, "is not a result file: "),
        (b"[]", "is not a result file: Expected `object`"),
        (b'{"benchmark": "store"}', "is not a result file: Object missing required field"),
        (msgspec.json.encode(result()).replace(b'"values":[1.0', b'"values":[null'),
         "is not a result file: Expected `float`"),
        (msgspec.json.encode(result()).replace(b'"values":[1.0,3.0,2.0]', b'"values":[]'),
         "is not a result file: Expected `array` of length >= 1"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_result_is_refused_in_one_sentence(tmp_path, content, why):
    file = tmp_path / "x.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CommandError) as told:
        results.read(file)
    assert str(told.value).startswith(f"{file} {why}")
    assert "\n" not in str(told.value)


def test_a_folder_is_read_with_the_headline_first_and_other_files_are_ignored(tmp_path):
    for name in ("agents", "other", "store", "switch"):
        results.write(tmp_path / f"{name}.json", result(name))
    names = [each.benchmark for each in results.read_folder(tmp_path)]
    assert names == ["switch", "agents", "store"]


@pytest.mark.parametrize("name", ["switch", "runtime", "agents", "store", "hosts"])
def test_the_committed_results_are_full_runs_whose_goals_follow_from_their_figures(name):
    found = results.read(RESULTS / f"{name}.json")
    assert (found.benchmark, found.quick) == (name, False)
    for figure in found.figures:
        spread = Spread.of(figure.values)
        ends = (spread.low, spread.median, spread.high)
        assert (figure.low, figure.median, figure.high) == pytest.approx(ends)
    for goal in found.goals:
        at_least, target = goal.target.startswith(">="), float(goal.target.split()[1])
        met = goal.measured.median >= target if at_least else goal.measured.median <= target
        assert goal.outcome == ("pass" if met else "FAIL")
