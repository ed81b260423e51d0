"""Decisions without a wait: reuse or rebuild the agent, and what to do with input meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from hermes.messages import BuildReason, Busy, Head, Snapshot

CommandMode: TypeAlias = Literal["message", "now", "stops", "waits", "steers"]
"""How a command treats a running turn: answers beside it, stops it, or waits for its end."""
Action: TypeAlias = Literal["queue", "interrupt", "steer", "reject", "beside"]


class Baseline(msgspec.Struct, frozen=True):
    """Where a transcript stood after our own last turn on it."""

    message_count: int
    revision: int

    @classmethod
    def of(cls, head: Head) -> Baseline:
        return cls(head.message_count, head.revision)


RebuildPolicy: TypeAlias = Callable[
    [Snapshot | None, str, Head, Baseline | None], BuildReason | None
]
"""When an agent is built anew. There is one, `guard`; the benchmark puts others beside it."""


def guard(
    snapshot: Snapshot | None, signature: str, head: Head, baseline: Baseline | None
) -> BuildReason | None:
    """Why the agent must be built anew for a turn on `head`'s session; None to reuse it.

    `baseline` is that session's. Counts of different sessions are never compared, and what is not
    known is not guarded.
    """
    if snapshot is None:
        return "cold"
    if snapshot.signature != signature:
        return "signature"
    if snapshot.session_id not in {None, head.session_id} or snapshot.message_count is None:
        return None
    if baseline is not None:
        return "foreign-write" if head.revision > baseline.revision else None
    return None if snapshot.message_count == head.message_count else "foreign-write"


def decide(busy: Busy, manner: CommandMode, *, running: bool) -> Action:
    """What becomes of input: every message ends in a turn or in a visible refusal."""
    if manner == "now":
        return "beside"
    if not running or manner == "waits":
        return "queue"
    if manner == "stops":
        return "interrupt"
    if manner == "steers":
        return "steer"
    return busy
