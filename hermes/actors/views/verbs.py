"""What the clients of an API see: lists, states, approvals, usage, and the actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from hermes.actors.admission import pairing
from hermes.actors.cluster.verbs import Configure
from hermes.actors.context import RuntimeContext
from hermes.actors.intake import Intake
from hermes.actors.session.actor import SessionActor
from hermes.actors.supervisor import Supervisor
from hermes.events import Envelope, RuntimeEvent
from hermes.messages import (
    ActorInfo,
    Approval,
    ConversationSummary,
    ConversationView,
    CostTotals,
    KnownRows,
    LaneInfo,
    MessageOutcome,
    Pairing,
    PairingRejected,
    Principal,
    Role,
    SearchHit,
    Source,
    TurnProgress,
    TurnUsage,
)
from hermes.sanitize import encodable, scrub
from hermes.texts import Texts


def _actor_info(actor: SessionActor, now: float) -> ActorInfo:
    turn, cache = actor.runner.latest, actor.state.cache
    running = None if turn is None else turn.progress
    seconds = None if running is None else actor.state.context.wall() - running.started_at
    return ActorInfo(
        session_key=actor.key,
        session_id=actor.state.session_id,
        mailbox=actor.inbox.waiting,
        turn_id=None if running is None else running.turn_id,
        turn_seconds=seconds,
        has_agent=cache.has_agent,
        builds=dict(cache.builds),
        last_build=next(reversed([*cache.builds]), None),
        transcript_bytes=cache.size,
        idle_seconds=max(0.0, now - actor.last_used),
    )


class Views:
    """The part of `runtime.api` that reads conversations, and acts on what it shows."""

    _context: RuntimeContext

    def __init__(self, supervisor: Supervisor, intake: Intake) -> None:
        self._supervisor = supervisor
        self._intake = intake

    # Conversations

    async def conversations(
        self,
        *,
        prefixes: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        title_contains: str | None = None,
        archived: bool | None = False,
        before: tuple[float, str] | None = None,
        limit: int = 50,
    ) -> list[ConversationSummary]:
        """Return the conversations whose keys begin with a prefix, latest activity first.

        Without `prefixes`, those of all keys. `archived` None also lists archived ones. `before` is
        the activity and the key of the last entry of the page before.
        """
        return await self._supervisor.store.list_conversations(
            prefixes=prefixes, keys=keys, title_contains=title_contains, archived=archived,
            before=before, limit=limit,
        )  # fmt: skip

    async def view(self, session_key: str, *, known: KnownRows | None = None) -> ConversationView:
        """Return the stored state of a conversation, with the messages that are not `known`."""
        return await self._supervisor.store.get_view(session_key, known=known)

    async def stamps(self, session_keys: Sequence[str]) -> Mapping[str, str]:
        """Return a text for each of these keys that changes whenever its stored state does."""
        return await self._supervisor.store.conversation_stamps(session_keys)

    def progress(self, session_key: str) -> TurnProgress | None:
        """Return what the running turn of a conversation has published; None if none runs.

        There is no checkpoint: subscribers have received exactly the events that it contains.
        """
        self._supervisor.require_running()
        turn = self._supervisor.turn(session_key)
        return None if turn is None else turn.progress

    def turn_events(self, session_key: str) -> list[RuntimeEvent]:
        """Return all that the running turn of a conversation has published, in order.

        It is what `progress` adds up; there is no checkpoint either.
        """
        self._supervisor.require_running()
        turn = self._supervisor.turn(session_key)
        if turn is None or turn.progress is None:
            return []
        return [encodable(event) for event in turn.published_events]

    def has_other_nodes(self) -> bool:
        """Whether the processes of a cluster share the store, of which this is one."""
        self._supervisor.require_running()
        return self._context.peers is not None

    def is_elsewhere(self, session_key: str) -> bool:
        """Whether another node of a cluster may serve a conversation, and not this one."""
        self._supervisor.require_running()
        return self._context.peers is not None and self._supervisor.find(session_key) is None

    def published(self, session_key: str) -> list[Envelope]:
        """Return what the running turn of a conversation has published, as events; [] without one.

        It is the start of the turn, its text and the tools that run. There is no checkpoint: events
        that a subscriber has received before are among them, and those that follow are not.
        """
        self._supervisor.require_running()
        turn, seq = self._supervisor.turn(session_key), self._context.bus.seq
        said = [] if turn is None else [(turn.turn_id, event) for event in turn.said]
        return [Envelope(seq, session_key, turn_id, encodable(event)) for turn_id, event in said]

    async def delete_conversation(self, session_key: str) -> int:
        """Delete the current conversation of a key, with its title and settings.

        Returns how many messages were deleted; a turn that still runs on it is discarded.
        """
        self._intake.require_running()
        store, deleted = self._supervisor.store, 0
        view = await store.get_view(session_key)
        found = None if view.session_id is None else await store.find(view.session_id)
        if found is not None and found.session is not None:
            # The newest session last: if this is cut short, the rest can still be found.
            deleted = sum([await store.delete_session(each) for each in found.lineage])
        if view.session_id is not None:
            await store.set_title(session_key, None)
            await self._intake.run(session_key, Configure(None, None, None))
        return deleted

    async def search(
        self,
        query: str,
        *,
        prefixes: Sequence[str] | None = None,
        role: str | None = None,
        limit: int = 20,
    ) -> list[SearchHit]:
        """Search the messages of the keys that begin with a prefix, best match first."""
        return await self._supervisor.store.search_messages(
            query, key_prefixes=prefixes, role=None if role is None else scrub(role), limit=limit
        )

    async def outcome(self, inbox_id: int) -> MessageOutcome | None:
        """Return what became of an accepted message; None if it is unknown."""
        return await self._supervisor.store.get_outcome(inbox_id)

    # Approvals

    async def approvals(self, session_key: str) -> list[Approval]:
        """Return the tool calls that the user of a conversation has not decided, oldest first."""
        return await self._supervisor.store.pending_approvals(session_key)

    async def waiting_approvals(
        self, *, prefixes: Sequence[str] | None = None, after: int = 0, limit: int = 100
    ) -> list[Approval]:
        """Return the tool calls that users of keys with these prefixes have not decided.

        The oldest come first; `after` is the number of the last one of the page before. Without
        `prefixes`, those of all users.
        """
        return await self._supervisor.store.list_approvals(
            prefixes=prefixes, after=after, limit=limit
        )

    async def approval(self, session_key: str, approval_id: int) -> Approval | None:
        """Return a tool call that the user of a conversation was asked about, in any state."""
        return await self._supervisor.store.get_approval(session_key, approval_id)

    async def allowed_tools(self, session_key: str) -> list[str]:
        """Return the tools that the user has allowed in a conversation for good."""
        return await self._supervisor.store.allowed_tools(session_key)

    async def revoke_tool(self, session_key: str, tool: str) -> bool:
        """Ask again for each call of a tool. Returns False if it was not allowed."""
        return await self._supervisor.store.revoke_tool(session_key, scrub(tool))

    # Usage

    async def usage(self, session_key: str, *, limit: int = 100) -> list[TurnUsage]:
        """Return what the turns of a conversation have used, the latest first."""
        return await self._supervisor.store.usage_by_turn(session_key, limit=limit)

    async def spent(self, source: Source, session_id: str = "") -> CostTotals:
        """Return the cost of a session, and of today by the user of a source and by everybody."""
        return await self._supervisor.store.spent(session_id, source.platform, source.user_id)

    # The runtime

    def actors(self) -> list[ActorInfo]:
        """Return the conversations in memory, most recently used first."""
        self._supervisor.require_running()
        now = trio.current_time()
        return [_actor_info(actor, now) for actor in reversed([*self._supervisor.actors])]

    async def lanes(self, *, limit: int = 200) -> list[LaneInfo]:
        """Return the chats that have undelivered replies, those that wait longest first."""
        return await self._supervisor.store.outbox_lanes(limit)

    # Access

    async def pairings(self) -> list[Pairing]:
        """Return the pending pairing requests."""
        return await self._supervisor.store.pairings()

    async def principals(self) -> list[Principal]:
        """Return the paired users."""
        return await self._supervisor.store.principals()

    async def approve_pairing(
        self, code: str, role: Role, by: Source, texts: Texts
    ) -> Pairing | PairingRejected:
        """Pair the user who holds a code, and send it a welcome."""
        return await self._supervisor.store.approve_pairing(
            code, role, by, welcome=lambda paired: pairing.welcome_rows(texts, paired)
        )
