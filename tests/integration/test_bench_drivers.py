"""Our drivers without any peer: all our figures are measured, and wrong ones stop the run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import attrs
import pytest

from bench.errors import DriverFailed
from bench.harness.driver import open_driver, open_drivers
from bench.harness.measurements import Ref
from bench.harness.progress import Steps
from bench.harness.runner import run_cells
from bench.harness.timing import Run
from bench.runtime import benchmark as runtime
from bench.runtime.ours import check_rows
from bench.store import benchmark as store

TINY_RUNTIME = attrs.evolve(
    runtime.QUICK, repetitions=2, asks=200, tells=200, idle=3, warm=2, turns=4, peer_turns=2,
    histories=(12, 20), known=(2, 3), callers=(2, 3), seconds=0.01,
)  # fmt: skip
TINY_STORE = attrs.evolve(
    store.QUICK, seconds=0.02, repetitions=1, stored=200, transcript=20, sessions=20,
    sized=200,
)  # fmt: skip
PEERS = "Pykka|xoscar|autogen|hermes|openai|langgraph"


@pytest.mark.parametrize(
    ("module", "benchmark", "plan"),
    [(runtime, runtime.RUNTIME, TINY_RUNTIME), (store, store.STORE, TINY_STORE)],
    ids=["runtime", "store"],
)
def test_without_peers_everything_of_ours_is_measured(tmp_path, module, benchmark, plan):
    ours = {name: benchmark.modules[name] for name in ("ours", "baselines")}
    steps = Steps()
    with open_drivers(tmp_path, ours) as drivers:
        if module is store:
            store.check_durability(drivers, tmp_path)
        found = run_cells(module.groups(plan), drivers, tmp_path, steps)
    assert steps.started == steps.expected
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(("fresh", "filled"))]
    sheet = module.sheet(plan)
    for table in sheet.tables:
        for column in table.columns:
            refs = [Ref(table.cell, who, column.figure) for who in found.who(table.cell)]
            assert any(found.spread(ref) for ref in refs), (table.cell, column.figure)
    for goal in sheet.goals:
        missing = bool(re.search(PEERS, goal.text))
        assert (goal.outcome(found.measured(goal)) == "not measured") == missing, goal.text


def test_a_driver_that_does_not_start_stops_the_benchmark(tmp_path):
    with (
        pytest.raises(DriverFailed, match="ours exited without a response"),
        open_driver("ours", "bench.store.ours", Path("/bin/false"), tmp_path),
    ):
        pass


def test_a_driver_reports_its_errors(tmp_path):
    with open_driver("ours", "bench.store.ours", Path(sys.executable), tmp_path) as driver:
        with pytest.raises(DriverFailed, match=r"ours load: .*\n(.*\n)*Traceback"):
            driver.ask("load", path=str(tmp_path / "no" / "x"), session=0, turns=1, times=1)
        assert driver.ask("durability", path=str(tmp_path / "x")) == store.DURABLE


def test_missing_rows_and_searches_without_a_hit_are_errors():
    check_rows(4, 4)
    with pytest.raises(AssertionError, match="4 rows were stored instead of 6"):
        check_rows(4, 6)
    run = Run(1.0)
    run.add(0.0)
    run.finish()
    assert run.figures_with_search(1.0, hits=1)["catch_up_ms"] == 1e3
    with pytest.raises(AssertionError, match="found the last append 0 times"):
        run.figures_with_search(1.0, hits=0)
