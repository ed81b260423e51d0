"""What is shown of results: in a terminal, and in the benchmark's own README."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import show, tables, written
from bench.__main__ import COMMANDS, main
from bench.board import Board, Goal, Ref
from bench.report import Column, Json, Measured, Sheet, Table, document


def result(name: str = "store") -> dict[str, Json]:
    board = Board()
    for speed in (1.0, 3.0, 2.0):
        board.add("cell", "ours", {"ms": speed})
        board.add("cell", "theirs", {"ms": 10.0})
    theirs = Ref("cell", "theirs", "ms")
    sheet = Sheet(
        [
            Goal("theirs / ours", theirs, 4, Ref("cell", "ours", "ms"), at_least=True),
            Goal("somebody else's", Ref("cell", "nobody", "ms"), 1, unit="ms"),
        ],
        [Table("cell", "a cell", (Column("ms", "p50 ms", 2), Column("s", "s")))],
    )
    machine: dict[str, Json] = {"cores": 2, "processor": "P", "commit": "c", "when": "now"}
    found = document(Measured(board, sheet, machine, {"ours": {"hermes": "1"}}, {}))
    return {"benchmark": name, "quick": False, "seconds": 7, **found}


def test_ratios_come_first_then_the_figures():
    shown = tables.text(written.parse(result()))
    assert re.search(r"theirs / ours +>= 4 x +5\.00 \[3\.33\.\.10\.00\] x +pass", shown)
    assert re.search(r"somebody else's +<= 1 ms +- +not measured", shown)
    assert re.search(r"a cell +p50 ms +s\n  ours +2\.00 \[1\.00\.\.3\.00\] +-\n", shown)
    assert shown.index("theirs / ours") < shown.index("a cell")
    assert "python -m bench store: 7 s, now, commit c" in shown
    assert "hermes 1" in shown


def test_a_quick_run_says_so():
    assert "QUICK" in tables.text(written.parse({**result(), "quick": True}))
    assert "QUICK" not in tables.text(written.parse(result()))


def test_files_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.json").write_text(json.dumps(result()))
    assert main(["show", str(tmp_path / "a.json")]) == 0
    assert "theirs / ours" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", "[]", '{"benchmark": 3}'])
def test_what_is_no_result_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
):
    file = tmp_path / "a.json"
    if content is not None:
        file.write_text(content)
    assert main(["show", str(file)]) == 2
    said = capsys.readouterr().err
    assert str(file) in said
    assert "Traceback" not in said


def test_the_headline_comes_first(tmp_path: Path):
    for name in ("agents", "other", "runtime", "store", "switch"):
        (tmp_path / f"{name}.json").write_text(json.dumps(result(name)))
    (tmp_path / "none.json").write_text("{}")
    names = [written.parse(each).benchmark for each in written.beside(tmp_path)]
    assert names == ["switch", "runtime", "agents", "store", "other"]


# The README of the benchmark


def test_the_readme_has_the_last_results():
    page = show.README.read_text()
    assert show.filled(page) == page, "python -m bench show --write"
    assert show.BLOCK.findall(page)


def test_the_readme_has_full_results_of_every_benchmark():
    names = [found[1] for found in show.BLOCK.findall(show.README.read_text())]
    assert sorted(names) == ["agents", "runtime", "store", "switch"]
    for name in names:
        shown = written.parse(written.read(show.RESULTS / f"{name}.json"))
        assert shown.benchmark == name
        assert not shown.quick


def test_the_readme_names_commands_that_there_are():
    commands = re.findall(r"^python -m bench (\w+)", show.README.read_text(), re.MULTILINE)
    assert set(commands) == set(COMMANDS)
