"""The program of test_hostile_suites: hostile models, MCP servers and imports, mixed at random.

Each suite runs in a process of its own, which reports its violations and the memory that it used.
"""

from __future__ import annotations

import importlib
import json
import random
import resource
import sys
from pathlib import Path

from tests.campaigns.foreign_checks import ALWAYS, violations

MAX_MEMORY = 400_000
"""How much a suite may add to the memory of the process, in kB."""


def peak():
    """Return the most memory that the process has used, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(suite, path, seed, rounds, mutant=""):
    """Run one suite, and print the results as JSON."""
    attack = importlib.import_module(f"tests.campaigns.hostile_{suite}").attack
    before = peak()
    done, found = attack(path, random.Random(f"{suite} {seed}"), rounds, mutant)
    ballast = bytearray(MAX_MEMORY * 1024) if mutant == "keeps everything" else b""
    if ballast:
        ballast[:] = b"x" * len(ballast)
    if peak() - before > MAX_MEMORY:
        found.append(f"it used {peak() - before} kB of memory")
    if path.exists():
        found += violations(path, ALWAYS)
    sys.stdout.write(json.dumps({"done": done, "violations": found[:20], "peak": peak() - before}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
