"""A small result of a benchmark."""

from __future__ import annotations

from msgspec import structs

from bench.harness.measurements import Goal, Measurements, Ref, ratio
from bench.report.results import Column, Result, Table

COLUMNS = (Column("ms", "p50 ms", 2, explains="Median."), Column("s", "s", explains="Time."))


def result(benchmark="store", **changed):
    """A contender of ours and a peer in one cell, with one goal each way and one not measured."""
    measurements = Measurements()
    for ms in (1.0, 3.0, 2.0):
        measurements.add("cell", "ours", {"ms": ms})
        measurements.add("cell", "a peer", {"ms": 10.0, "s": 1.0})
    goals = (
        ratio("cell", "ms", "a peer", "ours", 4, "A ratio.", text="theirs / ours"),
        Goal("fast", Ref("cell", "ours", "ms"), 1, unit="ms", explains="A `time`."),
        Goal("nobody's", Ref("cell", "nobody", "ms"), 1, unit="ms", explains="Nothing."),
    )
    made = Result(
        benchmark=benchmark,
        about="What is done.",
        quick=False,
        seconds=7,
        machine={"cores": 2, "processor": "P", "commit": "abc123", "when": "2026-11-16T10:00:00"},
        versions={"ours": {"hermes": "1", "python": "3.11"}},
        plan={"repetitions": 3},
        foreign=None,
        goals=tuple(map(measurements.judge, goals)),
        figures=measurements.all_figures(),
        tables=(Table("cell", "a cell", COLUMNS, "What it costs."), Table("no", "none", COLUMNS)),
    )
    return structs.replace(made, **changed)
