"""The cached agent of a session actor, and the transcripts it was shown.

Reusing an agent keeps the object and its byte-stable prompt prefix; the history it receives is
always that of the current session. A turn on one session leaves the baselines of others unchanged.
"""

from __future__ import annotations

import inspect
import logging
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import attrgetter

import attrs
import trio

from hermes.actors.context import RuntimeContext
from hermes.background import start_soon
from hermes.messages import AgentSpec, BuildReason, Head, Snapshot, StoredMessage
from hermes.protocols import Agent, SupportsAbandon, SupportsAclose
from hermes.transcript.tokens import estimate_tokens
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

MAX_SESSIONS = 16
_ROW_BYTES = 200
_id = attrgetter("id")
_NOT_COUNTED = ("", 0, 0)
_NO_BUILDS: Mapping[BuildReason, int] = {}


@attrs.define
class CachedTranscript:
    """The rows of a transcript at `head`, with its size in bytes and tokens (estimates)."""

    head: Head
    rows: list[StoredMessage]
    size: int = 0
    tokens: int = 0

    @property
    def last_id(self) -> int:
        """The id of the last row; 0 if there is none."""
        return self.rows[-1].id if self.rows else 0

    def extend(self, rows: Sequence[StoredMessage], head: Head) -> None:
        """Append rows that were committed."""
        self.rows.extend(rows)
        self.tokens += estimate_tokens(rows)
        self.size += sum([_ROW_BYTES + len(row.content or "") for row in rows])
        self.head = head


class AgentCache:
    """One agent, the baselines of the sessions it was used on, and their transcripts.

    The containers are created on first use: most actors are idle, and there are many.
    """

    __slots__ = (
        "_agent", "_baselines", "_checked", "_context", "_lost", "_may_abandon", "_snapshot",
        "_spec", "_transcripts", "builds", "counted", "measured",
    )  # fmt: skip

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._agent: Agent | None = None
        self._may_abandon: SupportsAbandon | None = None
        """The agent, if it may leave work behind. The check is too slow for every turn."""
        self._checked = False
        """Whether that is known."""
        self._snapshot: Snapshot | None = None
        self._spec: AgentSpec | None = None
        """What the last agent was built from, also after it was dropped."""
        self._lost: BuildReason = "cold"
        self._baselines: OrderedDict[str, Head] | None = None
        self._transcripts: OrderedDict[str, CachedTranscript] | None = None
        self.counted: tuple[str, int, int] = _NOT_COUNTED
        """The session of the last turn, the tokens its provider counted, and how many of them the
        estimate of the transcript missed."""
        self.builds: Mapping[BuildReason, int] = _NO_BUILDS
        """Agent builds by reason."""
        self.measured: int = 0
        """The size when it was last measured, see `CacheLimits`."""

    # The agent

    @property
    def snapshot(self) -> Snapshot | None:
        """The agent and the state of the session of its last turn."""
        return self._snapshot

    @property
    def has_agent(self) -> bool:
        """Whether an agent is cached."""
        return self._agent is not None

    def baseline(self, session_id: str) -> Head | None:
        """Return the head of a session after our own last turn on it."""
        return None if self._baselines is None else self._baselines.get(session_id)

    def set_agent(self, snapshot: Snapshot) -> None:
        """Use an agent that the host built. Without a known count, foreign writes are ignored."""
        if snapshot.agent is not self._agent:
            self.drop("evicted")
        self._use(snapshot)
        self._baselines = None  # they describe its predecessor

    async def get(self, spec: AgentSpec, head: Head) -> tuple[Agent, BuildReason | None]:
        """Return the agent for a turn on `head`'s session, and why it was built, if it was."""
        baseline = self.baseline(head.session_id)
        reason = self._context.rebuild_policy(self._snapshot, spec.signature, head, baseline)
        if reason is not None:
            reason = self._lost if reason == "cold" else reason
            return await self._build(spec, head, reason), reason
        assert self._agent is not None
        self._context.metrics.reuses += 1
        return self._agent, None

    async def _build(self, spec: AgentSpec, head: Head, reason: BuildReason) -> Agent:
        """Replace the agent by a new one."""
        self.drop(reason)
        built = self._context.build(spec)
        agent = await built if inspect.isawaitable(built) else built
        if not callable(getattr(agent, "run", None)):  # user code: nothing else has checked it
            raise TypeError(f"build_agent returned {agent!r}, which has no run(turn)")
        self._use(Snapshot(agent, spec.signature, head.message_count, head.session_id))
        self._context.metrics.builds[reason] += 1
        if self._spec is not None:
            self._context.rebuilds.add(self._spec, spec, head, reason)
        self._spec = spec
        others = {each: n for each, n in self.builds.items() if each != reason}
        self.builds = {**others, reason: self.builds.get(reason, 0) + 1}  # the latest comes last
        return agent

    def _use(self, snapshot: Snapshot) -> None:
        self._context.caches.agents += self._agent is None
        self._agent, self._snapshot, self._checked = snapshot.agent, snapshot, False
        self._context.caches.measure(self)

    def begin(self, head: Head) -> None:
        """Set the baseline at the start of a turn: later rows of others will be foreign writes."""
        self._set_baseline(head)
        snapshot = self._snapshot
        if snapshot is not None:  # one whose count was never known stays unguarded
            count = None if snapshot.message_count is None else head.message_count
            self._snapshot = Snapshot(snapshot.agent, snapshot.signature, count, head.session_id)

    # Our own turn ended at `head`, and nobody else wrote meanwhile.
    committed = begin

    def changed(self, before: Head, head: Head) -> None:
        """Move the baseline after our own change outside of a turn, which is no foreign write."""
        if self.baseline(head.session_id) != before:
            return
        snapshot = self._snapshot
        if snapshot is not None and snapshot.session_id == head.session_id:
            self.begin(head)
        else:
            self._set_baseline(head)

    def appended(self, before: Head, row: StoredMessage, head: Head) -> None:
        """Take over a row that we appended outside of a turn, which is no foreign write."""
        cached = None if self._transcripts is None else self._transcripts.get(head.session_id)
        if cached is not None and cached.head == before:
            cached.extend([row], head)
        self.changed(before, head)

    def _set_baseline(self, head: Head) -> None:
        baselines = self._baselines = self._baselines or OrderedDict()
        baselines[head.session_id] = head
        baselines.move_to_end(head.session_id)
        while len(baselines) > MAX_SESSIONS:
            baselines.popitem(last=False)

    def drop(self, reason: BuildReason) -> None:
        """Discard the agent; it is closed in the background."""
        agent: object = self._take_agent()
        self._lost = reason
        if agent is not None and isinstance(agent, SupportsAclose):  # a slow check
            seconds = self._context.config.close_timeout
            start_soon(self._context.nursery, close_agent, agent, seconds)

    def _take_agent(self) -> Agent | None:
        agent = self._agent
        self._context.caches.agents -= agent is not None
        self._agent = self._snapshot = self._may_abandon = None
        return agent

    def drop_abandoned(self) -> bool:
        """Discard the agent if work of it is still running. Returns whether it was."""
        if not self._checked:
            agent: object = self._agent
            self._may_abandon = agent if isinstance(agent, SupportsAbandon) else None
            self._checked = True
        abandoned = self._may_abandon is not None and self._may_abandon.abandoned
        if abandoned:
            self.drop("abandoned")
        return abandoned

    async def aclose(self) -> None:
        """Forget everything and close the agent now."""
        agent: object = self._take_agent()
        self.release()
        self._context.caches.forget(self)
        if isinstance(agent, SupportsAclose):
            await close_agent(agent, self._context.config.close_timeout)

    # The transcripts

    async def transcript(self, head: Head, *, keep: bool = True) -> CachedTranscript:
        """Return the transcript at `head`, from memory or from the store; `keep` it in memory."""
        cached = None if self._transcripts is None else self._transcripts.get(head.session_id)
        if cached is not None and cached.head.revision == head.revision:
            return cached
        return await self._load(head, keep=keep)

    async def _load(self, head: Head, *, keep: bool) -> CachedTranscript:
        cached = CachedTranscript(head, [])
        if head.revision:
            loaded = await self._context.store.load(head.session_id)
            cached.extend(loaded.messages, loaded.head)
        if keep:
            transcripts = self._transcripts = self._transcripts or OrderedDict()
            transcripts[cached.head.session_id] = cached
            transcripts.move_to_end(cached.head.session_id)
            while len(transcripts) > MAX_SESSIONS:
                transcripts.popitem(last=False)
            self._context.caches.measure(self)
        return cached

    def rows(self, session_id: str, first: int, last: int) -> list[StoredMessage] | None:
        """Return rows of a cached transcript, from one id to another; None if it lacks them."""
        cached = None if self._transcripts is None else self._transcripts.get(session_id)
        if cached is None or cached.last_id < last:
            return None
        start = bisect_left(cached.rows, first, key=_id)
        end = bisect_right(cached.rows, last, lo=start, key=_id)
        found = cached.rows[start:end]
        return found if found and (found[0].id, found[-1].id) == (first, last) else None

    def estimate(self, session_id: str) -> int:
        """Return the estimated tokens of a cached transcript; 0 if it is not cached."""
        cached = None if self._transcripts is None else self._transcripts.get(session_id)
        return 0 if cached is None else cached.tokens

    def release(self, session_id: str | None = None) -> None:
        """Forget one transcript, or all of them."""
        if session_id is None:
            self._transcripts = None
        elif self._transcripts is not None:
            self._transcripts.pop(session_id, None)

    @property
    def size(self) -> int:
        """The approximate size of the transcripts in bytes."""
        return sum([cached.size for cached in (self._transcripts or {}).values()])


async def close_agent(agent: SupportsAclose, seconds: float) -> None:
    """Close an agent within a time limit. An error is logged."""
    with trio.move_on_after(seconds, shield=True) as scope, contained() as caught:
        await agent.aclose()
    if caught.error is not None:
        log.error("an agent failed to close", exc_info=caught.error)
    if scope.cancelled_caught:
        log.warning("an agent was not closed within %g s", seconds)
