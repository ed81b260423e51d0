"""What `bench runtime` shows is what it measures, and all of it is explained."""

from __future__ import annotations

import pytest

from bench.runtime import in_turn
from bench.runtime_cells import (
    CHANNEL,
    FLOOR,
    FULL,
    GATEWAY,
    OURS,
    QUICK,
    ends,
    of_files,
    of_messages,
    over_callers,
    over_history,
    over_known,
)
from bench.runtime_sheet import goals, plots, sheet, tables


@pytest.fixture(params=[FULL, QUICK], ids=["full", "quick"])
def plan(request):
    return request.param


def filled(plan):
    """Who is measured in which cell."""
    cells = of_messages(plan) + of_files(plan)
    return [(cell.name, each.who) for cell in cells for each in cell.contenders]


def test_no_cell_is_measured_twice(plan):
    assert sorted(filled(plan)) == sorted(set(filled(plan)))


def test_everybody_is_first_once_before_anybody_is_again(plan):
    ask, _ = of_messages(plan)
    orders = [in_turn(ask, {"ours", "floors", "xoscar"}, repetition) for repetition in range(5)]
    names = [[each.who for each in order] for order in orders]
    assert [order[0] for order in names] == [OURS, CHANNEL, FLOOR, "xoscar", OURS]
    assert [sorted(order) for order in names] == [sorted(names[0])] * 5


def test_every_goal_compares_what_is_measured(plan):
    refs = [ref for goal in goals(plan) for ref in (goal.figure, goal.beside) if ref is not None]
    assert {(ref.cell, ref.who) for ref in refs} <= set(filled(plan))


def test_every_cell_has_its_table(plan):
    cells = [cell.name for cell in of_messages(plan) + of_files(plan)]
    assert [table.cell for table in tables(plan)] == cells


def test_every_point_of_a_plot_is_measured(plan):
    points = {
        (cell, line.who)
        for plot in plots(plan)
        for line in plot.lines
        for cell in line.cells.values()
    }
    assert points <= set(filled(plan))


def test_plots_show_the_growth_of_both(plan):
    shown = [
        (plot.figure, plot.x.log, plot.y.log, {line.who: dict(line.cells) for line in plot.lines})
        for plot in plots(plan)
    ]
    assert shown == [
        (figure, True, True, dict.fromkeys((OURS, GATEWAY), cells))
        for figure, cells in (
            ("p50_ms", over_history(plan)),
            ("p50_ms", over_known(plan)),
            ("rate", over_callers(plan)),
        )
    ]


def test_figures_of_a_plot_are_columns_of_its_cells(plan):
    columns = {(table.cell, column.figure) for table in tables(plan) for column in table.columns}
    for plot in plots(plan):
        for line in plot.lines:
            assert {(cell, plot.figure) for cell in line.cells.values()} <= columns


def test_a_cell_is_as_large_as_its_name_says(plan):
    asked = {cell.name: cell.contenders[0].arguments for cell in of_files(plan)}
    assert {size: asked[cell]["history"] for size, cell in over_history(plan).items()} == {
        size: size for size in over_history(plan)
    }
    assert {size: asked[cell]["sessions"] for size, cell in over_known(plan).items()} == {
        size: size for size in over_known(plan)
    }
    assert {size: asked[over_callers(plan)[size]]["callers"] for size in plan.callers} == {
        size: size for size in plan.callers
    }


def test_both_sides_of_a_turn_cell_are_asked_for_the_same(plan):
    for cell in of_files(plan):
        sizes = [
            (each.do, {name: value for name, value in each.arguments.items() if name != "count"})
            for each in cell.contenders
        ]
        assert sizes == sizes[:1] * len(sizes)


def test_the_full_plan_has_the_points_of_the_issue():
    assert list(over_history(FULL)) == [10, 100, 1_000, 10_000]
    assert list(over_known(FULL)) == [1, 100, 1_000, 10_000]
    assert list(over_callers(FULL)) == [1, 10, 100]
    assert ends(FULL) == (
        "10,000 messages of history", "10,000 known sessions", "100 sessions at once",
    )  # fmt: skip


def test_everything_shown_is_explained(plan):
    every = sheet(plan)
    explained = [*every.goals, *every.tables, *every.plots]
    explained += [column for table in every.tables for column in table.columns]
    assert [each for each in explained if not each.explains.endswith(".")] == []


def test_of_rates_more_is_better_and_of_all_else_less(plan):
    ways = {
        (column.figure == "rate", column.better)
        for table in tables(plan)
        for column in table.columns
    }
    assert ways == {(True, "higher"), (False, "lower")}
