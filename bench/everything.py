"""All benchmarks one after the other, and one page of them; or a page of files made before."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import command, page, report, written
from bench.command import BadInput, Parser
from bench.written import NotAResult, Result

Main = Callable[[Sequence[str]], int]


def run(benchmarks: Mapping[str, Main], arguments: Sequence[str]) -> int:
    """Run them all; 1 where one of them could not run."""
    parser = Parser(prog="python -m bench all", description="All benchmarks, and one page of them.")
    command.add_common(parser)
    parser.add_argument(
        "--out", type=Path,
        help="folder of the results and the page (default: bench/results; of a quick run, quick/)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    folder: Path = options.out or command.results(quick=options.quick)
    shown = folder / command.REPORT
    try:
        command.open_workplace(options.dir).cleanup()
        command.ready(shown)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    common = [*(["--quick"] if options.quick else []), "--dir", str(options.dir)]
    files = {}
    for place, (name, main) in enumerate(benchmarks.items(), start=1):
        print(f"\n{name} ({place} of {len(benchmarks)})", flush=True)
        out = folder / f"{name}.json"
        if _ran(main, [*common, "--out", str(out), "--page", str(shown)]):
            files[name] = out
    documents = [written.read(out) for out in files.values()]
    report.write_text(shown, page.html(documents))
    print(f"\n{summary(list(map(written.parse, documents)))}\n\nThe page of all: {shown}")
    missing = [name for name in benchmarks if name not in files]
    if missing:
        print(f"Could not run: {', '.join(missing)}.", file=sys.stderr)
    return 1 if missing else 0


def _ran(main: Main, arguments: Sequence[str]) -> bool:
    """Whether a benchmark has written its results."""
    try:
        return main(arguments) == 0
    except SystemExit:  # it has said why
        return False
    except Exception:  # noqa: BLE001 - one that fails does not stop the others
        traceback.print_exc()
        return False


def summary(shown: Sequence[Result]) -> str:
    """How many goals are met, and every one that is not."""
    lines = [["benchmark", "pass", "FAIL", "not judged", "not measured"]]
    missed = []
    for result in shown:
        outcomes = Counter(goal.outcome for goal in result.goals)
        lines.append([result.benchmark, *(str(outcomes[outcome]) for outcome in lines[0][1:])])
        missed += [
            f"FAIL {result.benchmark}: {goal.goal}: {_median(goal)}, wanted {goal.target}"
            for goal in result.goals
            if goal.outcome == "FAIL"
        ]
    quick = ["QUICK: fewer repetitions and smaller files than the goals are stated for."]
    return "\n".join(
        [report.aligned(lines), *missed, *(quick if any(r.quick for r in shown) else [])]
    )


def _median(goal: written.Goal) -> str:
    median = None if goal.measured is None else goal.measured.median
    return "-" if median is None else f"{median:,.2f} {goal.unit()}"


def show(arguments: Sequence[str]) -> int:
    """Make a page of existing files."""
    parser = Parser(prog="python -m bench page", description="A page of files of results.")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a file of results")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(command.REPORT),
        help="the page (default: report.html, here)",
    )
    options = parser.parse_args(arguments)
    try:
        documents = [written.read(file) for file in options.files]
        command.apart(options.out, options.files)
        command.ready(options.out)
    except (BadInput, NotAResult) as error:
        print(error, file=sys.stderr)
        return 2
    report.write_text(options.out, page.html(documents))
    print(f"written to {options.out}")
    return 0
