"""The commands that run benchmarks, `all` of them included, and `show` their results."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from bench.errors import CommandError
from bench.harness.benchmark import Benchmark, Run
from bench.harness.driver import open_drivers
from bench.harness.machine import describe_machine, load_average
from bench.harness.progress import Steps
from bench.report import results, tables
from bench.report.page import render_page
from bench.report.results import Result

HERE = Path(__file__).parent
RESULTS = HERE / "results"
QUICK_RESULTS = RESULTS / "quick"
README = HERE / "README.md"
REPORT = "report.html"
"""The page with all results of its folder."""


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def run(benchmark: Benchmark, arguments: Sequence[str]) -> int:
    """Run one benchmark: print its tables, write its result file and the page."""
    parser = Parser(prog=f"python -m bench {benchmark.name}", description=benchmark.about)
    benchmark.add_options(parser)
    _add_run_options(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json",
        help="result file, with its page beside it (default: in bench/results, with one page for "
        "all; quick results are in bench/results/quick)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    folder = QUICK_RESULTS if options.quick else RESULTS
    out = options.out or folder / f"{benchmark.name}.json"
    page = out.with_suffix(".html") if options.out else folder / REPORT
    _check_writable(out, page)
    result = _measure(benchmark, options)
    results.write(out, result)
    _write_page(page, [result] if options.out else results.read_folder(folder))
    print(tables.render(result))
    print(f"\n{result.seconds:.0f} s; results written to {out}, page written to {page}")
    return 0


def run_all(benchmarks: Iterable[Benchmark], arguments: Sequence[str]) -> int:
    """Run all benchmarks and write one page. A failure does not stop the others; exit code 1."""
    parser = Parser(prog="python -m bench all", description="Run all benchmarks; write one page.")
    for benchmark in benchmarks:
        benchmark.add_options(parser)
    _add_run_options(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER",
        help="folder of the results and the page (default: bench/results, or quick in there)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    folder = options.out or (QUICK_RESULTS if options.quick else RESULTS)
    _open_work_folder(options.dir).cleanup()
    _check_writable(folder / REPORT)
    measured, failed = [], []
    for benchmark in benchmarks:
        print(f"\n{benchmark.name}", flush=True)
        try:
            result = _measure(benchmark, options)
        except Exception:  # noqa: BLE001 - reported; the other benchmarks still run
            traceback.print_exc()
            failed.append(benchmark.name)
            continue
        results.write(folder / f"{benchmark.name}.json", result)
        print(tables.render(result))
        measured.append(result)
    _write_page(folder / REPORT, measured)
    print(f"\n{summary(measured)}\n\npage written to {folder / REPORT}")
    if failed:
        print(f"Failed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def summary(shown: Sequence[Result]) -> str:
    """Count the outcomes of all goals, and list those that failed."""
    lines = [["benchmark", "pass", "FAIL", "not judged", "not measured"]]
    failed = []
    for result in shown:
        outcomes = Counter(goal.outcome for goal in result.goals)
        lines.append([result.benchmark, *(str(outcomes[name]) for name in lines[0][1:])])  # type: ignore[index]
        failed += [
            f"FAIL {result.benchmark}: {goal.goal}: {goal.measured.median:,.2f} {goal.unit}, "
            f"target {goal.target}"
            for goal in result.goals
            if goal.outcome == "FAIL" and goal.measured
        ]
    quick = [tables.QUICK] if any(result.quick for result in shown) else []
    return "\n".join([tables.align(lines), *failed, *quick])


def show(arguments: Sequence[str]) -> int:
    """Print the tables of result files, or write a page or the README from them."""
    parser = Parser(prog="python -m bench show", description=show.__doc__)
    parser.add_argument(
        "files", metavar="FILE", nargs="*", type=Path, help="default: all of bench/results/"
    )
    parser.add_argument("--page", type=Path, metavar="HTML", help="write a page instead")
    parser.add_argument(
        "--write", action="store_true", help="update the tables in bench/README.md and the page"
    )
    options = parser.parse_args(arguments)
    shown = [results.read(file) for file in options.files] or results.read_folder(RESULTS)
    target = RESULTS / REPORT if options.write else options.page
    if target:
        _check_writable(target, *options.files)
        _write_page(target, shown)
        print(f"page written to {target}")
    if options.write:
        results.write_text(README, tables.fill(README.read_text(), shown))
    if not target:
        print("\n\n".join(map(tables.render, shown)))
    return 0


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, less data")
    parser.add_argument(
        "--dir", type=Path, default=HERE, help="where temporary databases are created"
    )


def _measure(benchmark: Benchmark, options: argparse.Namespace) -> Result:
    started = time.monotonic()
    with _open_work_folder(options.dir) as name:
        folder = Path(name)
        machine = describe_machine(folder)
        with open_drivers(folder, benchmark.modules) as drivers:
            versions = {name: driver.about for name, driver in drivers.items()}
            measured = benchmark.measure(Run(drivers, folder, Steps(), options))
        machine["load_after"] = load_average()
    sheet, measurements = measured.sheet, measured.measurements
    return Result(
        benchmark=benchmark.name,
        about=benchmark.about,
        quick=options.quick,
        seconds=round(time.monotonic() - started),
        machine=machine,
        versions=versions,
        plan=msgspec.to_builtins(measured.plan),
        foreign=None if measured.foreign is None else tuple(measured.foreign),
        goals=measurements.goal_results(sheet.goals, quick=options.quick),
        figures=measurements.all_figures(),
        tables=tuple(sheet.tables),
        plots=tuple(sheet.plots),
    )


def _open_work_folder(parent: Path) -> tempfile.TemporaryDirectory[str]:
    """Create a folder that is removed when its block ends.

    It is not in /tmp, which is often held in memory: flushing to memory would measure nothing.
    """
    try:
        # The path is absolute because every driver has its own working directory.
        return tempfile.TemporaryDirectory(prefix=".run-", dir=parent.absolute())
    except OSError as error:
        raise CommandError(f"{parent} cannot hold databases: {error.strerror}.") from error


def _check_writable(*files: Path) -> None:
    """Fail before anything is measured if a file cannot be written, or is named twice."""
    if len({file.resolve() for file in files}) < len(files):
        raise CommandError(f"{files[0]} cannot be both a result file and its page.")
    for file in files:
        if file.is_dir():
            raise CommandError(f"{file} cannot be written: it is a folder.")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=file.parent):
                pass
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}.") from error


def _write_page(path: Path, shown: Sequence[Result]) -> None:
    results.write_text(path, render_page(shown))
