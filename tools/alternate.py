"""Compare the processor time of a text turn with that of another commit, in alternation.

    python tools/alternate.py COMMIT [--rounds 10] [--turns 2000]

Each round runs one process of each commit. A process opens a runtime with a store in threads, on a
real file, and asks one conversation after another; it reports the processor time and the SQL
statements of a turn. The ratio of the medians says what the changes between the commits cost. It
says nothing about other kinds of turns, nor about the time of the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHILD = """
import json, os, sys, tempfile, time
import apsw, trio
import hermes

async def main(turns):
    statements = 0

    def count(cursor, sql, bindings):
        nonlocal statements
        statements += 1
        return True

    def connected(connection):
        if counting:
            connection.exec_trace = count

    counting = False
    apsw.connection_hooks.append(connected)
    answer = hermes.TurnResult(text="fine")

    async def agent(turn):
        return answer

    results = {}
    for counting, number in ((False, turns), (True, 200)):
        with tempfile.TemporaryDirectory() as folder:
            async with hermes.open_runtime(os.path.join(folder, "a.db"), agent=agent) as runtime:
                keys = [f"k{n % 20}" for n in range(number)]
                for key in keys[:20]:
                    await runtime.ask(key, "hello")
                statements, started = 0, time.process_time()
                for key in keys:
                    await runtime.ask(key, "hello")
                used = time.process_time() - started
        if counting:
            results["statements"] = statements / number
        else:
            results["cpu"] = used / number
    print(json.dumps(results))

trio.run(main, int(sys.argv[1]))
"""


def measure(tree: Path, turns: int) -> dict[str, float]:
    """Run one process on the code of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", CHILD, str(turns)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Print both commits and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, old], check=True)
        subprocess.run(["git", "-C", old, "checkout", "--quiet", options.commit], check=True)
        trees = {options.commit: old, "here": ROOT}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for _ in range(options.rounds):
            for name, tree in trees.items():
                found[name].append(measure(tree, options.turns))
    before, after = (statistics.median(each["cpu"] for each in runs) for runs in found.values())
    for name, runs in found.items():
        times = sorted(each["cpu"] * 1e6 for each in runs)
        middle = statistics.median(times)
        statements = statistics.median(each["statements"] for each in runs)
        print(
            f"{name}: {middle:.0f} µs of processor time a turn (from {times[0]:.0f} to "
            f"{times[-1]:.0f}), {statements:.2f} statements"
        )
    print(f"ratio: {after / before:.3f}")


if __name__ == "__main__":
    main()
