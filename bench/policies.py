"""Ways to decide when a cached agent is built anew: ours, others', and broken ones.

Each is put into the real runtime in place of its own guard. Those of hermes-agent are restated here
from its behaviour, with what its gateway does after each turn (`refresh`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from hermes.actors.session.policy import Baseline, guard
from hermes.messages import BuildReason, Head, Snapshot


class Policy(Protocol):
    """A guard, and what it notes after a turn: the session's id and its count of messages."""

    def __call__(
        self, snapshot: Snapshot | None, signature: str, head: Head, baseline: Baseline | None
    ) -> BuildReason | None: ...
    def refresh(self, agent: object, session_id: str, message_count: int) -> None: ...


class Ours:
    """The runtime's own: revisions of the session at hand."""

    def __call__(
        self, snapshot: Snapshot | None, signature: str, head: Head, baseline: Baseline | None
    ) -> BuildReason | None:
        return guard(snapshot, signature, head, baseline)

    def refresh(self, agent: object, session_id: str, message_count: int) -> None:
        """The runtime knows."""


class Restated(Ours):
    """What the policies of others have in common: an agent is needed, and a fitting one."""

    def __call__(
        self, snapshot: Snapshot | None, signature: str, head: Head, baseline: Baseline | None
    ) -> BuildReason | None:
        if snapshot is None:
            return "cold"
        if snapshot.signature != signature:
            return "signature"
        return self.judge(snapshot, head)

    def judge(self, snapshot: Snapshot, head: Head) -> BuildReason | None:
        raise NotImplementedError


class BeforeFix(Restated):
    """hermes-agent before its #54947: one count for all sessions of a key."""

    def __init__(self) -> None:
        self._counts: dict[object, int] = {}

    def judge(self, snapshot: Snapshot, head: Head) -> BuildReason | None:
        known = self._counts.get(snapshot.agent, head.message_count)
        return None if known == head.message_count else "foreign-write"

    def refresh(self, agent: object, session_id: str, message_count: int) -> None:
        self._counts[agent] = message_count


class AfterFix(Restated):
    """hermes-agent after its #54947: a count of the session that the agent was built for.

    Other sessions are never checked, and what came from elsewhere during a turn is taken for ours.
    Our compressions give a session another id, so after one it guards nothing until it is rebuilt;
    hermes-agent's own drop the agent.
    """

    def __init__(self) -> None:
        self._known: dict[object, tuple[str, int]] = {}

    def judge(self, snapshot: Snapshot, head: Head) -> BuildReason | None:
        session_id, count = self._known.get(snapshot.agent, (head.session_id, head.message_count))
        if session_id != head.session_id or count == head.message_count:
            return None
        return "foreign-write"

    def refresh(self, agent: object, session_id: str, message_count: int) -> None:
        bound, _ = self._known.setdefault(agent, (session_id, message_count))
        if bound == session_id:
            self._known[agent] = (session_id, message_count)


class EverySwitch(Ours):
    """A design with one agent per session and room for one: each switch builds."""

    def __call__(
        self, snapshot: Snapshot | None, signature: str, head: Head, baseline: Baseline | None
    ) -> BuildReason | None:
        switched = snapshot is not None and snapshot.session_id != head.session_id
        return "evicted" if switched else guard(snapshot, signature, head, baseline)


class AlwaysReuse(Restated):
    """Broken: what others wrote is never noticed."""

    def judge(self, snapshot: Snapshot, head: Head) -> BuildReason | None:
        return None


class AlwaysRebuild(Restated):
    """Broken: nothing is ever reused."""

    def judge(self, snapshot: Snapshot, head: Head) -> BuildReason | None:
        return "evicted"


@attrs.frozen
class Contender:
    """A policy under a name, and whether a rebuild makes the system prompt anew."""

    name: str
    policy: Callable[[], Policy]
    renders: bool = False

    @property
    def label(self) -> str:
        """Its row."""
        return f"{self.name}; prompt {'rendered again' if self.renders else 'kept'}"


OURS = Contender("ours", Ours)
BEFORE = Contender("restated: hermes-agent before #54947", BeforeFix, renders=True)
AFTER = Contender("restated: hermes-agent after #54947", AfterFix, renders=True)
SWITCH = Contender("a rebuild on every switch", EverySwitch, renders=True)
REBUILD = Contender("mutant: always rebuild", AlwaysRebuild, renders=True)
REUSE = Contender("mutant: always reuse", AlwaysReuse)
KEPT = tuple(attrs.evolve(each, renders=False) for each in (BEFORE, AFTER, SWITCH))
CONTENDERS = (OURS, BEFORE, AFTER, SWITCH, *KEPT, REBUILD, REUSE)
BY_LABEL = {each.label: each for each in CONTENDERS}
