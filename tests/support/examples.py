"""How many examples the property tests try."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

FULL = 100
"""The number of examples of a property in `make prove`, unless the test names another."""

SHORT = 30
"""The number in `make test`."""


def examples(full: int, **options: Any) -> settings:
    """Try `full` examples in `make prove`, and the usual share of them in `make test`.

    `options` are other settings of Hypothesis.
    """
    share = settings.default.max_examples / FULL
    return settings(max_examples=max(1, round(full * share)), **options)
