"""Break the code in known ways and see whether the tests notice.

    python tools/mutants.py --json before.json                  all, with the tests of their areas
    python tools/mutants.py --area store tests/contracts -k blocking
    python tools/mutants.py --only M07 --only M23
    python tools/mutants.py --check                             is every text still there?
    python tools/mutants.py --compare before.json after.json    is any mutant no longer caught?

A mutant replaces one text in one file and so breaks one promise. `mutants.toml` lists them. The
runner applies each to a copy of the tree, runs pytest with `-x -q` on the selection, and reports
whether a test failed. A run that exceeds `--timeout` counts as caught, because some mutants make
the code wait forever. A change to the test suite loses nothing if it catches the same mutants as
before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

Area: TypeAlias = Literal["store", "plumbing", "session", "backlog", "races", "cluster", "chaos"]
Outcome: TypeAlias = Literal["caught", "survived", "timeout", "broken"]

TESTS: Mapping[Area, tuple[str, ...]] = {
    "store": ("tests/contracts",),
    "plumbing": (
        "tests/contracts",
        "tests/integration/test_store_actor.py",
        "tests/integration/test_group_commit_errors.py",
        "tests/integration/test_boundary_lanes.py",
    ),
    "session": ("tests/unit/actors", "tests/runtime"),
    "backlog": ("tests/campaigns/test_backlogs.py",),
    "races": ("tests/campaigns/test_postgres_races.py",),
    "cluster": (
        "tests/integration/cluster/test_fences.py",
        "tests/integration/cluster/test_statements.py",
    ),
    "chaos": ("tests/campaigns/test_chaos.py",),
}
"""The tests of each area, used if the command line selects none."""
CAUGHT: frozenset[Outcome] = frozenset({"caught", "timeout"})


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One text of one file, what replaces it, and the promise that this breaks."""

    breaks: str
    file: str
    old: str
    new: str


MUTANTS: Mapping[Area, Sequence[Mutant]] = msgspec.toml.decode(
    Path(__file__).with_suffix(".toml").read_bytes(), type=dict[Area, list[Mutant]]
)


# The runner


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one mutant. `breaks` identifies it, whatever its number is."""

    name: str
    area: Area
    file: str
    breaks: str
    outcome: Outcome
    seconds: float
    by: str = ""
    """The test that failed first."""


def problem(root: Path, mutant: Mutant) -> str | None:
    """Why a mutant cannot be applied; None if it can."""
    path = root / mutant.file
    count = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0
    return None if count == 1 else f"the old text occurs {count} times in {mutant.file}"


def copy_tree(root: Path, scratch: Path) -> None:
    """Copy what the tests need."""
    for name in ("hermes", "tests", "bench", "examples", "docs", "tools"):
        if (root / name).is_dir():
            skipped = shutil.ignore_patterns("__pycache__", ".venv*", "results")
            shutil.copytree(root / name, scratch / name, ignore=skipped)
    for file in root.iterdir():
        if file.is_file():
            shutil.copy(file, scratch)


def run_tests(scratch: Path, selection: Sequence[str], seconds: float) -> tuple[Outcome, str]:
    """Run pytest in the copy until the first failure; returns the outcome and that test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *selection]
    # Without byte code: two mutants of one file may have the same size and time.
    child = subprocess.Popen(
        command,
        cwd=scratch,
        env={**os.environ, "PYTHONPATH": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return "timeout", ""
    if child.returncode == 0:
        return "survived", ""
    if child.returncode != 1:  # no test failed: the code cannot be imported, or there is no test
        return "broken", output[-300:]
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return "caught", failed[0].split(" - ")[0].split(maxsplit=1)[1][:200] if failed else ""


def run(
    root: Path, mutant: Mutant, selection: Sequence[str], seconds: float
) -> tuple[Outcome, str]:
    """Apply one mutant to a copy of the tree and run the tests there."""
    if (why := problem(root, mutant)) is not None:
        return "broken", why
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        copy_tree(root, scratch)
        path = scratch / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        return run_tests(scratch, selection, seconds)


def row(result: Result) -> str:
    """One line of the table."""
    start = f"{result.name} {result.outcome:<9}{result.seconds:>7.1f} s  {result.file:<32}"
    return f"{start} {result.breaks}"


def chosen(options: argparse.Namespace) -> Iterator[tuple[str, Area, Mutant]]:
    """The mutants that the command line asks for, with their names and areas."""
    listed = [(area, mutant) for area, mutants in MUTANTS.items() for mutant in mutants]
    for number, (area, mutant) in enumerate(listed, 1):
        name = f"M{number:02}"
        if options.area in {None, area} and (not options.only or name in options.only):
            yield name, area, mutant


def check(options: argparse.Namespace) -> int:
    """See whether every mutant can be applied."""
    found = [(name, problem(options.root, mutant)) for name, _, mutant in chosen(options)]
    problems = [f"{name}: {why}" for name, why in found if why is not None]
    print("\n".join([*problems, f"{len(found) - len(problems)} of {len(found)} can be applied"]))
    return len(problems)


def run_all(options: argparse.Namespace, selection: Sequence[str]) -> int:
    """Run the mutants; returns how many were not caught."""
    results: list[Result] = []
    for name, area, mutant in chosen(options):
        begun = time.monotonic()
        outcome, by = run(options.root, mutant, selection or TESTS[area], options.timeout)
        result = Result(
            name=name,
            area=area,
            file=mutant.file,
            breaks=mutant.breaks,
            outcome=outcome,
            seconds=round(time.monotonic() - begun, 1),
            by=by,
        )
        results.append(result)
        print(row(result), flush=True)
        if options.json is not None:
            text = msgspec.json.format(msgspec.json.encode(results)).decode()
            options.json.write_text(f"{text}\n", encoding="utf-8")
    caught = sum(each.outcome in CAUGHT for each in results)
    print(f"{caught} of {len(results)} were caught")
    return len(results) - caught


def compare(before: Path, after: Path) -> int:
    """Print the mutants that were caught before and are not any more; returns how many."""
    old, new = (
        {each.breaks: each for each in msgspec.json.decode(path.read_bytes(), type=list[Result])}
        for path in (before, after)
    )
    lost = [
        breaks
        for breaks, each in old.items()
        if each.outcome in CAUGHT and (breaks not in new or new[breaks].outcome not in CAUGHT)
    ]
    for breaks in lost:
        print(f"no longer caught: {breaks} ({new[breaks].outcome if breaks in new else 'missing'})")
    seconds = [round(sum(each.seconds for each in results.values())) for results in (old, new)]
    print(f"{len(lost)} lost of {len(old)}; {seconds[0]} s before, {seconds[1]} s after")
    return len(lost)


def main(arguments: Sequence[str]) -> int:
    """Run, check or compare mutants; the exit code is 0 if nothing is amiss."""
    parser = argparse.ArgumentParser(
        description="Break the code in known ways and see whether the tests notice.",
        epilog="What is not listed here is passed on to pytest.",
    )
    parser.add_argument("--area", choices=list(TESTS), help="only mutants of this area")
    parser.add_argument("--only", action="append", default=[], help="only this one, such as M07")
    parser.add_argument("--check", action="store_true", help="only see whether the texts are there")
    parser.add_argument("--compare", type=Path, nargs=2, help="compare two files of results")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the tree")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one mutant")
    options, selection = parser.parse_known_args(arguments)
    if options.compare is not None:
        return min(1, compare(*options.compare))
    return min(1, check(options) if options.check else run_all(options, selection))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
