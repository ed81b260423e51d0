"""`python -m bench COMMAND`: the command line."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import command, scale
from bench.agents.benchmark import AGENTS
from bench.cluster.benchmark import CLUSTER
from bench.compare import compare
from bench.files.benchmark import FILES
from bench.harness.benchmark import Benchmark
from bench.harness.process import DriverFailed
from bench.hosts.benchmark import HOSTS
from bench.http.benchmark import HTTP
from bench.report.results import CommandError, read
from bench.runtime.benchmark import RUNTIME
from bench.store.benchmark import STORE
from bench.switch.benchmark import SWITCH
from bench.switch.figures import Prices

BENCHMARKS = (SWITCH, RUNTIME, AGENTS, STORE, HOSTS, FILES, HTTP, CLUSTER)


def make_parser(benchmarks: Sequence[Benchmark]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of Hermes.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, about: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=about)

    for benchmark in benchmarks:
        _add_run_options(add(benchmark.name, benchmark.about), "FILE.json", [benchmark])
    _add_run_options(add("all", "Run all benchmarks; write one page."), "FOLDER", benchmarks)

    show = add("show", "Print the tables of result files, or write a page from them.")
    show.add_argument("files", nargs="*", type=Path, help="default: all of bench/results/")
    show.add_argument("--page", type=Path, metavar="HTML", help="write a page instead")
    show.add_argument("--write", action="store_true", help="update bench/README.md and the page")
    show.set_defaults(do=lambda o: command.show(o.files, o.page, write=o.write))

    comparing = add("compare", "Show what changed between two result files.")
    comparing.add_argument("old", type=Path, help="the earlier result file")
    comparing.add_argument("new", type=Path, help="the later result file")
    comparing.add_argument("--all", action="store_true", help="also show what is within noise")
    comparing.set_defaults(do=_compare)

    scaling = add("scale", "Derive the capacity of one node from the measured costs.")
    scaling.add_argument("--results", type=Path, default=command.RESULTS, help="result files")
    scaling.add_argument("--write", action="store_true", help="update docs/scale.md")
    scaling.set_defaults(do=lambda o: scale.run(o.results, write=o.write))
    return parser


def _add_run_options(
    parser: argparse.ArgumentParser, out: str, benchmarks: Sequence[Benchmark]
) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, less data")
    parser.add_argument(
        "--out", type=Path, metavar=out,
        help="where the results and their page go (default: bench/results/, or quick/ in there)",
    )  # fmt: skip
    parser.add_argument(
        "--dir", type=Path, default=command.HERE, help="where temporary databases are created"
    )
    if any(each.name == "switch" for each in benchmarks):
        parser.add_argument(
            "--prices", type=Prices.parse, default=Prices(), metavar="INPUT,CACHED,OUTPUT",
            help="dollars per million tokens (default: 2.5,0.25,10)",
        )  # fmt: skip
    parser.set_defaults(do=lambda options: command.run(benchmarks, options))


def _compare(options: argparse.Namespace) -> int:
    found = compare(read(options.old), read(options.new))
    print(found.text(show_all=options.all))
    return 1 if found.count("regression") else 0


def main(arguments: Sequence[str], benchmarks: Sequence[Benchmark] = BENCHMARKS) -> int:
    """Run a command and return the exit code."""
    options = make_parser(benchmarks).parse_args(arguments)
    try:
        return int(options.do(options))
    except CommandError as error:
        print(error, file=sys.stderr)
        return 2
    except DriverFailed as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted: unfinished results were not written.", file=sys.stderr)
        return 130


def handle_signals() -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that no process and no file is left behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    handle_signals()
    sys.exit(main(sys.argv[1:]))
