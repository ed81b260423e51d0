"""A small benchmark with a real driver, run as `python -m bench` runs its own.

`measure` asks the driver for a figure; `hang` has it start a process and wait for it, for ever.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from bench import command, everything, progress
from bench.__main__ import heed_signals, main
from bench.board import Board, Goal, Ref
from bench.drivers import driver
from bench.peers.wire import serve
from bench.report import Column, Measured, Sheet, Table

SHEET = Sheet(
    (Goal("fast", Ref("cell", "ours", "ms"), 5, unit="ms", explains="It is fast."),
     Goal("faster", Ref("cell", "ours", "ms"), 1, unit="ms", explains="It is faster.",
          at_any_size=True),
     Goal("fastest", Ref("cell", "ours", "ms"), 0, unit="ms", explains="It takes no time.")),
    (Table("cell", "a cell", (Column("ms", "ms", explains="A wait."),), "What is done."),),
)  # fmt: skip


def measured(folder, steps, *, quick, do, **arguments):
    board = Board()
    steps.expect(1)
    steps.step(f"{do} is measured")
    database = folder / "database"
    database.write_text("large")
    with driver("ours", Path(sys.executable), folder, __spec__.name) as ours:
        board.add("cell", "ours", ours.ask(do, path=str(database), **arguments))
    return Measured(board, SHEET, {"when": "now"}, {}, {})


def benchmark(do, **arguments):
    return partial(
        command.run, do, "What is done.\n\nMore.", measure=partial(measured, do=do, **arguments)
    )


def three(path, fifo):
    return {"ms": 3.0 if Path(path).read_text() == "large" else 0.0}


def hang(path, fifo):
    """The child holds the other end of the test's pipe until it ends."""
    code = "import signal; print(1, flush=True); signal.pause()"
    with Path(fifo).open("w") as pipe:
        subprocess.run([sys.executable, "-c", code], stdout=pipe, check=True)
    return {}


def fail(path, fifo):
    raise ValueError("no figures today")


def broken(arguments):
    raise RuntimeError("a mistake")


def bar():
    """What a terminal shows of three steps; it is gone at the end."""
    with progress.steps() as steps:
        steps.expect(3)
        for name in ("first", "second", "third"):
            steps.step(f"[{name}] step")
    sys.stdout.write("done\n")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve({}, {"three": three, "hang": hang, "fail": fail})
    elif sys.argv[1] == "bar":
        bar()
    else:
        pipe = sys.argv[1]
        commands = {name: benchmark(name, fifo=pipe) for name in ("three", "fail", "hang")}
        short = {"three": commands["three"], "broken": broken, "fail": commands["fail"],
                 "last": benchmark("three", fifo=pipe)}  # fmt: skip
        commands["all"] = partial(everything.run, short)
        commands["all-hang"] = partial(everything.run, {"hang": commands["hang"]})
        commands["good"] = partial(everything.run, {"three": commands["three"]})
        heed_signals()
        sys.exit(main(sys.argv[2:], commands))
