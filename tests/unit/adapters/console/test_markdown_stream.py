"""Splitting streamed Markdown into blocks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from hermes.adapters.console.markdown_stream import BlockSplitter
from tests.support.text_strategies import MARKDOWN, chunks


def blocks_of(parts):
    splitter = BlockSplitter()
    blocks = []
    for part in parts:
        blocks += splitter.feed(part)
    pending = splitter.pending
    last = splitter.end()
    assert "".join(last) == pending
    assert splitter.pending == ""
    return blocks + last


@given(chunks(MARKDOWN))
def test_blocks_do_not_depend_on_how_the_text_is_cut_and_nothing_is_lost(pieces):
    whole, parts = pieces
    blocks = blocks_of(parts)
    assert "".join(blocks) == whole
    assert blocks == blocks_of([whole])
    assert all(blocks)


@given(MARKDOWN)
def test_a_block_never_ends_inside_a_fence(text):
    for block in blocks_of([text])[:-1]:
        fence = None
        for line in block.split("\n"):
            mark = line.strip(" \t")
            if fence is not None:
                if len(mark) >= len(fence) and not mark.strip(fence[0]):
                    fence = None
            elif found := re.match(r"[ \t]*(?:[-*+] |1\. )*(`{3,}(?=[^`]*$)|~{3,})", line):
                fence = found[1]
        assert fence is None


@pytest.mark.parametrize(
    "blocks",
    [
        ["one\ntwo\n\n", "three"],
        ["- a\n\n  more of a\n\n", "after"],
        ["text\n", "```py\nx = 1\n\ny = 2\n```\n", "after"],
        ["```\na\n```\n\n\n", "  indented"],
        ["- ```\n  code\n\n  ```\n- b\n\n", "after"],
        ["\n\n", "late"],
        ["````\n```\n\n````\n", "x"],
    ],
)
def test_a_text_is_cut_between_its_blocks(blocks):
    assert blocks_of(["".join(blocks)]) == blocks
    assert blocks_of("".join(blocks)) == blocks


def test_a_block_is_finished_as_soon_as_the_next_one_starts():
    splitter = BlockSplitter()
    assert splitter.feed("one\n\n") == []
    assert splitter.feed("t") == ["one\n\n"]
    assert splitter.pending == "t"
