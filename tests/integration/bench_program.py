"""A small benchmark with a real driver, run in the same way as those of `python -m bench`.

Without arguments this is the driver. Otherwise: `bench_program FIFO COMMAND [OPTION ...]`.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from bench import command
from bench.__main__ import handle_signals, main
from bench.harness.benchmark import Benchmark, Measured
from bench.harness.measurements import Goal, Ref, Sheet
from bench.harness.protocol import serve
from bench.harness.runner import Cell, Contender, Group, run_cells
from bench.report.results import Column, Table

OURS = Ref("cell", "ours", "ms")
SHEET = Sheet(
    (Goal("fast", OURS, 5, unit="ms"), Goal("faster", OURS, 1, unit="ms", at_any_size=True),
     Goal("fastest", OURS, 0, unit="ms")),
    (Table("cell", "a cell", (Column("ms", "ms"),)),),
)  # fmt: skip


def benchmark(name, do, fifo):
    def measure(run):
        cell = Cell("cell", (Contender("ours", "ours", do, {"fifo": fifo}),))
        groups = [Group(1, (cell,))]
        return Measured(run_cells(groups, run.drivers, run.folder, run.steps), SHEET, {})

    return Benchmark(name, "What is done.", {"ours": __spec__.name}, measure)


def three(path, fifo):
    Path(path).write_text("a database")
    return {"ms": 3.0}


def hang(path, fifo):
    """Start a process that keeps the test's pipe open until it ends."""
    code = "import signal; print(1, flush=True); signal.pause()"
    with Path(fifo).open("w") as pipe:
        subprocess.run([sys.executable, "-c", code], stdout=pipe, check=True)
    return {}


def fail(path, fifo):
    raise ValueError("no figures today")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve({}, three, hang, fail)
    else:
        make = partial(benchmark, fifo=sys.argv[1])
        commands = {do: partial(command.run, make(do, do)) for do in ("three", "fail", "hang")}
        some = [make("three", "three"), make("fail", "fail"), make("last", "three")]
        commands["all"] = partial(command.run_all, some)
        commands["all-hang"] = partial(command.run_all, [make("three", "three"), make("h", "hang")])
        handle_signals()
        sys.exit(main(sys.argv[2:], commands))
