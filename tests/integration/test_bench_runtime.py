"""`bench runtime` with our own drivers: every figure that is shown of us is measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import attrs
import pytest
import trio

from bench.board import Ref
from bench.drivers import DriverFailed
from bench.peers import ours_runtime
from bench.runtime import OUR_OWN, count, fleet, measured
from bench.runtime_cells import CHANNEL, FLOOR, OURS, QUICK, of_files, of_messages
from bench.runtime_sheet import goals, tables
from hermes import open_runtime

TINY = attrs.evolve(
    QUICK, repetitions=2, asks=200, tells=200, idle=3, warm=2, turns=4, peer_turns=2,
    histories=(12, 20), known=(2, 3), callers=(2, 3), seconds=0.0,
)  # fmt: skip


class Told:
    """Steps as they were told."""

    def __init__(self):
        self.texts = []

    def expect(self, count):
        raise AssertionError("all steps are expected before anything is measured")

    def step(self, text):
        self.texts.append(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A board that was filled by our own drivers alone, as where no peer can be installed."""
    folder = tmp_path_factory.mktemp("bench")
    told = Told()
    with fleet(folder, dict.fromkeys(OUR_OWN, Path(sys.executable))) as drivers:
        board = measured(TINY, drivers, folder, told)
    left = {each.name for each in folder.iterdir() if each.name.startswith("fresh")}
    return board, told.texts, left


def test_every_figure_shown_of_us_is_measured(run):
    board, _, _ = run
    shown = {
        Ref(table.cell, OURS, column.figure) for table in tables(TINY) for column in table.columns
    }
    judged = {
        ref
        for goal in goals(TINY)
        for ref in (goal.figure, goal.beside)
        if ref is not None and ref.who in {OURS, CHANNEL, FLOOR}
    }
    assert (shown | judged) - set(board.figures) == set()


def test_cells_are_filled_as_often_as_the_plan_says(run):
    board, _, _ = run
    repetitions = {
        (cell.name, who.who): times
        for cells, times in ((of_messages(TINY), 2), (of_files(TINY), 1))
        for cell in cells
        for who in cell.contenders
        if who.driver in OUR_OWN
    }
    assert {
        (ref.cell, ref.who): len(values) for ref, values in board.figures.items()
    } == repetitions


def test_what_compares_with_somebody_missing_is_not_measured(run):
    board, _, _ = run
    outcomes = {goal.text: goal.outcome(board.measured(goal)) for goal in goals(TINY)}
    without = {text for text, outcome in outcomes.items() if outcome == "not measured"}
    assert without == {
        goal.text for goal in goals(TINY) if re.search("Pykka|xoscar|autogen|hermes", goal.text)
    }


def test_steps_are_as_many_as_announced_and_nothing_is_left(run):
    _, texts, left = run
    assert len(texts) == count(TINY)
    assert left == set()


def test_a_driver_that_does_not_start_stops_the_benchmark(tmp_path):
    pythons = {"ours": Path(sys.executable), "floors": Path("/bin/false")}
    with pytest.raises(DriverFailed, match="floors ended"), fleet(tmp_path, pythons):
        pass


def test_a_row_that_is_missing_stops_the_benchmark(tmp_path):
    ours_runtime.fill(tmp_path / "db", history=4, sessions=2, chats=1)

    async def look():
        async with open_runtime(tmp_path / "db", agent=ours_runtime.echo) as runtime:
            await ours_runtime.check(runtime, 0, 4)
            await ours_runtime.check(runtime, 1, 2)
            with pytest.raises(AssertionError, match="4 rows of chat 0 were stored instead of 6"):
                await ours_runtime.check(runtime, 0, 6)

    trio.run(look)
