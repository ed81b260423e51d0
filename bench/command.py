"""The commands that run benchmarks and show their results."""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.harness.benchmark import Benchmark, Run
from bench.harness.machine import describe_machine, load_average
from bench.harness.process import open_drivers
from bench.report import results, tables
from bench.report.page import render_page
from bench.report.results import CommandError, Result

HERE = Path(__file__).parent
RESULTS = HERE / "results"
QUICK_RESULTS = RESULTS / "quick"
README = HERE / "README.md"
REPORT = "report.html"
"""The page with all results of its folder."""


def run(benchmarks: Sequence[Benchmark], options: argparse.Namespace) -> int:
    """Run benchmarks, print their tables, and write their result files and one page.

    If one of several benchmarks fails, the others still run, and the exit code is 1.
    """
    folder = options.out or (QUICK_RESULTS if options.quick else RESULTS)
    page = folder / REPORT
    files = {benchmark.name: folder / f"{benchmark.name}.json" for benchmark in benchmarks}
    if options.out and len(benchmarks) == 1:
        files, page = {benchmarks[0].name: options.out}, options.out.with_suffix(".html")
    _check_writable(options.dir, *files.values(), page)
    measured, failed = [], []
    for benchmark in benchmarks:
        try:
            result = _measure(benchmark, options)
        except Exception:  # reported; the other benchmarks still run
            if len(benchmarks) == 1:
                raise
            traceback.print_exc()
            failed.append(f"Failed: {benchmark.name}.")
            continue
        results.write(files[benchmark.name], result)
        measured.append(result)
        print(f"{tables.render(result)}\n\nresults written to {files[benchmark.name]}\n")
    results.write_text(page, render_page(measured if options.out else results.read_folder(folder)))
    missed = [
        f"FAIL {result.benchmark}: {goal.goal}: {goal.measured.text(2)} {goal.unit}, "
        f"target {goal.target}"
        for result in measured
        for goal in result.goals
        if goal.outcome == "FAIL" and goal.measured
    ]
    print("\n".join([*missed, *failed, f"page written to {page}"]))
    return 1 if failed else 0


def show(files: Sequence[Path], page: Path | None, *, write: bool) -> int:
    """Print the tables of result files, or write a page or the README from them."""
    shown = [results.read(file) for file in files] or results.read_folder(RESULTS)
    target = RESULTS / REPORT if write else page
    if write:
        made = {result.benchmark: tables.render(result) for result in shown}
        results.write_text(README, tables.fill(README.read_text(), "results", made))
    if target:
        results.write_text(target, render_page(shown))
        print(f"page written to {target}")
    else:
        print("\n\n".join(map(tables.render, shown)))
    return 0


def _measure(benchmark: Benchmark, options: argparse.Namespace) -> Result:
    started = time.monotonic()
    # Not in /tmp, which is often held in memory: flushing to memory would measure nothing. The
    # path is absolute because drivers have other working directories.
    with tempfile.TemporaryDirectory(prefix=".run-", dir=options.dir.absolute()) as name:
        folder = Path(name)
        machine = describe_machine(folder)
        with open_drivers(folder, benchmark.modules) as drivers:
            versions = {name: driver.about for name, driver in drivers.items()}
            measured = benchmark.measure(Run(drivers, folder, options))
        machine["load_after"] = load_average()
    found = measured.measurements
    return Result(
        benchmark=benchmark.name,
        about=benchmark.about,
        quick=options.quick,
        seconds=round(time.monotonic() - started),
        machine=machine,
        versions=versions,
        plan=msgspec.to_builtins(measured.plan),
        foreign=None if measured.foreign is None else tuple(measured.foreign),
        goals=tuple(found.judge(goal, quick=options.quick) for goal in measured.goals),
        figures=found.all_figures(),
        tables=tuple(measured.tables),
    )


def _check_writable(folder: Path, *files: Path) -> None:
    """Fail before anything is measured if a file cannot be written."""
    if len(set(files)) < len(files):
        raise CommandError(f"{files[0]} cannot be both a result file and its page.")
    for file in files:
        if file.is_dir():
            raise CommandError(f"{file} cannot be written: it is a folder.")
    place = folder
    try:
        for place in (file.parent for file in files):
            place.mkdir(parents=True, exist_ok=True)
        for place in {folder, *(file.parent for file in files)}:
            with tempfile.TemporaryFile(dir=place):
                pass
    except OSError as error:
        raise CommandError(f"{place} cannot hold files: {error.strerror}.") from error
