"""What the commands of the benchmark have in common: options, a folder, a file of results."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench import progress, report
from bench.drivers import DriverFailed
from bench.progress import Steps

HERE = Path(__file__).parent


class Measure(Protocol):
    """Measures in this folder."""

    def __call__(self, folder: Path, steps: Steps, *, quick: bool) -> report.Measured: ...


def run(name: str, description: str, arguments: Sequence[str], measure: Measure) -> int:
    """Run one benchmark as `python -m bench NAME`; the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=description)
    results = HERE / "results" / f"{name}.json"
    parser.add_argument("--quick", action="store_true", help="two minutes, smaller files")
    parser.add_argument("--out", type=Path, default=results, help="file of results (JSON)")
    parser.add_argument("--dir", type=Path, default=HERE, help="where the databases are made")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    # Not in /tmp, which is memory on many machines: a flush to memory would measure nothing.
    with tempfile.TemporaryDirectory(prefix=".run-", dir=options.dir) as folder:
        try:
            with progress.steps() as steps:
                measured = measure(Path(folder), steps, quick=options.quick)
        except DriverFailed as failure:
            print(f"The benchmark stopped: {failure}", file=sys.stderr)
            return 1
    seconds = round(time.monotonic() - started)
    print(report.shown(measured, quick=options.quick))
    about = {"benchmark": name, "quick": options.quick, "seconds": seconds}
    report.write(options.out, {**about, **report.document(measured)})
    print(f"\n{seconds} s; written to {options.out}")
    return 0
