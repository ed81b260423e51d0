"""Policies that decide when a cached agent is rebuilt: ours, those of others, and broken ones.

Each one replaces the guard of the real runtime. Those of hermes-agent are reimplemented from its
behaviour, including what its gateway does after each turn (`refresh`).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hermes.actors.rebuild import rebuild_reason
from hermes.messages import BuildReason, Head, Snapshot


class Policy:
    """The guard of the runtime itself; other policies override what it says of existing agents."""

    def __call__(
        self, snapshot: Snapshot | None, signature: str, head: Head, baseline: Head | None
    ) -> BuildReason | None:
        reason = rebuild_reason(snapshot, signature, head, baseline)
        if snapshot is None or reason == "signature":
            return reason
        return self.judge(snapshot, head, reason)

    def judge(
        self, snapshot: Snapshot, head: Head, reason: BuildReason | None
    ) -> BuildReason | None:
        """Decide on an existing agent; `reason` is what our guard says."""
        return reason

    def refresh(self, agent: object, session_id: str, message_count: int) -> None:
        """Called after each turn with the session and its number of messages."""


class BeforeFix(Policy):
    """hermes-agent before its #54947: one message count for all sessions of a key."""

    def __init__(self) -> None:
        self._counts: dict[object, int] = {}

    def judge(self, snapshot: Snapshot, head: Head, _: BuildReason | None) -> BuildReason | None:
        known = self._counts.get(snapshot.agent, head.message_count)
        return None if known == head.message_count else "foreign-write"

    def refresh(self, agent: object, session_id: str, message_count: int) -> None:
        self._counts[agent] = message_count


class AfterFix(Policy):
    """hermes-agent after its #54947: a message count of the session the agent was built for.

    Other sessions are never checked, and messages that arrive during a turn count as known. Our
    compressions give a session another id, after which this guard checks nothing until the next
    rebuild; hermes-agent's own compressions drop the agent.
    """

    def __init__(self) -> None:
        self._known: dict[object, tuple[str, int]] = {}

    def judge(self, snapshot: Snapshot, head: Head, _: BuildReason | None) -> BuildReason | None:
        session_id, count = self._known.get(snapshot.agent, (head.session_id, head.message_count))
        if session_id != head.session_id or count == head.message_count:
            return None
        return "foreign-write"

    def refresh(self, agent: object, session_id: str, message_count: int) -> None:
        bound, _ = self._known.setdefault(agent, (session_id, message_count))
        if bound == session_id:
            self._known[agent] = (session_id, message_count)


class EverySwitch(Policy):
    """A design with one agent per session and room for one agent: each switch rebuilds."""

    def judge(
        self, snapshot: Snapshot, head: Head, reason: BuildReason | None
    ) -> BuildReason | None:
        return "evicted" if snapshot.session_id != head.session_id else reason


class Broken(Policy):
    """Always reuses an agent, or never: the answer is the same for every agent."""

    def __init__(self, answer: BuildReason | None) -> None:
        self._answer = answer

    def judge(self, snapshot: Snapshot, head: Head, _: BuildReason | None) -> BuildReason | None:
        return self._answer


@attrs.frozen
class Contender:
    """A policy, and whether a rebuild renders the system prompt again."""

    name: str
    policy: Callable[[], Policy]
    renders: bool = False

    @property
    def label(self) -> str:
        """The name of its row."""
        return f"{self.name}; prompt {'rendered again' if self.renders else 'kept'}"


OURS = Contender("ours", Policy)
BEFORE = Contender("restated: hermes-agent before #54947", BeforeFix, renders=True)
AFTER = Contender("restated: hermes-agent after #54947", AfterFix, renders=True)
EVERY_SWITCH = Contender("a rebuild on every switch", EverySwitch, renders=True)
REBUILD = Contender("mutant: always rebuild", lambda: Broken("evicted"), renders=True)
REUSE = Contender("mutant: always reuse", lambda: Broken(None))
KEPT = tuple(attrs.evolve(each, renders=False) for each in (BEFORE, AFTER, EVERY_SWITCH))
CONTENDERS = (OURS, BEFORE, AFTER, EVERY_SWITCH, *KEPT, REBUILD, REUSE)
BY_LABEL = {each.label: each for each in CONTENDERS}
