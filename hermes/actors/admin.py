"""The verbs of an operator, who sees the conversations of all keys."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping

import msgspec

from hermes.actors.context import RuntimeContext
from hermes.actors.intake import Intake
from hermes.actors.metrics import Latency, Spending
from hermes.actors.session import operations
from hermes.actors.supervisor import Supervisor
from hermes.errors import HermesError, UnknownSession
from hermes.messages import (
    BuildReason,
    ReplyStatus,
    RunningTurnInfo,
    SessionChange,
    SessionMatch,
    SessionSummary,
    StoredMessage,
    StoreStats,
)
from hermes.sanitize import scrub


class RuntimeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of a runtime."""

    actors: int
    """Conversations in memory."""
    agents: int
    """Cached agents."""
    transcript_bytes: int
    """Approximate size of the cached transcripts."""
    builds: Mapping[BuildReason, int]
    """Agent builds since the start, by reason."""
    reuses: int
    """Turns that reused their cached agent."""
    draining: bool
    """Whether the runtime is ending."""
    running: int
    """Turns that are running now."""
    turns: Mapping[ReplyStatus, int]
    """Replies since the start, by status."""
    errors: Mapping[str, int]
    """Failed turns since the start, by class of the error."""
    last_error: tuple[str, float] | None
    """The class of the last error, and its wall-clock time."""
    spending: Spending
    """Provider calls of turns since the start."""
    commits: Latency
    """Commit times."""
    store: StoreStats | None
    """Open messages, undelivered replies and today's cost; None if the store did not answer."""


class Admin:
    """Operator verbs of a runtime: `runtime.admin`."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor, intake: Intake) -> None:
        self._context = context
        self._supervisor = supervisor
        self._intake = intake

    async def sessions(
        self,
        *,
        include_subagents: bool = False,
        include_archived: bool = False,
        limit: int = 20,
        offset: int = 0,
    ) -> list[SessionSummary]:
        """Return the sessions of all keys, latest activity first.

        Sessions of subagents and archived ones are left out unless they are asked for.
        """
        return await self._supervisor.store.list_sessions(
            include_subagents=include_subagents, include_archived=include_archived,
            limit=limit, offset=offset,
        )  # fmt: skip

    async def find(self, target: str, *, session_key: str | None = None) -> SessionMatch | None:
        """Find a conversation by session id, unique id prefix or title, of one key or of all.

        Raises `AmbiguousTitle` if several sessions have the title.
        """
        return await self._supervisor.store.find(scrub(target), session_key=session_key)

    async def switch(self, session_key: str, target: str) -> SessionChange:
        """Continue a conversation with any session, given by id, unique id prefix or title.

        The sessions of `session_key` come first. A session of another key belongs to both keys
        from then on; its title gets a number if another session of `session_key` has it. Raises
        `UnknownSession` if there is none, `AmbiguousTitle` if several sessions have the title, and
        what the verbs of `Conversation` raise.
        """
        return await self._intake.request(
            session_key, lambda actor: operations.switch(actor.state, scrub(target), any_key=True)
        )

    async def messages(
        self,
        session_id: str,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        lineage: bool = False,
        include_rewound: bool = False,
    ) -> list[StoredMessage]:
        """Return the transcript of any session, or a page of it. See `Conversation.history`.

        Raises `UnknownSession` if there is no such session.
        """
        return await self._supervisor.store.get_page(
            scrub(session_id), limit=limit, before=before, after=after, lineage=lineage,
            include_rewound=include_rewound,
        )  # fmt: skip

    async def archive(self, session_id: str) -> None:
        """Hide a conversation from lists, with all its compressed sessions.

        It is not ended, and can be continued as before. Raises `UnknownSession`.
        """
        await self._supervisor.store.archive_session(scrub(session_id))

    async def unarchive(self, session_id: str) -> None:
        """List an archived conversation again. Raises `UnknownSession`."""
        await self._supervisor.store.unarchive_session(scrub(session_id))

    async def delete(self, session_id: str) -> int:
        """Delete a conversation with all its compressed sessions and those of its subagents.

        Returns how many messages were deleted.

        A key whose current session it was starts a new one; a turn that still runs on it is
        discarded. Raises `UnknownSession` if there is no such session.
        """
        store = self._supervisor.store
        found = await store.find(scrub(session_id))
        if found is None or found.session is None or session_id not in found.lineage:
            raise UnknownSession(f"there is no session {session_id!r}")
        # The newest session last: if this is cut short, the rest can still be found and deleted.
        return sum([await store.delete_session(each) for each in found.lineage])

    def running_turns(self) -> dict[str, RunningTurnInfo]:
        """Return the turns that are running now, by session_key."""
        self._supervisor.require_running()
        turns = {actor.key: actor.runner.turn for actor in self._supervisor.actors}
        return {
            key: RunningTurnInfo(turn.turn_id, scrub(turn.published_text))
            for key, turn in turns.items()
            if turn is not None
        }

    async def statistics(self) -> RuntimeStatistics:
        """Return counters and gauges of the runtime and its store."""
        self._supervisor.require_running()
        stored: StoreStats | None = None
        with contextlib.suppress(HermesError):  # the store is busy, or about to end
            stored = await self._context.store.facts()
        actors, metrics = self._supervisor.actors, self._context.metrics
        return RuntimeStatistics(
            actors=len(actors),
            agents=sum(actor.state.cache.has_agent for actor in actors),
            transcript_bytes=sum(actor.state.cache.size for actor in actors),
            builds=Counter(metrics.builds),
            draining=self._supervisor.draining,
            running=sum(actor.runner.turn is not None for actor in actors),
            reuses=metrics.reuses,
            turns=Counter(metrics.turns),
            errors=Counter(metrics.errors),
            last_error=metrics.last_error,
            spending=metrics.spending,
            commits=metrics.latency(),
            store=stored,
        )

    def passivate(self) -> None:
        """End actors that were idle for too long; the runtime also does so by itself."""
        self._supervisor.require_running()
        self._supervisor.passivate()


class AdapterState:
    """Small values that adapters keep in the store, such as a position in an update stream."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def get(self, name: str) -> str | None:
        """Return a value; None if there is none."""
        return await self._supervisor.store.get_meta(f"adapter:{scrub(name)}")

    async def set(self, name: str, value: str) -> None:
        """Store a value; it is on disk when this returns."""
        await self._supervisor.store.set_meta(f"adapter:{scrub(name)}", scrub(value))
