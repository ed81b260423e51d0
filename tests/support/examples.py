"""How many examples the property tests try."""

from __future__ import annotations

from hypothesis import settings

FULL = 100
"""The number of examples of a property in `make prove`, unless the test names another."""

SHORT = 30
"""The number in `make test`."""


def examples(full: int) -> settings:
    """Try `full` examples in `make prove`, and the same share of them as usual in `make test`."""
    return settings(max_examples=max(1, full * settings.default.max_examples // FULL))
