"""Hypothesis strategies for texts that arrive in pieces, and for Markdown."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

LINES = st.sampled_from(
    ["text", "# head", "", "", "- item", "  more", "    deep", "1. one", "```", "```python", "````",
     "~~~", "  ```", "- ```", "| a | b |", "|---|---|", "> quote", "\t", " ", "***", "`x`",
     "```a`b"]
)  # fmt: skip
MARKDOWN = st.lists(LINES, max_size=20).map("\n".join) | st.text("a`~ \n-1.#", max_size=60)


def chunks(whole):
    """A text or bytes, and the same in pieces."""

    def cut(content, indexes):
        indexes = sorted({min(index, len(content)) for index in indexes})
        bounds = [0, *indexes, len(content)]
        return content, [content[a:b] for a, b in itertools.pairwise(bounds)]

    return st.builds(cut, whole, st.lists(st.integers(0, 80), max_size=12))
