"""`python -m bench switch|runtime|agents|store|all|page|show|compare|scale`: one word picks."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from bench import agents, compare, everything, report, runtime, scale, show, store, switch
from bench.everything import Main

BENCHMARKS: Mapping[str, Main] = {
    "switch": switch.main,
    "runtime": runtime.main,
    "agents": agents.main,
    "store": store.main,
}
COMMANDS: Mapping[str, Main] = {
    **BENCHMARKS,
    "all": partial(everything.run, BENCHMARKS),
    "page": everything.show,
    "show": show.main,
    "compare": compare.main,
    "scale": scale.main,
}
USAGE: Mapping[str, str] = {
    "switch": "how often an agent is built when users switch, and what it costs: the headline",
    "runtime": "messages between actors and whole turns, beside other actors and hermes-agent",
    "agents": "turns with a model over HTTP, streaming and imports, beside hermes-agent",
    "store": "appending, loading, opening and size, beside other stores and the disk",
    "all": "all four, one after the other, and one page of them",
    "page FILE...": "a page of files that were written before",
    "show": "the tables of files that were written before",
    "compare OLD NEW": "what got worse or better between two files, beyond the noise",
    "scale": "what one node and many can hold, derived from what was measured",
}


def main(arguments: Sequence[str], commands: Mapping[str, Main] = COMMANDS) -> int:
    """Run the named command with the rest of the arguments; the exit code."""
    if arguments and arguments[0] in {"-h", "--help"}:
        print(usage())
        return 0
    if not arguments or arguments[0] not in commands:
        said = f"There is no {arguments[0]!r}; python -m bench lists all." if arguments else usage()
        print(said, file=sys.stderr)
        return 2
    try:
        return commands[arguments[0]](arguments[1:])
    except BaseException as error:
        if not _interrupted(error):
            raise
        print("Interrupted: what was not finished is not written.", file=sys.stderr)
        return 130


def heed_signals() -> None:
    """Let whoever ends this process interrupt it, so that nothing is left behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _interrupted(error: BaseException) -> bool:
    """Ctrl-C, which Trio wraps in groups."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(KeyboardInterrupt)[1] is None
    return isinstance(error, KeyboardInterrupt)


def usage() -> str:
    lines = [[f"  {name}", about] for name, about in USAGE.items()]
    options = "--quick makes it short, --out says where results go, --dir where databases are made."
    return f"usage: python -m bench COMMAND [--quick] [...]\n\n{report.aligned(lines)}\n\n{options}"


if __name__ == "__main__":
    heed_signals()
    sys.exit(main(sys.argv[1:]))
