"""`python -m bench COMMAND`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench import command
from bench.agents.benchmark import AGENTS
from bench.compare.command import main as compare
from bench.errors import CommandError, DriverFailed
from bench.report.tables import align
from bench.runtime.benchmark import RUNTIME
from bench.scale.command import main as scale
from bench.store.benchmark import STORE
from bench.switch.benchmark import SWITCH

Command = Callable[[Sequence[str]], int]
BENCHMARKS = (SWITCH, RUNTIME, AGENTS, STORE)
COMMANDS: Mapping[str, Command] = {
    **{each.name: partial(command.run, each) for each in BENCHMARKS},
    "all": partial(command.run_all, BENCHMARKS),
    "show": command.show,
    "compare": compare,
    "scale": scale,
}
USAGE: Mapping[str, str] = {
    "switch": "agent rebuilds and prompt caching when users switch sessions",
    "runtime": "messages between actors, and whole durable turns",
    "agents": "turns with a model over HTTP, streaming, and import time",
    "store": "appending, loading, opening, and file size",
    "all": "all four, and one page with the results",
    "show [FILE ...]": "the tables or the page of existing result files",
    "compare OLD NEW": "what changed between two result files beyond noise",
    "scale": "capacity of one node, derived from the measured costs",
}
OPTIONS = "--quick runs a short version, --out sets the result file, --dir the work folder."


def main(arguments: Sequence[str], commands: Mapping[str, Command] = COMMANDS) -> int:
    """Run a command and return the exit code."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in commands:
        print(f"Unknown command {name!r}; see python -m bench --help.", file=sys.stderr)
        return 2
    try:
        return commands[name](rest)
    except CommandError as error:
        print(error, file=sys.stderr)
        return 2
    except DriverFailed as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        print("Interrupted: unfinished results were not written.", file=sys.stderr)
        return 130


def _is_interrupt(error: BaseException) -> bool:
    """Whether this is Ctrl-C, which Trio wraps in exception groups."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(KeyboardInterrupt)[1] is None
    return isinstance(error, KeyboardInterrupt)


def usage() -> str:
    lines = [[f"  {name}", about] for name, about in USAGE.items()]
    return f"usage: python -m bench COMMAND [--quick] [...]\n\n{align(lines)}\n\n{OPTIONS}"


def handle_signals() -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that no process and no file is left behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    handle_signals()
    sys.exit(main(sys.argv[1:]))
