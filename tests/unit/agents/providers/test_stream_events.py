"""Reasoning details that a server sends in pieces are joined."""

from __future__ import annotations

import pytest

from hermes.agents.providers.stream_events import DetailJoiner

TEXT, SUMMARY = "reasoning.text", "reasoning.summary"


def joined(*events):
    joiner = DetailJoiner()
    for event in events:
        joiner.feed(event)
    return list(joiner.finish())


def text(piece, **fields):
    return {"type": TEXT, "text": piece, **fields}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([[text("a", index=0)], [text("b", index=0)]], [text("ab", index=0)]),
        (
            [[text("a", index=0)], [text("b", index=1)], [text("c", index=0)]],
            [text("ac", index=0), text("b", index=1)],
        ),
        ([[text("a")], [text("b")]], [text("ab")]),
        ([[text("a"), text("b")], [text("c")]], [text("a"), text("bc")]),
        ([[text("a", signature="s")], [text("b")]], [text("a", signature="s"), text("b")]),
        (
            [[text("a", signature=None)], [{"type": TEXT, "signature": "s"}], [text("b")]],
            [text("a", signature="s"), text("b")],
        ),
        (
            [[text("a", index=0)], [{"type": SUMMARY, "summary": "b", "index": 0}]],
            [text("a", index=0), {"type": SUMMARY, "summary": "b", "index": 0}],
        ),
        ([[text("a", id="x", index=[])], [text(1, id=None)]], [text("a", id="x", index=[])]),
        ([[]], []),
    ],
)
def test_the_pieces_of_a_block_are_joined(events, expected):
    assert joined(*events) == expected
