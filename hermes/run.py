"""`python -m hermes.run`: the standalone bot, once there is one."""

from __future__ import annotations

import sys

NOT_YET = """\
Hermes has no bot to run yet: so far only the store exists.
Try it from Python (docs/store.md shows how), or run its tests with `make test`.
"""


def main() -> int:
    """Say what there is."""
    sys.stdout.write(NOT_YET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
