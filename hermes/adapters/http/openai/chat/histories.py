"""Compare the history of a client with a transcript.

Both are divided into runs: messages of the user, and what the assistant did until the next one. A
client knows less than the transcript: not the calls of the agent's own tools, and perhaps not the
texts between them. White space does not count, because clients trim it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import attrs

from hermes.messages import SUMMARY, StoredMessage

_SPACE = re.compile(r"\s+")
SPAN_BITS = 32
"""The id of a row begins with the number of its session."""


@attrs.frozen
class Run:
    """Messages of the user, or of the assistant and its tools."""

    by_user: bool
    texts: tuple[str, ...] = ()
    """The texts of its messages, without white space."""
    files: tuple[str, ...] = ()
    """The hashes of its files, and the addresses of images."""
    calls: frozenset[str] = frozenset()
    """The ids of calls of tools."""
    results: tuple[tuple[str, str], ...] = ()
    """The results of tools, with the ids of their calls."""
    last: int = 0
    """The id of its last row in the transcript."""


def squeezed(text: str | None) -> str:
    """Return a text without white space."""
    return _SPACE.sub("", text or "")


def is_same(client: Run, stored: Run) -> bool:
    """Whether a run of a client is one of the transcript."""
    if client.by_user != stored.by_user:
        return False
    said = "".join(client.texts)
    if client.by_user:
        return said == "".join(stored.texts) and client.files == stored.files
    known = tuple(each for each in stored.results if each[0] in client.calls)
    if client.results != known or not client.calls <= stored.calls:
        return False
    return _is_told(said, [text for text in stored.texts if text])


def _is_told(said: str, texts: Sequence[str]) -> bool:
    """Whether a text consists of some of the texts, in order, and the last one."""
    for number, text in enumerate(texts, 1):
        if said.startswith(text) and (number == len(texts) or said != text):
            said = said[len(text) :]
        elif number == len(texts):
            return False
    return not said


@attrs.frozen
class Match:
    """How much of a client's history a session has."""

    common: int
    """The number of runs that both have."""
    upto: int
    """The id of the last row of them; 0 if there is none."""
    exact: bool
    """Whether the session has these messages and no others."""
    last: int = 0
    """The id of the last row of the session."""
    whole: bool = False
    """Whether the history has all messages of the session."""


def match(history: Sequence[Run], runs: Sequence[Run], *, summarized: bool = False) -> Match:
    """Compare a client's history with a session; `summarized` if a summary precedes its runs."""
    last = runs[-1].last if runs else 0
    if summarized:
        tail = history[len(history) - len(runs) :] if 0 < len(runs) <= len(history) else []
        exact = bool(tail) and all(map(is_same, tail, runs))
        return Match(len(history) if exact else 0, last if exact else 0, exact, last)
    common = 0
    while common < min(len(history), len(runs)) and is_same(history[common], runs[common]):
        common += 1
    upto, whole = runs[common - 1].last if common else 0, common == len(runs)
    return Match(common, upto, whole and common == len(history), last, whole)


def sessions_of(rows: Sequence[StoredMessage]) -> Iterator[tuple[bool, list[StoredMessage]]]:
    """Yield the rows of each session of a lineage, the latest first.

    Each with whether it has a summary: then only the rows after it, because those before it are
    copies of others that are missing.
    """
    groups = [list(group) for _, group in groupby(rows, lambda row: row.id >> SPAN_BITS)]
    for group in reversed(groups):
        first = max((n for n, row in enumerate(group, 1) if _is_summary(row)), default=0)
        yield first > 0, group[first:]


def _is_summary(row: StoredMessage) -> bool:
    return (row.provider_data or {}).get("hermes") == SUMMARY


def grouped(roles: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where each run of messages with these roles begins and ends."""
    turns = [role == "user" for role in roles]
    changes = [index for index in range(1, len(turns)) if turns[index] != turns[index - 1]]
    yield from pairwise([0, *changes, len(turns)] if turns else [])
