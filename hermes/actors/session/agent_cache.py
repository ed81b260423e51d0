"""The cached agent of an actor, and the transcripts it was shown.

Reuse means that the object and its byte-stable prefix stay; the history handed to it is always that
of the session at hand. After a turn on B, what is known of A stays as it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import attrs

from hermes.actors.context import RuntimeContext
from hermes.actors.session.policy import Baseline
from hermes.messages import AgentSpec, BuildReason, Head, Snapshot, StoredMessage
from hermes.protocols import Agent
from hermes.transcript.compaction import estimate_tokens

MAX_SESSIONS = 16
_ROW_BYTES = 200
_UNCOUNTED = ("", 0, 0)
_NONE: Mapping[BuildReason, int] = {}


@attrs.define
class CachedTranscript:
    """The rows of a transcript, as they were at `head`."""

    head: Head
    rows: list[StoredMessage]
    size: int = 0
    tokens: int = 0

    @property
    def last_id(self) -> int:
        """The last row; 0 where there is none."""
        return self.rows[-1].id if self.rows else 0

    def extend(self, rows: Sequence[StoredMessage], head: Head) -> None:
        self.rows.extend(rows)
        self.tokens += estimate_tokens(rows)
        self.size += sum([_ROW_BYTES + len(row.content or "") for row in rows])
        self.head = head


class AgentCache:
    """One agent, and for each session it was used on where that stood afterwards."""

    __slots__ = (
        "_agent",
        "_baselines",
        "_context",
        "_held",
        "_lost",
        "_snapshot",
        "builds",
        "counted",
    )  # fmt: skip

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._agent: Agent | None = None
        self._snapshot: Snapshot | None = None
        self._lost: BuildReason = "cold"
        self._baselines: OrderedDict[str, Baseline] | None = None
        self._held: OrderedDict[str, CachedTranscript] | None = None
        self.counted = _UNCOUNTED
        """The session of the last turn, the tokens its provider counted, and how many of them an
        estimate of the transcript does not see."""
        self.builds = _NONE
        """How often an agent was built, and why."""

    # The agent

    @property
    def snapshot(self) -> Snapshot | None:
        """The four-field view, for the session of the last turn."""
        return self._snapshot

    def baseline(self, session_id: str) -> Baseline | None:
        """Where a session stood after our own last turn on it."""
        return None if self._baselines is None else self._baselines.get(session_id)

    def adopt(self, snapshot: Snapshot) -> None:
        """Take an agent that the host has built; what it does not know is not guarded."""
        if snapshot.agent is not self._agent:
            self.drop("evicted")
        self._agent, self._snapshot = snapshot.agent, snapshot
        self._baselines = None  # they tell of its predecessor

    async def ready(self, spec: AgentSpec, head: Head) -> tuple[Agent, BuildReason | None]:
        """The agent for a turn on `head`'s session, and why it had to be built, if it had."""
        known = self.snapshot
        reason = self._context.guard(known, spec.signature, head, self.baseline(head.session_id))
        if reason is None:
            assert self._agent is not None
            self._context.counts.reuses += 1
            return self._agent, None
        if reason == "cold":
            reason = self._lost
        self.drop(reason)
        agent = await self._context.build_agent(spec)
        if not callable(getattr(agent, "run", None)):
            raise TypeError(f"the builder returned {agent!r}, which has no run(turn)")
        self._agent = agent
        self._snapshot = Snapshot(agent, spec.signature, head.message_count, head.session_id)
        self._context.builds[reason] += 1
        self.builds = {**self.builds, reason: self.builds.get(reason, 0) + 1}
        return agent, reason

    def begin(self, head: Head) -> None:
        """A turn begins at `head`: what comes from elsewhere after it will be news."""
        self._note(head)
        known = self._snapshot
        if known is not None:  # one whose count was never known stays unguarded
            count = None if known.message_count is None else head.message_count
            self._snapshot = Snapshot(known.agent, known.signature, count, head.session_id)

    def _note(self, head: Head) -> None:
        baselines = self._baselines = self._baselines or OrderedDict()
        baselines[head.session_id] = Baseline.of(head)
        baselines.move_to_end(head.session_id)
        while len(baselines) > MAX_SESSIONS:
            baselines.popitem(last=False)

    def settle(self, head: Head) -> None:
        """Our own turn ended at `head`, and nobody else wrote meanwhile."""
        self.begin(head)

    def changed(self, before: Head, head: Head) -> None:
        """We ourselves changed a transcript, outside of a turn: that alone is no news."""
        if self.baseline(head.session_id) != Baseline.of(before):
            return
        known = self._snapshot
        if known is not None and known.session_id == head.session_id:
            self.settle(head)
        else:
            self._note(head)

    def drop(self, reason: BuildReason) -> None:
        """Give the agent up; it is closed beside."""
        agent, self._agent = self._agent, None
        self._snapshot = None
        self._lost = reason
        if agent is not None:
            self._context.nursery.start_soon(self._context.close_agent, agent)

    def drop_abandoned(self) -> bool:
        """Give the agent up if it says that something of it still runs; says whether it did."""
        abandoned = bool(getattr(self._agent, "abandoned", False))  # optional by contract
        if abandoned:
            self.drop("abandoned")
        return abandoned

    @property
    def has_agent(self) -> bool:
        return self._agent is not None

    async def aclose(self) -> None:
        """Close the agent now."""
        agent, self._agent = self._agent, None
        self._snapshot = None
        if agent is not None:
            await self._context.close_agent(agent)

    # The transcripts

    async def transcript(self, head: Head) -> CachedTranscript:
        """The rows at `head`, from memory where that is where we are, else from the store."""
        held = None if self._held is None else self._held.get(head.session_id)
        if held is not None and held.head.revision == head.revision:
            return held
        if head.revision == 0:
            return self.hold(head, [])
        loaded = await self._context.store.load(head.session_id)
        return self.hold(loaded.head, list(loaded.messages))

    def hold(self, head: Head, rows: list[StoredMessage]) -> CachedTranscript:
        """Keep a transcript."""
        every = self._held = self._held or OrderedDict()
        held = every[head.session_id] = CachedTranscript(head, [])
        held.extend(rows, head)
        every.move_to_end(head.session_id)
        while len(every) > MAX_SESSIONS:
            every.popitem(last=False)
        return held

    def estimate(self, session_id: str) -> int:
        """About how many tokens the transcript has; 0 where it is not held."""
        held = None if self._held is None else self._held.get(session_id)
        return 0 if held is None else held.tokens

    def release(self, session_id: str | None = None) -> None:
        """Forget one transcript, or all of them."""
        if session_id is None:
            self._held = None
        elif self._held is not None:
            self._held.pop(session_id, None)

    @property
    def size(self) -> int:
        """The bytes of the transcripts, about."""
        return 0 if self._held is None else sum([held.size for held in self._held.values()])
