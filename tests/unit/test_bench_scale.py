"""Scale on paper: the formulas against the simulation, the figures they need, and the page."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import attrs
import pytest

from bench import capacity, scale, scale_cases, scale_checks, scale_tables
from bench.simulation import Costs, Model, Node, People, closed, opened, watch
from bench.unit_costs import Missing, Results, units

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
ALWAYS = Model()


def poisson(costs, rate, seconds, seed, model):
    """A node under Poisson arrivals of people who never write twice."""
    random = Random(seed)
    node = Node(costs, model, random)
    opened(node, People(range(10**9), rate), random)
    return watch(node, 0.1 * seconds, seconds)


# The formulas


def test_the_formula_is_pollaczek_and_khinchine_where_nothing_is_shared():
    for spread in (0.0, 1.0):
        for load in (0.2, 0.5, 0.8):
            found = capacity.backlog(load, Costs(accept=0.5, run=0.5, flush=1e-9, spread=spread), 0)
            assert found.mean == pytest.approx(load * 0.5 * (1 + spread) / 2 / (1 - load), rel=0.01)
            assert found.empty == pytest.approx(1 - load, rel=0.01)


def test_commits_are_as_many_as_requests_when_idle_and_one_after_the_other_when_busy():
    assert capacity.commits_at(0.0, requests=0.001, one=1.0) == pytest.approx(0.001, rel=0.01)
    assert capacity.commits_at(0.0, requests=1000.0, one=1.0) == pytest.approx(1.0)
    assert capacity.commits_at(3.0, requests=1000.0, one=1.0) == pytest.approx(0.25)


def test_gamma_quantiles_are_those_of_the_tables():
    assert capacity.gamma_p99(1.0, 1.0) == pytest.approx(math.log(100), rel=0.02)
    assert capacity.gamma_p99(4.0, 4.0) == pytest.approx(10.045, rel=0.01)  # chi squared, 8 / 2
    assert capacity.gamma_p99(3.0, 0.0) == 3.0


@pytest.mark.parametrize("calls", [0, 1])
def test_a_loaded_node_is_as_slow_as_the_formula_says(calls):
    costs = Costs(0.25, 0.35, 0.4, 0.25, 4.5, spread=1.0)
    model = Model(median=1_000.0, sigma=0.6, calls=calls)
    rate = 0.6 * capacity.most(costs, calls)
    derived = capacity.under(rate, costs, model)
    seen = poisson(costs, rate, 25_000 / rate, seed=2, model=model)
    assert seen.busy == pytest.approx(derived.busy, rel=0.05)
    assert seen.batch == pytest.approx(derived.batch, rel=0.15)
    assert seen.mean == pytest.approx(derived.mean, rel=0.1)
    assert seen.quantile(0.99) == pytest.approx(derived.p99, rel=0.15)


def test_more_load_takes_longer_and_too_much_never_ends():
    costs, model = Costs(0.2, 0.3, 0.4, 0.2, 0.5, spread=1.0), Model(1.0, 0.6, 1)
    loads = [capacity.under(rate, costs, model) for rate in (0.1, 0.3, 0.6, 0.9)]
    for less, more in pairwise(loads):
        assert less.busy < more.busy < 1.01
        assert less.batch < more.batch
        assert less.mean < more.mean
        assert less.p99 < more.p99
        assert less.mean < less.p99
    assert capacity.alone(costs, 1) <= capacity.under(1e-6, costs, model).mean < 2.21
    assert capacity.under(1.0, costs, model).p99 == math.inf


def test_the_rate_within_a_p99_is_the_last_one_that_is():
    costs, model = Costs(0.2, 0.3, 0.4, 0.2, 0.5, spread=1.0), Model(1.0, 0.6, 1)
    rate = capacity.rate_within(10.0, costs, model)
    assert capacity.under(rate, costs, model).p99 == pytest.approx(10.0)
    assert capacity.rate_within(0.1, costs, model) == pytest.approx(0.0, abs=1e-9)


def test_sessions_without_a_pause_do_as_the_formula_says():
    costs = Costs(accept=0.25, run=0.25, commit=0.4, flush=0.2)
    for sessions in (1, 3, 10, 100):
        node = Node(costs, ALWAYS, Random(1))
        closed(node, sessions)
        assert watch(node, 200.0, 2000.0).rate == pytest.approx(
            capacity.at_once(sessions, costs), rel=0.03
        )
    crowd = capacity.at_once(100, costs)
    assert capacity.work_from(crowd, 100, 0.4 + 0.2) == pytest.approx(capacity.work(costs))


def test_imbalance_falls_with_people_and_grows_with_nodes():
    assert capacity.imbalance(10_000, 1) == 0.0
    assert capacity.imbalance(10_000, 4) == pytest.approx(0.0333, abs=1e-4)
    assert capacity.imbalance(100, 4) == pytest.approx(10 * capacity.imbalance(10_000, 4))


def test_after_a_restart_what_was_open_and_what_came_is_done_with_what_is_to_spare():
    assert capacity.catching_up(100, rate=50, down=2, capacity=100) == 4.0


# Figures, and the command


def write(folder, changed=None, without=None):
    """The committed results, with one figure changed or left out."""
    for name in ("store", "runtime", "agents"):
        content = json.loads((RESULTS / f"{name}.json").read_text())
        kept = []
        for one in content["figures"]:
            where = (name, one["cell"], one["who"], one["figure"])
            if where != without:
                kept.append({**one, "median": (changed or {}).get(where, one["median"])})
        present = {(name, one["cell"], one["who"], one["figure"]) for one in kept}
        for where, median in (changed or {}).items():
            if where[0] == name and where not in present:
                cell, who, figure = where[1:]
                kept.append({"cell": cell, "who": who, "figure": figure, "median": median})
        (folder / f"{name}.json").write_text(json.dumps({**content, "figures": kept}))
    return Results(folder)


def test_a_missing_figure_is_named_with_what_would_measure_it(tmp_path):
    results = write(tmp_path, without=("store", "opening", "ours, blocking", "ms"))
    with pytest.raises(Missing) as caught:
        units(results)
    assert str(caught.value) == (
        'store.json has no ms of "ours, blocking" in "opening": run `python -m bench store`.'
    )


def test_a_missing_or_broken_file_is_named(tmp_path, capsys):
    (tmp_path / "store.json").write_text("[]")
    assert scale.main(["--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "store.json is no file of results.\n"
    (tmp_path / "store.json").unlink()
    assert scale.main(["--results", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "store.json cannot be read (No such file or directory): run `python -m bench store`.\n"
    )


def test_figures_of_a_quick_run_are_no_costs(tmp_path, capsys):
    write(tmp_path)
    quick = json.loads((tmp_path / "agents.json").read_text())
    (tmp_path / "agents.json").write_text(json.dumps({**quick, "quick": True}))
    assert scale.main(["--results", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.err == "agents.json is of a quick run: run `python -m bench agents`.\n"


def test_figures_that_contradict_each_other_are_no_cost(tmp_path):
    where = ("store", "one session", "ours, actor", "rate")
    with pytest.raises(Missing, match="contradict each other: commit would be"):
        units(write(tmp_path, changed={where: 1e6}))


def test_costs_are_read_from_where_they_were_measured(tmp_path):
    changed = {
        ("runtime", "a warm session", "ours", "kib"): 20.0,
        ("runtime", "100 sessions at once", "ours", "disk_bytes"): 2000.0,
        ("runtime", "10 messages, one session", "ours", "cpu_ms"): 1.0,
        ("agents", "a turn, 10 messages", "ours", "cpu_ms"): 3.5,
    }
    found = units(write(tmp_path, changed=changed))
    assert (found.warm.value, found.stored.value, found.call.value) == (20 * 1024, 1000.0, 0.0025)


def test_what_is_apart_by_more_than_allowed_does_not_agree():
    assert scale_checks.Pair(100, 119, 0.2).agrees
    assert not scale_checks.Pair(100, 121, 0.2).agrees
    assert not scale_checks.Pair(100, 79, 0.2).agrees
    assert scale_checks.Pair(100, 79, 0.2, bound=True).agrees
    assert not scale_checks.Pair(100, 121, 0.2, bound=True).agrees


def test_a_measured_point_far_from_the_simulated_one_is_told_and_ends_with_1(tmp_path):
    where = ("runtime", "10 messages, one session", "ours", "rate")
    results = write(tmp_path, changed={where: 5_000.0})
    block = scale_tables.measured(scale_checks.crowded(results, units(results), 1))
    assert re.search(r"^1 +5,000 / .* OFF$", block.text, re.MULTILINE)
    assert re.search(r"^100 .* ok$", block.text, re.MULTILINE)
    fine = scale_tables.Block("fine", "")
    assert (scale.code([fine, block]), scale.code([fine, fine])) == (1, 0)


def test_points_that_were_not_measured_are_predicted_all_the_same(tmp_path):
    results = write(tmp_path)
    points = scale_checks.crowded(results, units(results), 1)
    unknown = [attrs.evolve(one, rate=None, p50_ms=None, cpu_ms=None) for one in points]
    block = scale_tables.measured(unknown)
    assert block.agrees
    assert re.search(r"^10 +- / ", block.text, re.MULTILINE)


def test_the_three_bots_need_more_of_everything_as_they_grow():
    costs, machine = units(Results(RESULTS)), scale_cases.Machine()
    for case in scale_cases.CASES:
        few = scale_cases.shares(case, costs, machine)
        more = attrs.evolve(case, people=2 * case.people, daily=2 * case.daily)
        many = scale_cases.shares(more, costs, machine)
        for limit in ("processor", "disk", "model"):
            assert many[limit] == pytest.approx(2 * few[limit])
        assert few["memory"] < many["memory"] <= 2 * few["memory"] + 1e-9


def test_the_model_ends_first_and_then_the_disk_as_the_page_says():
    costs, machine = units(Results(RESULTS)), scale_cases.Machine()
    for case in scale_cases.CASES:
        needs = scale_cases.shares(case, costs, machine)
        assert sorted(needs, key=needs.__getitem__, reverse=True)[:2] == ["model", "disk"]
        assert max(needs["processor"], needs["memory"]) < needs["disk"] / 2


def test_a_database_far_away_makes_turns_longer_and_carries_so_many_nodes():
    costs, model = Costs(0.2, 0.3, 0.4, 0.2, spread=1.0), Model()
    shared = scale_cases.Database(trip=1.0, flush=2.0, commits=10.0)
    far = scale_cases.through(shared, costs)
    assert capacity.alone(far) == pytest.approx(0.5 + 2 * 3.4)
    commits = 2 * 0.5 / capacity.under(0.5, far, model).batch
    assert scale_cases.nodes_on(shared, 0.5, far, model) == math.floor(10 / commits) > 0


def test_open_turns_take_memory_and_idle_actors_little():
    costs = units(Results(RESULTS))
    case = scale_cases.CASES[1]
    slow = attrs.evolve(case, shape=attrs.evolve(case.shape, seconds=2 * case.shape.seconds))
    more = scale_cases.memory(slow, costs) - scale_cases.memory(case, costs)
    assert more == pytest.approx(case.rate * case.shape.model.mean * case.shape.held(costs))
    rare = attrs.evolve(case, minutes=1e9)
    assert scale_cases.memory(rare, costs) == pytest.approx(costs.process.value, rel=1e-3)


def test_the_page_has_a_place_for_every_table():
    with pytest.raises(ValueError, match="no place for costs"):
        scale.filled("nothing", [scale_tables.Block("costs", "x")])
    page = "a\n<!-- scale: costs -->\nold\n<!-- end -->\nb\n<!-- scale: other -->\n<!-- end -->\n"
    assert scale.filled(page, [scale_tables.Block("costs", "new")]) == page.replace(
        "old", "```\nnew\n```"
    )


def test_the_page_is_what_the_command_writes_from_the_committed_results():
    """`python -m bench scale --write` after each full benchmark; it exits with 0."""
    page = (ROOT / "docs" / "scale.md").read_text()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "bench", "scale"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr or done.stdout
    shown = re.findall(r"<!-- scale: \w+ -->\n```\n(.*?)\n```\n<!-- end -->", page, re.DOTALL)
    assert "\n\n".join(shown) + "\n" == done.stdout
    assert len(shown) == page.count("<!-- scale:")
