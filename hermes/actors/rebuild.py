"""Decide whether a cached agent may be reused, and note why agents were built."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeAlias

from hermes.messages import AgentSpec, BuildReason, Head, PromptDifference, Rebuild, Snapshot

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


MAX_KEYS = 1000
MAX_REBUILDS = 20
CONTEXT = 60
"""Bytes that are shown before and after the first byte that differs."""


class RebuildLog:
    """The latest rebuilds of the latest conversations, with what differed. It is in memory only."""

    def __init__(self, wall: Callable[[], float], redact: Callable[[str], str] = str) -> None:
        self._wall = wall
        self._redact = redact
        self._by_key: OrderedDict[str, deque[Rebuild]] = OrderedDict()

    def add(self, before: AgentSpec, spec: AgentSpec, head: Head, reason: BuildReason) -> None:
        """Note that an agent was replaced by another one, for a turn on this session."""
        noted = self._by_key.pop(spec.session_key, None) or deque(maxlen=MAX_REBUILDS)
        self._by_key[spec.session_key] = noted
        if len(self._by_key) > MAX_KEYS:
            self._by_key.popitem(last=False)
        difference = spec_difference(before, spec, self._redact)
        noted.append(
            Rebuild(
                at=self._wall(), session_id=head.session_id, reason=reason,
                compared="descriptions", difference=difference,
            )
        )  # fmt: skip

    def of(self, session_key: str) -> list[Rebuild]:
        """Return the rebuilds of a conversation, the latest first."""
        return [*reversed(self._by_key.get(session_key, ()))]


def spec_difference(
    before: AgentSpec, spec: AgentSpec, redact: Callable[[str], str] = str
) -> PromptDifference | None:
    """Return the first difference between what two agents were built from; None without one.

    Credentials are compared, but never shown.
    """
    parts = zip(_PARTS, _texts(before), _texts(spec), strict=True)
    found = next(((part, old, new) for part, old, new in parts if old != new), None)
    if found is not None:
        return text_difference(found[0], redact(found[1]), redact(found[2]))
    if before.credential != spec.credential:
        return PromptDifference(part="credential", offset=0, before="", after="", shown_from=0)
    return None


_PARTS = ("model", "tools", "system prompt", "settings", "endpoint", "user")


def _texts(spec: AgentSpec) -> tuple[str, ...]:
    settings = "\n".join(f"{name}: {value}" for name, value in sorted(spec.settings))
    return (
        spec.model or "", "\n".join(sorted(spec.toolset)), spec.system_prompt or "", settings,
        spec.endpoint or "", spec.user_id or "",
    )  # fmt: skip


def text_difference(part: str, before: str, after: str) -> PromptDifference:
    """Return the first byte in which two texts differ, with what is around it."""
    return bytes_difference(
        part, *(text.encode("utf-8", "surrogatepass") for text in (before, after))
    )


def bytes_difference(part: str, old: bytes, new: bytes) -> PromptDifference:
    """Return the first byte in which two texts in UTF-8 differ, with what is around it."""
    offset = common_prefix(old, new)
    start = max(0, offset - CONTEXT)
    shown = [each[start : offset + CONTEXT].decode(errors="replace") for each in (old, new)]
    return PromptDifference(
        part=part, offset=offset, before=shown[0], after=shown[1], shown_from=start
    )


def common_prefix(old: bytes, new: bytes) -> int:
    """Return how many bytes two texts have in common at their beginning; by halving the range."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
