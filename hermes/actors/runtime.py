"""The runtime: actors by session_key, started by their first message and ended when idle."""

from __future__ import annotations

import contextvars
import functools
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

import attrs
import trio

from hermes.actors.commands import parse
from hermes.actors.compression import Compression, Outcome
from hermes.actors.house import House, outbound
from hermes.actors.listening import Subscription
from hermes.actors.mailbox import Request
from hermes.actors.sending import Sender
from hermes.actors.session import SessionActor
from hermes.actors.streaming import Stream
from hermes.actors.turn import Mail
from hermes.config import Config
from hermes.context import inside_turn_of
from hermes.errors import (
    AlreadyAnswered,
    Draining,
    HermesError,
    Overloaded,
    StoreFailed,
    plain,
)
from hermes.messages import (
    Accepted,
    Answer,
    Busy,
    Delivery,
    Inbound,
    JsonObject,
    Listed,
    OutboxRow,
    Rebuilt,
    Receipt,
    Reply,
    Route,
    Snapshot,
    Source,
    Status,
    StoredMessage,
)
from hermes.protocols import Adapter, Build, Compressor, Describe, Store

log = logging.getLogger(__name__)

R = TypeVar("R")
FAILURES = 3
RESTING = (
    "Something in here failed several times, so this conversation rests for a moment. "
    "Your messages are kept and will be answered."
)
FAILURE_SECONDS = 60.0
FINALIZE_AGAIN = 0.5
PAGE = 1000
TASK = "hermes session"
LOOK_SECONDS = 30.0


@attrs.frozen
class RuntimeStatistics:
    """How the runtime is doing."""

    actors: int
    agents: int
    transcript_bytes: int
    builds: Mapping[Rebuilt, int]
    draining: bool


class Runtime:
    """Conversations, each with an actor of its own. Every verb can be called at any time."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a runtime
        self,
        beside: trio.Nursery,
        sender: Sender,
        store: Store,
        config: Config,
        build: Build,
        describe: Describe,
        compression: Compression,
    ) -> None:
        self._house = House(
            store=store,
            config=config,
            build=build,
            describe=describe,
            compression=compression,
            nursery=beside,
            submit=self.submit,
        )
        self._sender = sender
        self._actors: dict[str, SessionActor] = {}
        self._active: dict[str, SessionActor] = {}
        """Actors that were at work when everything was cancelled."""
        self._failures: dict[str, deque[float]] = {}
        self._resting: set[str] = set()
        self._context = contextvars.copy_context()
        self._draining = False
        self._acting: trio.Nursery | None = None
        self._recovered = trio.Event()
        self._ended = trio.Event()

    # Input

    async def submit(self, inbound: Inbound) -> Receipt:
        """Accept a message: durable when this returns. The same event again, the same receipt."""
        return (await self._accept(inbound)).receipt

    async def _accept(self, inbound: Inbound) -> Accepted:
        if self._draining:
            raise Draining("the runtime is ending and takes no new messages")
        source, config = inbound.source, self._house.config
        return await self._house.store.accept(
            inbound,
            policy=config.expiry_of(source.platform, source.chat_type),
            max_open=config.max_open,
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
        request = self._house.askers.expect(inbound.identity)
        try:
            await self._accept_new(inbound, request)
            return await request.wait()
        finally:
            self._house.askers.forget(inbound.identity, request)

    async def _accept_new(self, inbound: Inbound, request: Request[Reply]) -> Accepted:
        """Accept an event somebody waits for; `AlreadyAnswered` where that would be in vain."""
        accepted = await self._accept(inbound)
        if accepted.duplicate and await self._is_closed(accepted) and not request.answered:
            raise AlreadyAnswered(f"event {inbound.event_id!r} had its turn before")
        return accepted

    async def _is_closed(self, accepted: Accepted) -> bool:
        receipt = accepted.receipt
        rows = await self._house.store.open_inbox(
            receipt.session_key, after=receipt.inbox_id - 1, limit=1
        )
        return not rows or rows[0].inbox_id != receipt.inbox_id

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
        return Stream(inbound, self._accept_new, self._house.listeners, self._house.askers, stop)

    def deliver(self, delivery: Delivery) -> None:
        """Hand an accepted message to its actor; the store calls this, in inbox order."""
        if delivery.receipt.session_key in self._resting:
            return  # it will be found in the store
        self._actor(delivery.receipt.session_key).deliver(delivery)

    def send(self, rows: Sequence[OutboxRow]) -> None:
        """Hand committed replies to their lanes; the store calls this, in commit order."""
        self._sender.offer(rows)

    # Verbs

    async def new_session(self, session_key: str, title: str | None = None) -> Route:
        """End the conversation and begin another; its row comes with the first message."""
        return await self._request(session_key, lambda actor: actor.new_session(title))

    async def switch(self, session_key: str, target: str) -> Route:
        """Go on with another session, given by id, unique prefix or title."""
        return await self._request(session_key, lambda actor: actor.switch(target))

    async def close(self, session_key: str, *, reason: str = "closed") -> str | None:
        """Finalize and end the current session; says which."""
        return await self._request(session_key, lambda actor: actor.close(reason))

    async def branch(self, session_key: str, title: str | None = None) -> str:
        """Go on in a copy of the conversation; returns its id."""
        return await self._request(session_key, lambda actor: actor.branch(title))

    async def compress(
        self, session_key: str, focus: str | None = None, *, keep_exchanges: int | None = None
    ) -> Outcome:
        """Sum up the older part of the conversation now."""
        rotation_id = uuid4().hex
        return await self._request(
            session_key,
            lambda actor: actor.answering.compress(
                rotation_id, focus=focus, keep_exchanges=keep_exchanges, forced=True
            ),
        )

    async def undo(self, session_key: str, exchanges: int = 1) -> Reply:
        """Take back the last messages and their answers."""
        return await self.ask(session_key, f"/undo {exchanges}")

    async def retry(self, session_key: str) -> Reply:
        """Answer the last message again."""
        return await self.ask(session_key, "/retry")

    async def set_title(self, session_key: str, title: str) -> None:
        """Give the conversation a title; it waits where there is no session row yet."""
        await self._request(session_key, lambda actor: actor.set_title(title))

    async def steer(self, session_key: str, text: str) -> Receipt:
        """Say something into the running answer; without one it is a message like others."""
        return await self.submit(_inbound(session_key, text, None, None, "steer", None))

    async def interrupt(self, session_key: str) -> bool:
        """Stop the running turn; what it has said so far is kept. False where none runs."""
        await trio.lowlevel.checkpoint()
        actor = self._actors.get(session_key)
        return actor is not None and actor.answering.interrupt()

    async def _interrupt_turn_of(self, session_key: str, inbox_id: int) -> bool:
        """Stop the running turn if it is the one of this message."""
        actor = self._actors.get(session_key)
        turn = None if actor is None else actor.answering.turn
        mine = turn is not None and any(mail.inbox_id == inbox_id for mail in turn.mails)
        return mine and await self.interrupt(session_key)

    async def adopt(self, session_key: str, snapshot: Snapshot) -> None:
        """Use an agent that the host has built."""
        await self._request(session_key, lambda actor: actor.adopt(snapshot))

    async def status(self, session_key: str) -> Status:
        """How a conversation is doing; also while a turn runs."""
        return await self._actor(session_key).status()

    async def history(
        self, session_key: str, *, include_rewound: bool = False
    ) -> list[StoredMessage]:
        """The transcript of the current session, as it is stored."""
        route = await self._house.store.get_route(session_key)
        if route is None or await self._house.store.get_session(route.session_id) is None:
            return []
        return await self._house.store.get_messages(
            route.session_id, include_rewound=include_rewound
        )

    async def sessions(self, session_key: str, *, limit: int = 20, offset: int = 0) -> list[Listed]:
        """The conversations of a key, latest activity first."""
        return await self._house.store.list_sessions(
            session_key=session_key, limit=limit, offset=offset
        )

    def events(self, session_key: str | None = None) -> Subscription:
        """Hear what happens from now on, to one conversation or to all; use it in a `with`."""
        return self._house.listeners.listen(session_key)

    async def wait_boundaries(self) -> None:
        """Wait until the hooks have heard of every boundary there is."""
        await self._house.store.wait_boundaries()

    def snapshot(self, session_key: str) -> Snapshot | None:
        """The cached agent of a conversation and what is known of it."""
        actor = self._actors.get(session_key)
        return None if actor is None else actor.cache.snapshot

    def statistics(self) -> RuntimeStatistics:
        """How the runtime is doing."""
        actors = self._actors.values()
        return RuntimeStatistics(
            actors=len(actors),
            agents=sum(actor.cache.has_agent for actor in actors),
            transcript_bytes=sum(actor.cache.size for actor in actors),
            builds=Counter(self._house.builds),
            draining=self._draining,
        )

    async def _request(self, session_key: str, verb: Callable[[SessionActor], Awaitable[R]]) -> R:
        if self._draining:
            raise Draining("the runtime is ending")
        _refuse_itself(session_key)
        if session_key in self._resting:
            raise Overloaded(f"{session_key} rests after failures; try again in a minute")
        actor = self._actor(session_key)
        return await actor.request(lambda: verb(actor))

    # Actors

    def _actor(self, session_key: str) -> SessionActor:
        actor = self._actors.pop(session_key, None)
        if actor is None:
            if self._ended.is_set():
                raise self._house.farewell()
            actor = SessionActor(session_key, self._house)
            assert self._acting is not None
            # Not in the caller's context: it may be inside of another conversation.
            start = functools.partial(self._acting.start_soon, name=TASK)
            self._context.copy().run(start, self._supervise, actor)
        self._actors[session_key] = actor  # last: the least used come first
        actor.last_used = trio.current_time()
        return actor

    async def _supervise(self, actor: SessionActor) -> None:
        """Run an actor; its failure harms nobody else, and its mail wakes a new one."""
        try:
            await actor.run()
        except trio.Cancelled:
            self._active[actor.key] = actor
            raise
        except StoreFailed:
            raise
        except Exception:  # the one place where a session's failure is contained
            log.exception("the actor of %s failed", actor.key)
            self._forget(actor)
            await self._start_again(actor)
        finally:
            self._forget(actor)
            with trio.CancelScope(shield=True):
                await actor.cache.aclose()

    def _forget(self, actor: SessionActor) -> None:
        if self._actors.get(actor.key) is actor:
            del self._actors[actor.key]

    async def _start_again(self, actor: SessionActor) -> None:
        """Wake a new actor for what is left; one that fails too often only after a while."""
        failures = self._failures.setdefault(actor.key, deque(maxlen=FAILURES))
        failures.append(trio.current_time())
        if len(failures) == FAILURES and failures[-1] - failures[0] < FAILURE_SECONDS:
            pause = self._house.config.quarantine_seconds
            log.error("%s failed %d times and rests for %g s", actor.key, FAILURES, pause)
            self._resting.add(actor.key)
            try:
                await self._apologize(actor.key)
                await trio.sleep(pause)
            finally:
                self._resting.discard(actor.key)
        if not self._draining:
            self._actor(actor.key).wake()

    async def _apologize(self, session_key: str) -> None:
        """Tell the user that the conversation rests; best effort, since the store may be ill."""
        try:
            rows = await self._house.store.open_inbox(session_key, limit=1)
            for row in rows:
                mail = Mail(row.inbox_id, row.inbound)
                said = outbound(mail, "", RESTING, "notice")
                answer = Answer(session_key=session_key, inbox_ids=(), outbox=said)
                await self._house.store.answer(answer)
        except StoreFailed:
            raise
        except Exception:  # whatever ails the conversation may ail this too
            log.exception("%s could not be told that it rests", session_key)

    async def look_after(self) -> None:
        """End idle actors and keep the bounds, for ever."""
        seconds = min(LOOK_SECONDS, max(self._house.config.passivate_seconds / 4, 0.05))
        while True:
            await trio.sleep(seconds)
            self.passivate()

    def passivate(self) -> None:
        """End what was idle for too long, then what exceeds a bound, least used first."""
        config = self._house.config
        long_ago = trio.current_time() - config.passivate_seconds
        agents = sum(actor.cache.has_agent for actor in self._actors.values())
        size = sum(actor.cache.size for actor in self._actors.values())
        for actor in list(self._actors.values()):
            if not actor.idle:
                continue
            if actor.last_used <= long_ago:
                agents -= actor.cache.has_agent
                size -= actor.cache.size
                self._forget(actor)  # no checkpoint since it was seen to be idle
                actor.mailbox.close()
                continue
            if agents > config.max_agents and actor.cache.has_agent:
                actor.cache.drop("evicted")
                agents -= 1
            if size > config.transcript_bytes:
                size -= actor.cache.size
                actor.cache.release()

    # Beginning and end

    async def act(self, task_status: trio.TaskStatus[None]) -> None:
        """Hold the actors, until they are ended."""
        try:
            async with trio.open_nursery() as self._acting:
                await self._sender.recover()
                self._acting.start_soon(self._recover)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._ended.set()

    def end(self) -> None:
        """Nobody will be answered or told any more."""
        self._house.askers.fail_all(self._house.farewell())
        self._house.listeners.close()

    async def _recover(self) -> None:
        """Wake the conversations that an earlier process left unfinished; nobody waits for it."""
        after = 0
        while found := await self._house.store.waiting_keys(after, limit=PAGE):
            for key, _ in found:
                self._actor(key).wake()
            if len(found) < PAGE:
                break
            after = found[-1][1]
        self._recovered.set()

    async def drain(self, seconds: float | None = None) -> None:
        """Take no new work, let what was accepted end, stop what does not; then tell the hooks.

        What was accepted and is not done stays in the store for the next start.
        """
        self._draining = True
        wait = self._house.config.drain_seconds if seconds is None else seconds
        give_up = trio.current_time() + wait
        try:
            with trio.move_on_at(give_up):
                await self._recovered.wait()
                while busy := [actor for actor in self._actors.values() if not actor.idle]:
                    await busy[0].wait_idle()
        finally:
            with trio.CancelScope(shield=True):
                await self._end()
        with trio.move_on_at(give_up):
            await self._sender.wait_sent()
            await self._house.store.wait_boundaries()
        with trio.move_on_after(self._house.config.close_seconds, shield=True):
            await self._sender.flush()

    async def _end(self) -> None:
        """End the actors, then let hooks finalize their sessions; no session is ended by it."""
        assert self._acting is not None
        active = {**self._actors}
        self._acting.cancel_scope.cancel()
        await self._ended.wait()
        active |= self._active
        self._active = {}
        with trio.move_on_after(self._house.config.close_seconds):
            async with trio.open_nursery() as nursery:
                for actor in active.values():
                    if actor.has_session:
                        nursery.start_soon(self._finalize, actor.key)
            await self._sender.flush()

    async def _finalize(self, session_key: str) -> None:
        while True:
            try:
                await self._house.store.finalize(session_key, reason="shutdown")
            except StoreFailed:
                raise
            except HermesError as error:
                log.warning("%s is not finalized yet: %s", session_key, error)
                await trio.sleep(FINALIZE_AGAIN)
            else:
                return


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
    adapters: Iterable[Adapter] = (),
    wall: Callable[[], float] = time.time,
) -> AsyncIterator[Runtime]:
    """Actors on a store, around a block of the caller's; leaving it drains."""
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as beside:
            sender = Sender(beside, adapters, store)
            compression = Compression(store, compressor, config.compression, wall)
            runtime = Runtime(beside, sender, store, config, build, describe, compression)
            store.deliver, store.send = runtime.deliver, runtime.send
            beside.start_soon(sender.mark)
            beside.start_soon(runtime.look_after)
            try:
                await beside.start(runtime.act)
                try:
                    yield runtime
                except BaseException as error:  # noqa: BLE001 - raised below, not in a group
                    raised = error
                # Where the block failed or was cancelled, without waiting for anybody.
                await runtime.drain(None if raised is None else 0)
            finally:
                runtime.end()
            beside.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise plain(group) from raised
    if raised is not None:
        raise raised
