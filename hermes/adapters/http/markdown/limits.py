"""How much is parsed. What is larger is shown as plain text."""

from __future__ import annotations

import attrs

MAX_BLOCK = 50_000
"""Characters of a top-level block."""
MAX_DEPTH = 24
"""Levels of nested quotes, lists and items in a block; a list takes two."""
MAX_INLINE_DEPTH = 10
"""Levels of nested emphasis and links in a paragraph."""
MAX_BRACKETS = 200
"""Opening brackets in a paragraph: markdown-it looks for the end of a link at each."""
MAX_COLUMNS = 30
"""Columns of a table."""
MAX_ROWS = 500
"""Rows of a table. Further rows are text."""
MAX_MISSING = 200
"""Cells that the rows of a table lack: each costs as much as one that has a text."""
MAX_CODE = 10_000
"""Characters of a block of code that is highlighted."""
MAX_CODE_LINE = 500
"""Characters of a line of it. Lexers of Pygments may take quadratic time for a line."""
MAX_CODE_RUN = 400
"""Letters, digits and spaces in a row, over several lines; lexers look far ahead in these."""
MAX_DECLARATION = 150
"""Characters of names and types in a row, in languages whose lexers look for declarations."""


@attrs.frozen
class Limits:
    """The limits that tests make smaller."""

    block: int = MAX_BLOCK
    depth: int = MAX_DEPTH


STANDARD = Limits()
