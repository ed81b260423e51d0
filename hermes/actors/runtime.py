"""The runtime: actors by session_key, started by their first message and ended when idle."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

import msgspec
import trio

from hermes.actors.admission.access import AccessPolicy, Admission
from hermes.actors.auto_title import AutoTitler
from hermes.actors.compression.compressor import CompressionResult, SessionCompressor
from hermes.actors.context import RuntimeContext
from hermes.actors.delivery.dispatcher import Dispatcher
from hermes.actors.event_bus import EventCallback, Subscription
from hermes.actors.kernel.mailbox import Request
from hermes.actors.metrics import Latency, Spending
from hermes.actors.session.actor import SessionActor
from hermes.actors.session.commands import parse
from hermes.actors.session.policy import RebuildPolicy, guard
from hermes.actors.stream import Stream
from hermes.actors.supervisor import Supervisor
from hermes.config import Config
from hermes.context import inside_hook, inside_turn_of
from hermes.errors import (
    AlreadyAnswered,
    Draining,
    HermesError,
    Overloaded,
    UnknownSession,
    plain,
)
from hermes.messages import (
    Accepted,
    BuildReason,
    Busy,
    Inbound,
    JsonObject,
    Receipt,
    Reply,
    ReplyStatus,
    Route,
    RunningTurnInfo,
    SearchHit,
    SessionMatch,
    SessionSummary,
    Snapshot,
    Source,
    Status,
    StoredMessage,
    StoreStats,
    Title,
)
from hermes.protocols import Adapter, Build, Compressor, Describe, Store, Titler
from hermes.redaction.keys import Redact

log = logging.getLogger(__name__)

R = TypeVar("R")


class RuntimeStatistics(msgspec.Struct, frozen=True):
    """How the runtime is doing."""

    actors: int
    agents: int
    transcript_bytes: int
    builds: Mapping[BuildReason, int]
    draining: bool
    running: int
    """Turns that run now."""
    reuses: int
    """Turns that found their agent in the cache."""
    turns: Mapping[ReplyStatus, int]
    errors: Mapping[str, int]
    last_error: tuple[str, float] | None
    """Its kind, and when."""
    spending: Spending
    commits: Latency


class Runtime:
    """Conversations, each with an actor of its own. Every verb can be called at any time."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor
        context.submit = self._take

    # Input

    async def submit(self, inbound: Inbound) -> Receipt:
        """Accept a message: durable when this returns. The same event again, the same receipt."""
        return (await self._accept(inbound)).receipt

    async def _accept(self, inbound: Inbound) -> Accepted:
        """The one door: whatever somebody says, by any verb, comes through here."""
        if self._context.admission is not None:
            await self._context.admission.admit(inbound)
        return await self._take(inbound)

    async def _take(self, inbound: Inbound) -> Accepted:
        if self._supervisor.draining:
            raise Draining("the runtime is ending and takes no new messages")
        source, config = inbound.source, self._context.config
        return await self._context.store.accept(
            inbound,
            policy=config.expiry_of(source.platform, source.chat_type),
            max_queued=config.max_queued,
        )

    async def ask(
        self,
        session_key: str,
        text: str,
        *,
        source: Source | None = None,
        parts: Sequence[JsonObject] | None = None,
        busy: Busy | None = None,
        event_id: str | None = None,
    ) -> Reply:
        """Say something and wait for the reply. What begins like a command is one."""
        _refuse_itself(session_key)
        inbound = _inbound(session_key, text, source, parts, busy, event_id)
        request = self._context.waiters.expect(inbound.identity)
        try:
            await self._accept_new(inbound, request)
            return await request.wait()
        finally:
            self._context.waiters.forget(inbound.identity, request)

    async def _accept_new(self, inbound: Inbound, request: Request[Reply]) -> Accepted:
        """Accept an event somebody waits for; `AlreadyAnswered` where that would be in vain."""
        accepted = await self._accept(inbound)
        if accepted.duplicate and await self.answered(accepted.receipt) and not request.answered:
            raise AlreadyAnswered(f"event {inbound.event_id!r} had its turn before")
        return accepted

    def stream(
        self,
        session_key: str,
        text: str,
        *,
        source: Source | None = None,
        busy: Busy | None = None,
        event_id: str | None = None,
        interrupt_on_exit: bool = False,
    ) -> Stream:
        """Say something and hear what happens until the reply, which is the last event."""
        _refuse_itself(session_key)
        inbound = _inbound(session_key, text, source, None, busy, event_id)
        stop = self._interrupt_turn_of if interrupt_on_exit else None
        return Stream(inbound, self._accept_new, self._context.bus, self._context.waiters, stop)

    # Verbs

    async def new_session(self, session_key: str, title: str | None = None) -> Route:
        """End the conversation and begin another; its row comes with the first message."""
        return await self._request(session_key, lambda actor: actor.verbs.new_session(title))

    async def switch(self, session_key: str, target: str) -> Route:
        """Go on with another session, given by id, unique prefix or title."""
        return await self._request(session_key, lambda actor: actor.verbs.switch(target))

    async def close(self, session_key: str, *, reason: str = "closed") -> str | None:
        """Finalize and end the current session; says which."""
        return await self._request(session_key, lambda actor: actor.verbs.close(reason))

    async def branch(self, session_key: str, title: str | None = None) -> str:
        """Go on in a copy of the conversation; returns its id."""
        return await self._request(session_key, lambda actor: actor.verbs.branch(title))

    async def compress(
        self, session_key: str, focus: str | None = None, *, keep_exchanges: int | None = None
    ) -> CompressionResult:
        """Sum up the older part of the conversation now."""
        rotation_id = uuid4().hex
        return await self._request(
            session_key,
            lambda actor: actor.answering.room.compress(
                rotation_id, focus=focus, keep_exchanges=keep_exchanges
            ),
        )

    async def undo(
        self, session_key: str, exchanges: int = 1, *, source: Source | None = None
    ) -> Reply:
        """Take back the last messages and their answers."""
        return await self.ask(session_key, f"/undo {exchanges}", source=source)

    async def retry(self, session_key: str, *, source: Source | None = None) -> Reply:
        """Answer the last message again."""
        return await self.ask(session_key, "/retry", source=source)

    async def set_title(self, session_key: str, title: str) -> None:
        """Give the conversation a title; it waits where there is no session row yet."""
        await self._request(session_key, lambda actor: actor.verbs.set_title(title))

    async def steer(self, session_key: str, text: str, *, source: Source | None = None) -> Receipt:
        """Say something into the running answer; without one it is a message like others."""
        return await self.submit(_inbound(session_key, text, source, None, "steer", None))

    async def interrupt(self, session_key: str) -> bool:
        """Stop the running turn; what it has said so far is kept. False where none runs."""
        await trio.lowlevel.checkpoint()
        actor = self._supervisor.find(session_key)
        return actor is not None and actor.answering.interrupt()

    async def _interrupt_turn_of(self, session_key: str, inbox_id: int) -> bool:
        """Stop the running turn if it is the one of this message."""
        actor = self._supervisor.find(session_key)
        turn = None if actor is None else actor.answering.turn
        mine = turn is not None and any(mail.inbox_id == inbox_id for mail in turn.mails)
        return mine and await self.interrupt(session_key)

    async def adopt(self, session_key: str, snapshot: Snapshot) -> None:
        """Use an agent that the host has built."""
        await self._request(session_key, lambda actor: actor.verbs.adopt(snapshot))

    async def status(self, session_key: str) -> Status:
        """How a conversation is doing; also while a turn runs."""
        return await self._supervisor.actor(session_key).status()

    async def history(
        self, session_key: str, *, include_rewound: bool = False
    ) -> list[StoredMessage]:
        """The transcript of the current session, as it is stored."""
        route = await self._context.store.get_route(session_key)
        if route is None or await self._context.store.get_session(route.session_id) is None:
            return []
        return await self._context.store.get_messages(
            route.session_id, include_rewound=include_rewound
        )

    async def sessions(
        self, session_key: str | None, *, limit: int = 20, offset: int = 0
    ) -> list[SessionSummary]:
        """The conversations of a key, latest activity first; those of all for an operator: None."""
        return await self._context.store.list_sessions(
            session_key=session_key, limit=limit, offset=offset
        )

    async def search(
        self, session_key: str, words: str, *, role: str | None = None, limit: int = 20
    ) -> list[SearchHit]:
        """Messages with these words in the conversations of a key, and in no others; best first."""
        return await self._context.store.search_messages(
            words, session_key=session_key, role=role, limit=limit
        )

    # For an operator, who sees the conversations of all keys

    async def find(self, target: str) -> SessionMatch | None:
        """The conversation that an id, a unique prefix or a title means, at its tip."""
        return await self._context.store.find(target)

    async def transcript(self, session_id: str) -> list[StoredMessage]:
        """The rows of any session, as they are stored."""
        return await self._context.store.get_messages(session_id)

    async def delete(self, session_id: str) -> int:
        """Delete a conversation, all its compressed parts too; returns how many messages.

        A key that led there begins a new session; a turn still running on it is discarded.
        """
        found = await self._context.store.find(session_id)
        if found is None or found.session is None or session_id not in found.lineage:
            raise UnknownSession(f"there is no session {session_id!r}")
        # The tip last: where this is cut short, what is left can still be found and deleted.
        return sum([await self._context.store.delete_session(each) for each in found.lineage])

    async def branch_off(self, session_key: str, other_key: str, title: str | None = None) -> str:
        """Lead another key to a copy of the conversation; returns its id. This one stays."""
        return await self._request(
            session_key, lambda actor: actor.verbs.branch_off(other_key, title)
        )

    async def rewind(self, session_key: str, exchanges: int = 1) -> int:
        """`undo` without a word: take back, and say how many rows that were."""
        return await self._request(session_key, lambda actor: actor.verbs.take_back(exchanges))

    async def title(self, session_key: str, title: str | None = None) -> Title:
        """The title, which is set first where one is given. It does not wait for a running turn."""
        if self._supervisor.draining:
            raise Draining("the runtime is ending")
        verbs = self._supervisor.actor(session_key).verbs
        if title is not None:
            await verbs.set_title(title)
        return await verbs.settle_title()

    async def answered(self, receipt: Receipt) -> bool:
        """Whether a message had its turn, or was refused: nothing more will be told of it."""
        rows = await self._context.store.open_inbox(
            receipt.session_key, after=receipt.inbox_id - 1, limit=1
        )
        return not rows or rows[0].inbox_id != receipt.inbox_id

    def running_turns(self) -> dict[str, RunningTurnInfo]:
        """The turns that run now, by session_key."""
        turns = {actor.key: actor.answering.turn for actor in self._supervisor.actors}
        return {
            key: RunningTurnInfo(turn.turn_id, turn.said)
            for key, turn in turns.items()
            if turn is not None
        }

    def events(
        self,
        session_key: str | None = None,
        *,
        call: EventCallback | None = None,
        pieces: bool = True,
    ) -> Subscription:
        """Hear what happens from now on, to one conversation or to all; use it in a `with`.

        A function `call` is called with each event as it happens, so that none waits or is lost; it
        must be quick, and must not raise. Without `pieces`, answers are not heard while they are
        being given.
        """
        return self._context.bus.listen(session_key, call, pieces=pieces)

    async def recall(self, name: str) -> str | None:
        """What an adapter has asked to remember."""
        return await self._context.store.get_meta(f"adapter:{name}")

    async def remember(self, name: str, value: str) -> None:
        """Keep a small thing that an adapter must not forget; on disk when this returns."""
        await self._context.store.set_meta(f"adapter:{name}", value)

    async def wait_hooks(self) -> None:
        """Wait until the hooks have heard of every boundary there is."""
        if inside_hook():
            raise HermesError("a hook cannot wait for the hooks: it would wait for itself")
        await self._context.store.wait_hooks()

    def snapshot(self, session_key: str) -> Snapshot | None:
        """The cached agent of a conversation and what is known of it."""
        actor = self._supervisor.find(session_key)
        return None if actor is None else actor.cache.snapshot

    def statistics(self) -> RuntimeStatistics:
        """How the runtime is doing."""
        actors, counts = self._supervisor.actors, self._context.counts
        return RuntimeStatistics(
            actors=len(actors),
            agents=sum(actor.cache.has_agent for actor in actors),
            transcript_bytes=sum(actor.cache.size for actor in actors),
            builds=Counter(self._context.builds),
            draining=self._supervisor.draining,
            running=sum(actor.answering.turn is not None for actor in actors),
            reuses=counts.reuses,
            turns=Counter(counts.turns),
            errors=Counter(counts.errors),
            last_error=counts.last_error,
            spending=counts.spending,
            commits=counts.latency(),
        )

    async def facts(self) -> StoreStats:
        """What the store says of itself: what waits, what was given up, what this day has cost."""
        return await self._context.store.facts()

    def passivate(self) -> None:
        """End idle actors and keep the bounds now; the runtime does so by itself as well."""
        self._supervisor.passivate()

    async def drain(self, seconds: float | None = None) -> None:
        """Take no new work, let what was accepted end, stop what does not; then tell the hooks."""
        await self._supervisor.drain(seconds)

    async def _request(self, session_key: str, verb: Callable[[SessionActor], Awaitable[R]]) -> R:
        if self._supervisor.draining:
            raise Draining("the runtime is ending")
        _refuse_itself(session_key)
        if self._supervisor.rests(session_key):
            raise Overloaded(f"{session_key} rests after failures; try again in a minute")
        actor = self._supervisor.actor(session_key)
        return await actor.request(lambda: verb(actor))


def _refuse_itself(session_key: str) -> None:
    if inside_turn_of(session_key):
        raise HermesError("a turn cannot ask its own conversation: it would wait for itself")


def _inbound(
    session_key: str,
    text: str,
    source: Source | None,
    parts: Sequence[JsonObject] | None,
    busy: Busy | None,
    event_id: str | None,
) -> Inbound:
    for name, value in (("session_key", session_key), ("text", text), ("event_id", event_id or "")):
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a text, not {type(value).__name__}")  # noqa: TRY004
    return Inbound(
        session_key,
        event_id or uuid4().hex,
        text,
        source or Source(),
        command=parse(text) is not None,
        parts=None if parts is None else tuple(parts),
        busy=busy,
    )


@asynccontextmanager
async def running(  # noqa: PLR0913 - the parts of a runtime
    store: Store,
    *,
    build: Build,
    describe: Describe,
    config: Config,
    compressor: Compressor | None = None,
    titler: Titler | None = None,
    adapters: Iterable[Adapter] = (),
    admission: AccessPolicy | None = None,
    redact: Redact | None = None,
    wall: Callable[[], float] = time.time,
    guard: RebuildPolicy = guard,
) -> AsyncIterator[Runtime]:
    """Actors on a store, around a block of the caller's; leaving it drains.

    Without an `admission` the host is its own doorkeeper, and everybody it speaks for is admitted.
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as beside:
            sender = Dispatcher(beside, adapters, store, redact)
            compression = SessionCompressor(
                store, compressor, config.compression, wall, redact or str
            )
            context = RuntimeContext(
                store=store,
                config=config,
                build=build,
                describe=describe,
                compression=compression,
                nursery=beside,
                admission=None if admission is None else Admission(store, admission),
                wall=wall,
                guard=guard,
                redact=redact,
            )
            if titler is not None:
                context.titling = AutoTitler(beside, store, titler, context.publish, redact or str)
            supervisor = Supervisor(context, sender)
            runtime = Runtime(context, supervisor)
            store.deliver, store.send = supervisor.deliver, sender.offer
            beside.start_soon(sender.mark)
            beside.start_soon(supervisor.look_after)
            try:
                await beside.start(supervisor.act)
                try:
                    yield runtime
                except BaseException as error:  # noqa: BLE001 - raised below, not in a group
                    raised = error
                # Where the block failed or was cancelled, without waiting for anybody.
                await runtime.drain(None if raised is None else 0)
            finally:
                context.end()
            beside.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise plain(group) from raised
    if raised is not None:
        raise raised
