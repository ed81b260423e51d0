"""The actors of a runtime: started by their first message, ended when idle, replaced on failure."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections import deque
from collections.abc import Collection

import trio

from hermes.actors.context import RuntimeContext
from hermes.actors.delivery.dispatcher import Dispatcher
from hermes.actors.session.actor import SessionActor
from hermes.actors.session.ephemeral import EphemeralActor
from hermes.actors.session.retries import retry, settle
from hermes.background import cancel, release, set_event, start_soon
from hermes.errors import (
    ActorStopped,
    Draining,
    HermesError,
    Overloaded,
    StoreBusy,
    StoreFailed,
    StoreFull,
    actionable,
)
from hermes.forks import FORKED, watch_forks
from hermes.messages import Accepted, InboxReply
from hermes.outbound import reply_rows
from hermes.protocols import Store
from hermes.session_keys import is_ephemeral_key, require_encodable
from hermes.user_code import contained, leaf, loggable

log: logging.Logger = logging.getLogger(__name__)

MAX_FAILURES = 3
FAILURE_WINDOW = 60.0
PAGE = 1000
TASK_NAME = "hermes session"
MAINTENANCE_INTERVAL = 30.0
WATCH_INTERVAL = 1.0
ENDED = "the runtime has ended"


class Supervisor:
    """One actor per session_key, in one nursery. The failure of one affects no other."""

    def __init__(self, context: RuntimeContext, dispatcher: Dispatcher) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._actors: dict[str, SessionActor] = {}
        self._cancelled: set[str] = set()
        """Keys whose actors had a session when everything was cancelled."""
        self._attempts: dict[int, int] = {}
        """Earlier attempts of the messages that were open then."""
        self._failures: dict[str, deque[float]] = {}
        self.quarantined: set[str] = set()
        """Keys whose actor failed too often and is not started for a while."""
        # Actors do not run in the context of their first caller: it may belong to another turn.
        self._task_context = contextvars.copy_context()
        self._nursery: trio.Nursery | None = None
        self._recovered = trio.Event()
        self._ended = trio.Event()
        self.draining: bool = False
        self._drained = False
        self._drain_lock = trio.Lock()
        """Held by the drain that does the work, for all who wait for one."""
        self._drain_deadline: float | None = None
        """Until when the drains that wait now wait for turns."""
        self._patience: trio.CancelScope | None = None
        """The scope in which a drain waits for turns."""
        self.block_error: BaseException | None = None
        """What the host's block raised."""
        self._stopped = trio.Event()
        self._failure: Exception | None = None
        self._end_error: Exception | None = None
        watch_forks(self)

    @property
    def actors(self) -> Collection[SessionActor]:
        """All actors, least recently used first."""
        return self._actors.values()

    def find(self, session_key: str) -> SessionActor | None:
        """Return the actor of this key, if there is one now."""
        return self._actors.get(session_key)

    def deliver(self, accepted: Accepted) -> None:
        """Hand an accepted message to its actor."""
        key = accepted.receipt.session_key
        if key not in self.quarantined and not self._ended.is_set():  # else it stays in the store
            self.actor(key).deliver(accepted)

    def actor(self, session_key: str) -> SessionActor:
        """Return the actor of this key, and start it if there is none."""
        actor = self._actors.pop(session_key, None) or self._start(session_key)
        self._actors[session_key] = actor  # at the end: the least recently used come first
        actor.last_used = trio.current_time()
        return actor

    def _start(self, session_key: str) -> SessionActor:
        if self._ended.is_set():
            raise self.refusal()
        require_encodable(session_key)
        kind = EphemeralActor if is_ephemeral_key(session_key) else SessionActor
        actor = kind(session_key, self._context)
        assert self._nursery is not None
        start = functools.partial(start_soon, self._nursery, self._supervise, actor, name=TASK_NAME)
        self._task_context.copy().run(start)
        return actor

    async def _supervise(self, actor: SessionActor) -> None:
        """Run an actor. If it fails, its open messages start a new one."""
        caught = contained(StoreFailed)
        try:
            with caught:
                await actor.run()
            if caught.error is not None:  # the one place where the failure of a session ends
                await self._restart(actor, caught.error)
        except trio.Cancelled:
            if actor.has_session:
                self._cancelled.add(actor.key)
            if caught.error is None:  # else the attempt has failed
                self._attempts |= actor.inbox.earlier_attempts
            raise
        finally:
            self._forget(actor)
            await actor.state.cache.aclose()  # shielded from cancellation

    def _forget(self, actor: SessionActor) -> None:
        if self._actors.get(actor.key) is actor:
            del self._actors[actor.key]

    async def _restart(self, actor: SessionActor, error: BaseException) -> None:
        """Start a new actor for the open messages; after repeated failures, only after a while."""
        log.error("the actor of %s failed", actor.key, exc_info=error)
        self._forget(actor)
        answer = functools.partial(settle, self._context, actor.inbox.known)
        await retry(f"callers of {actor.key} wait", answer)
        failures = self._failures.setdefault(actor.key, deque(maxlen=MAX_FAILURES))
        failures.append(trio.current_time())
        if len(failures) == MAX_FAILURES and failures[-1] - failures[0] < FAILURE_WINDOW:
            pause = self._context.config.quarantine_time
            log.error("%s failed %d times, paused for %g s", actor.key, MAX_FAILURES, pause)
            self.quarantined.add(actor.key)
            try:
                await self._notify_quarantine(actor.key)
                await trio.sleep(pause)
            finally:
                self.quarantined.discard(actor.key)
        if not self.draining:
            self.actor(actor.key).wake()

    async def _notify_quarantine(self, session_key: str) -> None:
        """Notify the user of the quarantine (best effort)."""
        store = self._context.store
        with contained(StoreFailed) as caught:
            for row in await store.open_inbox(session_key, limit=1):
                outbox = reply_rows(row, "", self._context.texts.paused, "notice")
                reply = InboxReply(session_key=session_key, inbox_ids=(), outbox=outbox)
                await store.answer(reply)
        if caught.error is not None:
            log.error("%s was not notified of its pause", session_key, exc_info=caught.error)

    # Idle actors

    async def run_maintenance(self) -> None:
        """Background loop: end actors that are idle for too long."""
        quarter = self._context.config.idle_timeout / 4
        interval = min(MAINTENANCE_INTERVAL, max(quarter, 0.05))
        while True:
            await trio.sleep(interval)
            self.passivate()

    def passivate(self) -> None:
        """End actors that were idle for too long."""
        now = trio.current_time()
        self._failures = {
            key: times for key, times in self._failures.items() if times[-1] > now - FAILURE_WINDOW
        }
        for actor in list(self._actors.values()):
            if actor.idle and actor.last_used <= now - self._context.config.idle_timeout:
                self._forget(actor)  # no checkpoint since it was seen to be idle
                actor.inbox.mailbox.close()

    # Start and end

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Hold the actors until they are ended."""
        try:
            with contained(Exception) as caught:
                await self._context.compressor.begin()
                await self._dispatcher.recover()
                async with trio.open_nursery() as self._nursery:
                    start_soon(self._nursery, self._recover)
                    task_status.started()
                    await trio.sleep_forever()
            if not self.draining:  # a `Cancelled` that no scope asked for was taken for an end
                raise ActorStopped("the task of all conversations has ended") from caught.error
        finally:
            set_event(self._ended)

    async def _recover(self) -> None:
        """Wake conversations that are unfinished, then watch for messages of other processes."""
        after = await self._wake_after(0)
        set_event(self._recovered)
        while not self.draining:
            await trio.sleep(WATCH_INTERVAL)
            try:
                after = await self._wake_after(after)
            except (StoreBusy, StoreFull, Overloaded) as error:
                log.debug("the inbox was not read, and will be: %s", error)

    async def _wake_after(self, after: int) -> int:
        """Hand over messages after this id that are new; return the id of the last one."""
        last = after
        while found := await self._context.store.waiting_keys(last, limit=PAGE):
            before, last = last, found[-1][1]
            if any(self._is_new(key, inbox_id) for key, inbox_id in found):
                with contextlib.suppress(StoreBusy, StoreFull, Overloaded):
                    # A write: all that was accepted before it is delivered then.
                    await self._context.store.start_inbox(())
            for key in dict.fromkeys(key for key, inbox_id in found if self._is_new(key, inbox_id)):
                await self._hand_over(key, before)
        return last

    async def _hand_over(self, session_key: str, after: int) -> None:
        """Wake an idle conversation; one that is busy takes its messages after this id now."""
        actor = self._actors.get(session_key) if self._recovered.is_set() else None
        if actor is not None and await actor.fetch(after):
            return
        if session_key not in self.quarantined:
            self.actor(session_key).wake()

    def _is_new(self, session_key: str, inbox_id: int) -> bool:
        """Whether a message must be fetched: its actor has not seen it, and is not paused."""
        actor = self._actors.get(session_key)
        seen = actor is not None and actor.inbox.knows(inbox_id)
        return not seen and session_key not in self.quarantined

    async def wait_recovered(self) -> None:
        """Wait until the conversations of an earlier process have been woken."""
        await self._recovered.wait()

    async def wait_sent(self) -> None:
        """Wait until all replies have been sent."""
        await self._dispatcher.wait_sent()

    async def drain(self, seconds: float | None = None) -> None:
        """Accept nothing new, let accepted work finish, stop the rest; then run the hooks.

        What is accepted but not finished stays in the store for the next start. Calls that wait
        for its reply raise an error, and subscriptions end. Of several drains at once, one does the
        work for all, within the time of the first; if it is cancelled, another one goes on.
        """
        if seconds is not None and not _is_duration(seconds):
            raise ValueError(f"a drain takes a number of seconds from 0 on, not {seconds!r}")
        self.draining = True
        if self._drain_deadline is None:
            wait = self._context.config.drain_timeout if seconds is None else seconds
            self._drain_deadline = trio.current_time() + wait
        try:
            self._drain_lock.acquire_nowait()  # without a checkpoint: actors end in any case
        except trio.WouldBlock:
            await self._drain_lock.acquire()
        try:
            if not self._drained:
                await self._drain(self._drain_deadline)
        finally:
            release(self._drain_lock)
            if not self._drain_lock.locked():  # nobody waits who has taken over
                self._drain_deadline = None

    async def _drain(self, deadline: float) -> None:
        others = False
        try:
            with trio.CancelScope(deadline=deadline) as self._patience:
                await self._wait_idle()
        except trio.Cancelled:
            others = self._drain_lock.statistics().tasks_waiting > 0
            raise
        finally:
            if not others:  # else the next one goes on
                with trio.CancelScope(shield=True):
                    await self._end_actors()
        deadline = self._patience.deadline
        with trio.move_on_at(deadline):
            await self._dispatcher.wait_sent(deadline)
        await self._finish()

    async def _wait_idle(self) -> None:
        """Wait until no conversation has anything to do."""
        await self._recovered.wait()
        while busy := [actor for actor in self._actors.values() if not actor.idle]:
            await busy[0].wait_idle()

    def hurry(self) -> None:
        """End the time of drains for turns: the block has failed or was cancelled."""
        self._drain_deadline = trio.current_time()
        if self._patience is not None:
            self._patience.deadline = self._drain_deadline

    async def _finish(self) -> None:
        """Wait for the hooks, whose time starts now, then end subscriptions."""
        config = self._context.config
        with trio.move_on_after(config.hook_drain_timeout):
            await self._context.store.wait_hooks()
        with trio.move_on_after(config.close_timeout, shield=True):
            await self._context.questions.try_flush()
            await self._dispatcher.flush()
        self._context.bus.close(self._context.stop_error())
        self._drained = True
        set_event(self._stopped)

    async def _end_actors(self) -> None:
        """End the actors, then have their sessions finalized; no session is ended by that.

        The turns that this cancels are not counted as attempts: only crashes are.
        """
        assert self._nursery is not None
        keys = {actor.key for actor in self._actors.values() if actor.has_session}
        cancel(self._nursery.cancel_scope)
        await self._ended.wait()
        keys |= self._cancelled
        attempts, self._attempts, self._cancelled = self._attempts, {}, set()
        store = self._context.store
        with trio.move_on_after(self._context.config.close_timeout):
            await self._finalize(sorted(keys))  # in the same order in every process
            if attempts:  # afterwards: `finalize` looks at the attempts
                restore = functools.partial(store.restore_attempts, attempts)
                await retry("cancelled turns still count as attempts", restore)
            await self._dispatcher.flush()

    async def _finalize(self, keys: Collection[str]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                for key in keys:
                    finalize = functools.partial(
                        self._context.store.finalize, key, reason="shutdown"
                    )
                    start_soon(nursery, retry, f"{key} is not finalized yet", finalize)
        except BaseExceptionGroup as group:
            raise actionable(group) from None

    # After the end

    def end(self, error: BaseException | None) -> None:
        """Refuse everything from now on. `error` left the block, if one did."""
        failure = self._context.store.failure
        if failure is None and error is not None and error is not self.block_error:
            failed = f"the runtime failed: {loggable(leaf(error))}"
            self._failure = error if isinstance(error, HermesError) else ActorStopped(failed)
        else:
            self._failure = failure
        self._end_error = self._failure or ActorStopped(ENDED)
        set_event(self._stopped)

    def forked(self) -> None:
        """Refuse everything in a forked process."""
        self.draining = True
        self._failure = self._end_error = ActorStopped(FORKED)

    def require_running(self) -> None:
        """Raise why the runtime has ended, if it has or if its store has failed."""
        error = self._end_error or self._context.store.failure
        if error is not None:
            raise _copy(error)

    def refusal(self) -> Exception:
        """Return the error for requests that come while the runtime drains, or later."""
        error = self._end_error or self._context.store.failure
        if error is None and self._drained:
            return ActorStopped(ENDED)
        return _copy(error or Draining("the runtime is ending and accepts no new work"))

    @property
    def store(self) -> Store:
        """The store, for verbs of the host. Raises why the runtime has ended, if it has."""
        self.require_running()
        return self._context.store

    async def wait_stopped(self) -> None:
        """Wait until the runtime is drained or has ended, and raise why it failed, if it did."""
        if self._end_error is None:
            await self._stopped.wait()
        failure = self._failure or self._context.store.failure
        if failure is not None:
            raise _copy(failure)


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and value >= 0  # NaN is not


def _copy(error: Exception) -> Exception:
    """Each caller gets its own exception object: raising one extends its traceback."""
    return type(error)(*error.args)
