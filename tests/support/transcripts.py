"""Transcripts for tests of rendering, estimates and compaction: builders and strategies."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

from hypothesis import strategies as st

from hermes.messages import Message, StoredMessage, ToolCall
from hermes.transcript.compaction import summary_message


def user(text="a question"):
    return Message(role="user", content=text)


def reply(text="an answer"):
    return Message(role="assistant", content=text)


def calls(*ids, content=None):
    asked = tuple(ToolCall(id_, "look", '{"at": 1}') for id_ in ids)
    return Message(role="assistant", content=content, tool_calls=asked)


def result(id_, text="seen"):
    return Message(role="tool", content=text, tool_call_id=id_)


TEXTS = st.sampled_from(["", "ok", "two words", "Grüße", "漢字" * 20, "long " * 100, "x" * 2_000])
IDS = st.sampled_from(["a", "b", ""])


@st.composite
def exchanges(draw):
    """A regular exchange: a question, calls with their results, an answer."""
    rows = [user(draw(TEXTS))]
    for _ in range(draw(st.integers(0, 2))):
        ids = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
        rows += [
            calls(*ids, content=draw(st.none() | TEXTS)),
            *(result(i, draw(TEXTS)) for i in ids),
        ]
    return [*rows, reply(draw(TEXTS))]


ODD_ROWS = st.one_of(
    st.builds(user, TEXTS),
    st.builds(reply, st.none() | TEXTS | st.just(" \n")),
    st.builds(calls, IDS, content=st.none() | TEXTS),
    st.builds(lambda ids: calls(*ids), st.lists(IDS, max_size=3)),
    st.builds(result, IDS | st.none() | st.just("unknown"), TEXTS),
    st.builds(summary_message, TEXTS),
    st.builds(lambda text: Message(role="system", content=text), TEXTS),
)


def stored(rows):
    """The rows as a store returns them, each a new object."""
    return [
        StoredMessage(
            number,
            row.role,
            row.content,
            1.5 * number,
            f"p{number}",
            tool_calls=row.tool_calls,
            tool_call_id=row.tool_call_id,
            provider_data=row.provider_data,
        )
        for number, row in enumerate(rows)
    ]


ORDERLY = st.lists(exchanges(), max_size=6).map(lambda turns: list(itertools.chain(*turns)))
ODD = st.lists(ODD_ROWS, max_size=14)
MIXED = st.tuples(ORDERLY, ODD, ORDERLY).map(lambda pieces: list(itertools.chain(*pieces)))
TRANSCRIPTS = st.one_of(ORDERLY, ODD, MIXED).map(stored)
BUDGETS = st.integers(0, 1_500)
HEADS = st.integers(0, 4)
KEPT = st.none() | st.integers(0, 4)


def calls_made(work: Callable[[], object]) -> int:
    """Count the function calls of `work`: a measure of its running time that does not vary."""
    count = 0

    def profile(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
