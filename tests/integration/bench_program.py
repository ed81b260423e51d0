"""A small benchmark with a real driver, run in the same way as those of `python -m bench`.

Without arguments this is the driver. Otherwise: `bench_program FIFO DO[-DO...] [OPTION ...]`, where
each DO is a benchmark; several are run by `all`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.__main__ import handle_signals, main
from bench.harness.benchmark import Benchmark, Cell, Contender, Group, measure_cells
from bench.harness.driver import serve
from bench.harness.measurements import Goal, Ref
from bench.report.results import Column
from bench.runtime.benchmark import QUICK

OURS = Ref("cell", "ours", "ms")
GOALS = (
    Goal("fast", OURS, 5, unit="ms"),
    Goal("faster", OURS, 1, unit="ms", at_any_size=True),
    Goal("fastest", OURS, 0, unit="ms"),
)


def benchmark(name, do, fifo):
    contender = Contender("ours", "ours", do, {"fifo": fifo})
    cell = Cell("cell", "a cell", (Column("ms", "ms"),), "", (contender,))
    measure = measure_cells(QUICK, QUICK, lambda _: [Group(1, (cell,))], lambda _: GOALS)
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
        fifo, command, *rest = sys.argv[1:]
        names = command.split("-")
        made = [benchmark(f"{at}{do}", do, fifo) for at, do in enumerate(names)]
        handle_signals()
        sys.exit(main([made[0].name if len(made) == 1 else "all", *rest], made))
