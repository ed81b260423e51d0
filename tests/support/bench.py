"""A small result of a benchmark."""

from __future__ import annotations

from msgspec import structs

from bench.harness.measurements import Goal, Measurements, Ref
from bench.report.results import Axis, Column, Line, Plot, Result, Table


def result(benchmark="store", **changed):
    """A contender of ours and a peer in two cells, with one goal each way and one not measured."""
    measurements = Measurements()
    for ms in (1.0, 3.0, 2.0):
        measurements.add("cell", "ours", {"ms": ms})
        measurements.add("cell", "a peer", {"ms": 10.0, "s": 1.0})
        measurements.add("long", "ours", {"ms": 30 * ms})
    ours, theirs = Ref("cell", "ours", "ms"), Ref("cell", "a peer", "ms")
    goals = (
        Goal("theirs / ours", theirs, 4, ours, at_least=True, explains="A ratio."),
        Goal("fast", ours, 1, unit="ms", explains="A `time`."),
        Goal("nobody's", Ref("cell", "nobody", "ms"), 1, unit="ms", explains="Nothing."),
    )
    columns = (Column("ms", "p50 ms", 2, explains="Median."), Column("s", "s", explains="Time."))
    tables = (Table("cell", "a cell", columns, "What it costs."), Table("none", "no cell", columns))
    cells = ((10.0, "cell"), (10_000.0, "long"), (5.0, "none"))
    lines = (Line("ours", cells), Line("nobody", cells))
    x, y = Axis("messages", log=True), Axis("ms", log=True)
    made = Result(
        benchmark=benchmark,
        about="What is done.",
        quick=False,
        seconds=7,
        machine={"cores": 2, "processor": "P", "commit": "abc123", "when": "2026-11-16T10:00:00"},
        versions={"ours": {"hermes": "1", "python": "3.11"}},
        plan={"repetitions": 3},
        foreign=None,
        goals=measurements.goal_results(goals, quick=False),
        figures=measurements.all_figures(),
        tables=tables,
        plots=(Plot("growth", "ms", x, y, lines, "How it grows."),),
    )
    return structs.replace(made, **changed)
