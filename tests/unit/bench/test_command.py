"""A request that cannot be fulfilled is refused in one sentence, before anything is measured."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS, main
from bench.command import QUICK_RESULTS
from bench.switch.figures import Prices

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"


def called(capsys, *arguments):
    """The exit code, and what was printed."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


def test_every_command_is_listed(capsys):
    code, shown, _ = called(capsys, "--help")
    assert code == 0
    assert all(benchmark.about[:30] in shown for benchmark in BENCHMARKS)
    assert all(name in shown for name in ("all", "show", "compare", "scale"))


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_a_benchmark_explains_its_options(capsys, benchmark):
    code, out, _ = called(capsys, benchmark.name, "--help")
    assert code == 0
    assert all(option in out for option in ("--quick", "--out", "--dir"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "python -m bench: error: the following arguments are required: COMMAND"),
        (["nothing"], "python -m bench: error: argument COMMAND: invalid choice: 'nothing' "
         "(choose from 'switch', 'runtime', 'agents', 'store', 'hosts', 'files', 'http', "
         "'cluster', 'all', 'show', 'compare', 'scale')"),
        (["store", "--fast"], "python -m bench: error: unrecognized arguments: --fast"),
        (["store", "--dir", "/no/such", "--out", "OUT"],
         "/no/such cannot hold files: No such file or directory."),
        (["store", "--out", "/proc/no/x.json"],
         "/proc/no cannot hold files: No such file or directory."),
        (["store", "--out", README / "x.json"], f"{README} cannot hold files: File exists."),
        (["store", "--out", ROOT], f"{ROOT} cannot be written: it is a folder."),
        (["all", "--out", README], f"{README} cannot hold files: File exists."),
        (["show", "/no.json"], "/no.json cannot be read: No such file or directory."),
        (["switch", "--prices", "1,2"], "python -m bench switch: error: argument --prices: prices "
         "are three numbers, such as 2.5,0.25,10, not '1,2'"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_one_sentence(capsys, tmp_path, arguments, why):
    arguments = [tmp_path / "x.json" if each == "OUT" else each for each in arguments]
    code, out, err = called(capsys, *arguments)
    assert (code, out, err.splitlines()[-1]) == (2, "", why)


def test_results_and_their_page_are_two_files(capsys, tmp_path):
    file = tmp_path / "x.html"
    why = f"{file} cannot be both a result file and its page.\n"
    assert called(capsys, "agents", "--out", file) == (2, "", why)


def test_quick_results_are_not_committed():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert str(QUICK_RESULTS.relative_to(ROOT)) in ignored


@pytest.mark.parametrize("text", ["", "1", "a,b,c", "1,2,3,4", "-1,0,0", "1,2,", "nan,1,1"])
def test_prices_must_be_three_numbers(text):
    with pytest.raises(argparse.ArgumentTypeError, match="three numbers"):
        Prices.parse(text)


def test_the_cost_follows_from_the_prices():
    prices = Prices.parse("2.5, 0.25, 10")
    assert prices.cost(3_000_000, 1_000_000, 1_000_000) == 5.0 + 0.25 + 10.0
