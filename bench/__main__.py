"""`python -m bench store|runtime|agents|switch [--quick]`: one word picks what is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from bench import agents, compare, runtime, scale, store, switch

BENCHMARKS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "store": store.main,
    "runtime": runtime.main,
    "agents": agents.main,
    "switch": switch.main,
    "compare": compare.main,
    "scale": scale.main,
}


def main(arguments: Sequence[str]) -> int:
    """Run the named benchmark with the rest of the arguments."""
    if arguments and arguments[0] in BENCHMARKS:
        return BENCHMARKS[arguments[0]](arguments[1:])
    print(f"usage: python -m bench {{{','.join(BENCHMARKS)}}} [--quick] [--out FILE]")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
