"""The actors of a runtime: started by their first message, ended when idle, replaced on failure."""

from __future__ import annotations

import contextvars
import functools
import logging
from collections import deque
from collections.abc import Collection

import trio

from hermes.actors.context import RuntimeContext, outbound
from hermes.actors.delivery.dispatcher import Dispatcher
from hermes.actors.session.actor import SessionActor
from hermes.actors.session.running_turn import Mail
from hermes.errors import HermesError, StoreFailed
from hermes.messages import Delivery, InboxReply

log = logging.getLogger(__name__)

FAILURES = 3
FAILURE_SECONDS = 60.0
RESTING = (
    "Something in here failed several times, so this conversation rests for a moment. "
    "Your messages are kept and will be answered."
)
FINALIZE_AGAIN = 0.5
PAGE = 1000
TASK = "hermes session"
LOOK_SECONDS = 30.0


class Supervisor:
    """One actor per session_key, in one nursery; the failure of one harms no other."""

    def __init__(self, context: RuntimeContext, sender: Dispatcher) -> None:
        self._context = context
        self._sender = sender
        self._actors: dict[str, SessionActor] = {}
        self._active: dict[str, SessionActor] = {}
        """Actors that were at work when everything was cancelled."""
        self._failures: dict[str, deque[float]] = {}
        self._resting: set[str] = set()
        self._task_context = contextvars.copy_context()
        self._acting: trio.Nursery | None = None
        self._recovered = trio.Event()
        self._ended = trio.Event()
        self.draining = False

    @property
    def actors(self) -> Collection[SessionActor]:
        """All of them, the least used first."""
        return self._actors.values()

    def find(self, session_key: str) -> SessionActor | None:
        """The actor of this key, if there is one now."""
        return self._actors.get(session_key)

    def rests(self, session_key: str) -> bool:
        """Whether its actor has failed too often, and is not started for a while."""
        return session_key in self._resting

    def deliver(self, delivery: Delivery) -> None:
        """Hand an accepted message to its actor."""
        if not self.rests(delivery.receipt.session_key):  # else it will be found in the store
            self.actor(delivery.receipt.session_key).deliver(delivery)

    def actor(self, session_key: str) -> SessionActor:
        """The actor of this key, started where there is none."""
        actor = self._actors.pop(session_key, None)
        if actor is None:
            if self._ended.is_set():
                raise self._context.stop_error()
            actor = SessionActor(session_key, self._context)
            assert self._acting is not None
            # Not in the caller's context: it may be inside of another conversation.
            start = functools.partial(self._acting.start_soon, name=TASK)
            self._task_context.copy().run(start, self._supervise, actor)
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
            pause = self._context.config.quarantine_time
            log.error("%s failed %d times and rests for %g s", actor.key, FAILURES, pause)
            self._resting.add(actor.key)
            try:
                await self._apologize(actor.key)
                await trio.sleep(pause)
            finally:
                self._resting.discard(actor.key)
        if not self.draining:
            self.actor(actor.key).wake()

    async def _apologize(self, session_key: str) -> None:
        """Tell the user that the conversation rests; best effort, since the store may be ill."""
        try:
            rows = await self._context.store.open_inbox(session_key, limit=1)
            for row in rows:
                mail = Mail(row.inbox_id, row.inbound)
                said = outbound(mail, "", RESTING, "notice")
                answer = InboxReply(session_key=session_key, inbox_ids=(), outbox=said)
                await self._context.store.answer(answer)
        except StoreFailed:
            raise
        except Exception:  # whatever ails the conversation may ail this too
            log.exception("%s could not be told that it rests", session_key)

    async def look_after(self) -> None:
        """End idle actors and keep the bounds, for ever."""
        seconds = min(LOOK_SECONDS, max(self._context.config.idle_timeout / 4, 0.05))
        while True:
            await trio.sleep(seconds)
            self.passivate()

    def passivate(self) -> None:
        """End what was idle for too long, then what exceeds a bound, least used first."""
        config = self._context.config
        long_ago = trio.current_time() - config.idle_timeout
        agents = sum(actor.cache.has_agent for actor in self._actors.values())
        size = sum(actor.cache.size for actor in self._actors.values())
        self._failures = {
            key: times
            for key, times in self._failures.items()
            if times[-1] > trio.current_time() - FAILURE_SECONDS
        }
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
                await self._context.compression.begin()
                await self._sender.recover()
                self._acting.start_soon(self._recover)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._ended.set()

    async def _recover(self) -> None:
        """Wake the conversations that an earlier process left unfinished; nobody waits for it."""
        after = 0
        while found := await self._context.store.waiting_keys(after, limit=PAGE):
            for key, _ in found:
                self.actor(key).wake()
            if len(found) < PAGE:
                break
            after = found[-1][1]
        self._recovered.set()

    async def drain(self, seconds: float | None = None) -> None:
        """Take no new work, let what was accepted end, stop what does not; then tell the hooks.

        What was accepted and is not done stays in the store for the next start.
        """
        self.draining = True
        wait = self._context.config.drain_timeout if seconds is None else seconds
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
            await self._sender.wait_sent(give_up)
            await self._context.store.wait_hooks()
        with trio.move_on_after(self._context.config.close_timeout, shield=True):
            await self._sender.flush()

    async def _end(self) -> None:
        """End the actors, then let hooks finalize their sessions; no session is ended by it."""
        assert self._acting is not None
        active = {**self._actors}
        self._acting.cancel_scope.cancel()
        await self._ended.wait()
        active |= self._active
        self._active = {}
        with trio.move_on_after(self._context.config.close_timeout):
            async with trio.open_nursery() as nursery:
                for actor in active.values():
                    if actor.has_session:
                        nursery.start_soon(self._finalize, actor.key)
            await self._sender.flush()

    async def _finalize(self, session_key: str) -> None:
        while True:
            try:
                await self._context.store.finalize(session_key, reason="shutdown")
            except StoreFailed:
                raise
            except HermesError as error:
                log.warning("%s is not finalized yet: %s", session_key, error)
                await trio.sleep(FINALIZE_AGAIN)
            else:
                return
