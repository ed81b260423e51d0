"""What the benchmarks present is what they measure, in turn, and all of it is explained."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from bench.agents import benchmark as agents
from bench.cluster import benchmark as cluster
from bench.command import RESULTS
from bench.files import benchmark as files
from bench.harness.benchmark import Cell, Contender, Database, Group, run_cells
from bench.harness.driver import check_durability
from bench.harness.measurements import Measurements, Ref
from bench.hosts import benchmark as hosts
from bench.http import benchmark as http
from bench.report import results
from bench.runtime import benchmark as runtime
from bench.store import benchmark as store
from bench.switch import benchmark as switch

PLANS = [
    pytest.param(module, plan, id=f"{module.__name__.split('.')[1]}-{name}")
    for module in (store, runtime, agents, hosts, files, http, cluster)
    for name, plan in (("full", module.FULL), ("quick", module.QUICK))
]
SHOWN = [*PLANS, pytest.param(switch, switch.FULL, id="switch-full")]


def cells(module, plan):
    return [cell for group in module.groups(plan) for cell in group.cells]


def goals(module, plan):
    return switch.GOALS if module is switch else module.goals(plan)


def tables(module, plan):
    return module.tables(plan) if module is switch else [c.table for c in cells(module, plan)]


@pytest.mark.parametrize(("module", "plan"), PLANS)
def test_goals_judge_what_is_measured_and_shown(module, plan):
    pairs = [(cell.name, each.who) for cell in cells(module, plan) for each in cell.contenders]
    assert len(pairs) == len(set(pairs))
    refs = [ref for goal in goals(module, plan) for ref in goal.refs]
    assert {(ref.cell, ref.who) for ref in refs} <= set(pairs)
    columns = {(table.cell, c.figure) for table in tables(module, plan) for c in table.columns}
    assert {(ref.cell, ref.figure) for ref in refs} <= columns


@pytest.mark.parametrize(("module", "plan"), SHOWN)
def test_everything_is_explained_in_a_sentence_and_has_the_right_direction(module, plan):
    shown = tables(module, plan)
    columns = [column for table in shown for column in table.columns]
    for each in (*goals(module, plan), *shown, *columns):
        assert len(each.explains) > 10, each
        assert not each.explains[0].islower(), each
        assert each.explains.endswith("."), each
    for column in columns:
        if column.figure.endswith("rate"):
            assert column.better == "higher"
        if column.figure.endswith(("ms", "us", "mib", "kib", "seconds")):
            assert column.better == ("neither" if column.figure == "json_ms" else "lower")


@pytest.mark.parametrize("module", [switch, runtime, agents, store, hosts, cluster])
def test_the_goals_and_tables_are_those_of_the_committed_results(module):
    """A renamed goal or cell could not be compared with older results."""
    committed = results.read(RESULTS / f"{module.__name__.split('.')[1]}.json")
    made = Measurements()
    assert [made.judge(goal).goal for goal in goals(module, module.FULL)] == [
        goal.goal for goal in committed.goals
    ]
    assert [made.judge(goal).target for goal in goals(module, module.FULL)] == [
        goal.target for goal in committed.goals
    ]
    assert [(t.cell, t.title) for t in tables(module, module.FULL)] == [
        (table.cell, table.title) for table in committed.tables
    ]


@pytest.mark.parametrize("plan", [runtime.FULL, runtime.QUICK], ids=["full", "quick"])
def test_a_runtime_cell_is_as_large_as_its_name_says_for_both_sides(plan):
    asked = {cell.name: cell.contenders for cell in runtime.turn_cells(plan)}
    for name, grown in runtime.growing(plan).items():
        sizes = {size: asked[cell][0].arguments[name] for size, cell in grown.items()}
        assert sizes == {size: size for size in sizes}
    for contenders in asked.values():
        work = [
            (each.do, {**each.arguments, "count": None}) for each in contenders
        ]  # slow peers do fewer turns
        assert work == work[:1] * len(work)


def test_the_full_runtime_plan_spans_three_orders_of_magnitude():
    history, known, callers = map(list, runtime.growing(runtime.FULL).values())
    assert history == [10, 100, 1_000, 10_000]
    assert known == [1, 100, 1_000, 10_000]
    assert callers == [1, 10, 100]


class FakeDriver:
    """Records what it is asked to do, and creates the file that it is given."""

    about = ()

    def __init__(self, folder, asked):
        self.folder, self.asked = folder, asked

    def ask(self, do, path=None, **arguments):
        files = sorted(each.name for each in self.folder.iterdir())
        self.asked.append((do, files))
        if path is not None:
            for name in (path, f"{path}-wal"):
                Path(name).touch()
        return {"ms": len(self.asked)}


def test_contenders_take_turns_on_databases_that_are_filled_and_removed(tmp_path):
    kept, renewed = Database("ours", 10, 1000), Database("ours", 10, 100, renew=True)
    contenders = (
        Contender("a", "ours", "a", database=kept),
        Contender("b", "ours", "b", database=renewed),
        Contender("c", "ours", "c"),
        Contender("d", "missing", "d"),
    )
    asked = []
    group = Group(3, (Cell("cell", "", (), "", contenders),))
    found = run_cells([group], {"ours": FakeDriver(tmp_path, asked)}, tmp_path)
    done = [do for do, _ in asked]
    assert done == ["fill", "fill", *"abc", "fill", *"bca", "fill", *"cab"]
    both = ["filled-ours-10-100.db", "filled-ours-10-100.db-wal",
            "filled-ours-10-1000.db", "filled-ours-10-1000.db-wal"]  # fmt: skip
    assert [files for do, files in asked if do in "abc"] == [both] * 9
    assert [files for do, files in asked if do == "fill"][2:] == [both[2:]] * 2
    assert list(tmp_path.iterdir()) == []
    assert found.figures[Ref("cell", "b", "ms")] == [4, 7, 13]
    assert [ref.who for ref in found.figures] == ["a", "b", "c"]


class RoundsDriver:
    """Records what it is asked to do; every round of a contender adds one to its figure."""

    about = ()

    def __init__(self, folder, asked):
        self.folder, self.asked, self.rounds = folder, asked, {}

    def ask(self, do, who, path=None, **arguments):
        self.asked.append((do, who))
        if do == "begin":
            assert not Path(path).exists()
            Path(path).touch()
            self.rounds[who] = arguments["start"]
        if do == "go_on":
            self.rounds[who] += 1
        return {"ms": self.rounds[who]} if do == "end" else None


def test_in_rounds_contenders_take_turns_many_times_each_with_its_own_database(tmp_path):
    contenders = tuple(Contender(who, "ours", "begin", {"start": 0}) for who in "abc")
    asked = []
    driver = RoundsDriver(tmp_path, asked)
    cell = Cell("cell", "", (), "", contenders, rounds=4)
    found = run_cells([Group(2, (cell,))], {"ours": driver}, tmp_path)
    assert [who for do, who in asked if do == "begin"] == [*"abc", *"bca"]
    assert [who for do, who in asked if do == "go_on"] == [*"abcbcacababc", *"bcacababcbca"]
    assert found.figures[Ref("cell", "b", "ms")] == [4, 4]
    assert list(tmp_path.iterdir()) == []


def test_a_store_with_less_durability_stops_the_benchmark():
    with closing(apsw.Connection(":memory:")) as connection, pytest.raises(AssertionError) as told:
        check_durability(connection.execute)
    assert str(told.value) == "the store does not have the same durability: ['memory', 2]"
