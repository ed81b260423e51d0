"""Decide whether a cached agent may be reused. A pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hermes.messages import BuildReason, Head, Snapshot

RebuildPolicy: TypeAlias = Callable[[Snapshot | None, str, Head, Head | None], BuildReason | None]
"""Decides when an agent is rebuilt. Hermes uses `rebuild_reason`; the benchmark compares others."""


def rebuild_reason(
    snapshot: Snapshot | None, signature: str, head: Head, baseline: Head | None
) -> BuildReason | None:
    """Return why the agent must be built for a turn on `head`'s session; None to reuse it.

    `baseline` is the head of the same session after this actor's last turn on it: counts of
    different sessions are never compared. If the count is unknown, foreign writes are not checked
    for.
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
