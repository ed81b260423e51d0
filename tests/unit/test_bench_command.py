"""What is asked for and cannot be is told in one sentence, before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS, COMMANDS, USAGE, main
from bench.command import results

README = Path(__file__).parents[2] / "README.md"


def called(capsys, *arguments):
    """The exit code and what was said."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


def test_every_command_is_listed(capsys):
    code, out, said = called(capsys)
    assert (code, out) == (2, "")
    assert [name.split()[0] for name in USAGE] == list(COMMANDS)
    assert all(about in said for about in USAGE.values())
    assert called(capsys, "--help") == (0, said, "")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_tells_how_it_is_called(capsys, name):
    code, out, _ = called(capsys, name, "--help")
    assert code == 0
    assert all(option in out for option in ("--quick", "--out", "--dir", "--page"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "There is no 'nothing'; python -m bench lists all."),
        (["store", "--fast"],
         "python -m bench store: unrecognized arguments: --fast (--help tells more)"),
        (["store", "--dir", "/no/such"],
         "No databases can be made in /no/such: No such file or directory."),
        (["store", "--dir", README], f"No databases can be made in {README}: Not a directory."),
        (["store", "--out", "/proc/no/x.json"],
         "/proc/no/x.json cannot be written: No such file or directory."),
        (["store", "--out", "/proc/x.json"],
         "/proc/x.json cannot be written: No such file or directory."),
        (["store", "--out", README / "x.json"], f"{README}/x.json cannot be written: File exists."),
        (["store", "--out", README.parent],
         f"{README.parent} cannot be written: it is a folder."),
        (["store", "--page", README.parent],
         f"{README.parent} cannot be written: it is a folder."),
        (["all", "--out", README], f"{README}/report.html cannot be written: File exists."),
        (["all", "--dir", "/no/such"],
         "No databases can be made in /no/such: No such file or directory."),
        (["all", "store"],
         "python -m bench all: unrecognized arguments: store (--help tells more)"),
        (["page"], "python -m bench page: the following arguments are required: FILE "
         "(--help tells more)"),
        (["page", "/no.json", "--out", "/tmp/x.html"],
         "/no.json cannot be read: No such file or directory."),
        (["page", README, "--out", "/tmp/x.html"],
         f"{README} is not a file of results: it is not JSON."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_in_one_sentence(capsys, tmp_path, arguments, said):
    if arguments[0] == "store" and "--out" not in arguments:
        arguments = [*arguments, "--out", tmp_path / "x.json"]
    assert called(capsys, *arguments) == (2, "", said + "\n")


def test_results_and_page_are_two_files(capsys, tmp_path):
    file = tmp_path / "x.html"
    said = f"{file} cannot be both results and their page.\n"
    assert called(capsys, "agents", "--out", file) == (2, "", said)


def test_quick_results_do_not_go_over_full_ones():
    quick, full = results(quick=True), results(quick=False)
    assert quick.parent == full
    ignored = (README.parent / ".gitignore").read_text().splitlines()
    assert str(quick.relative_to(README.parent)) in ignored


def test_a_page_does_not_go_over_its_results(capsys, tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"benchmark": "other"}')
    said = f"{file} cannot be both results and their page.\n"
    assert called(capsys, "page", tmp_path / "." / "x.json", "--out", file) == (2, "", said)
    assert file.read_text() == '{"benchmark": "other"}'


def test_deep_nonsense_is_no_result(capsys, tmp_path):
    file = tmp_path / "x.json"
    file.write_text("[" * 100_000)
    said = f"{file} is not a file of results: it is not JSON.\n"
    assert called(capsys, "page", file, "--out", tmp_path / "y.html") == (2, "", said)


def test_a_page_is_made_of_files(capsys, tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"benchmark": "other"}')
    page = tmp_path / "pages" / "y.html"
    assert called(capsys, "page", file, "--out", page) == (0, f"written to {page}\n", "")
    assert "other" in page.read_text()


def test_ctrl_c_is_understood_as_trio_tells_it(capsys):
    def stop(arguments):
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [KeyboardInterrupt()])])

    assert main(["stop"], {"stop": stop}) == 130
    assert capsys.readouterr().err == "Interrupted: what was not finished is not written.\n"


def test_a_mistake_is_not_taken_for_ctrl_c():
    def fail(arguments):
        raise BaseExceptionGroup("", [KeyboardInterrupt(), ValueError()])

    with pytest.raises(BaseExceptionGroup):
        main(["fail"], {"fail": fail})
