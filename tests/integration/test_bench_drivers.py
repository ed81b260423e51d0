"""Our drivers without any peer: all our figures are measured, and wrong ones stop the run."""

from __future__ import annotations

import re

import attrs
import pytest

from bench.cluster import benchmark as cluster
from bench.files import benchmark as files
from bench.harness.benchmark import run_cells
from bench.harness.driver import Run
from bench.harness.process import DriverFailed, open_drivers
from bench.hosts import benchmark as hosts
from bench.http import benchmark as http
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
TINY_HOSTS = attrs.evolve(hosts.QUICK, repetitions=1, streams=2, pieces=20)
TINY_FILES = attrs.evolve(files.QUICK, repetitions=1, megabytes=0.5, times=1)
TINY_HTTP = attrs.evolve(
    http.QUICK, repetitions=1, rounds=2, requests=2, streams=20, asked=4, asked_slow=4, clients=2
)
TINY_CLUSTER = attrs.evolve(
    cluster.QUICK, repetitions=1, seconds=0.05, callers=3, conversations=3, losses=1
)
PEERS = "Pykka|xoscar|autogen|hermes|openai|langgraph|agno|DBOS"


@pytest.mark.parametrize(
    ("module", "benchmark", "plan"),
    [
        (runtime, runtime.RUNTIME, TINY_RUNTIME),
        (store, store.STORE, TINY_STORE),
        (hosts, hosts.HOSTS, TINY_HOSTS),
        (files, files.FILES, TINY_FILES),
        (http, http.HTTP, TINY_HTTP),
        (cluster, cluster.CLUSTER, TINY_CLUSTER),
    ],
    ids=["runtime", "store", "hosts", "files", "http", "cluster"],
)
def test_without_peers_everything_of_ours_is_measured(tmp_path, module, benchmark, plan):
    ours = {name: each for name, each in benchmark.modules.items() if "peers" not in each}
    groups = module.groups(plan)
    with open_drivers(tmp_path, ours) as drivers:
        found = run_cells(groups, drivers, tmp_path)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(("fresh", "filled"))]
    for cell in (cell for group in groups for cell in group.cells):
        for column in cell.columns:
            named = cell.name, column.figure
            assert any((ref.cell, ref.figure) == named for ref in found.figures), named
    for goal in module.goals(plan):
        missing = bool(re.search(PEERS, goal.text))
        assert (found.judge(goal).outcome == "not measured") == missing, goal.text


def test_a_driver_that_does_not_start_stops_the_benchmark(tmp_path):
    with (
        pytest.raises(DriverFailed, match=r"ours exited without a response\n.*No module"),
        open_drivers(tmp_path, {"ours": "bench.nothing"}),
    ):
        pass


def test_a_driver_reports_its_errors(tmp_path):
    with open_drivers(tmp_path, {"ours": "bench.store.ours"}) as drivers:
        driver = drivers["ours"]
        with pytest.raises(DriverFailed, match=r"ours load: .*\n(.*\n)*Traceback"):
            driver.ask("load", path=str(tmp_path / "no" / "x"), session=0, turns=1, times=1)
        assert driver.ask("append_blocking", path=str(tmp_path / "x"), seconds=0.01)["count"] > 0


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
