"""The actors of a runtime: started by their first message, ended when idle, replaced on failure."""

from __future__ import annotations

import contextvars
import functools
import logging
from collections import deque
from collections.abc import Collection, Iterable

import trio

from hermes.actors.cluster.recovery import Recovery
from hermes.actors.cluster.served import run_while_served
from hermes.actors.context import RuntimeContext
from hermes.actors.delivery.dispatcher import Dispatcher
from hermes.actors.kernel.mailbox import copy_of
from hermes.actors.remote.turn import RemoteTurn
from hermes.actors.session.actor import SessionActor
from hermes.actors.session.ephemeral import EphemeralActor
from hermes.actors.session.retries import finalize, notify_of_pause, retry, settle
from hermes.actors.session.running_turn import RunningTurn
from hermes.background import cancel, release, set_event, start_soon
from hermes.errors import ActorStopped, Draining, HermesError, StoreFailed
from hermes.forks import FORKED, watch_forks
from hermes.messages import Accepted, Claim
from hermes.protocols import Store
from hermes.protocols.cluster import HOOKS
from hermes.session_keys import is_ephemeral_key, require_encodable
from hermes.user_code import contained, leaf, loggable
from hermes.validation import is_duration

log: logging.Logger = logging.getLogger(__name__)

MAX_FAILURES = 3
FAILURE_WINDOW = 60.0
TASK_NAME = "hermes session"
MAINTENANCE_INTERVAL = 30.0
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
        self._recovery = Recovery(context, self)
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

    def turn(self, session_key: str) -> RunningTurn | RemoteTurn | None:
        """Return the latest turn of a conversation, as far as this node has heard of it."""
        actor, peers = self._actors.get(session_key), self._context.peers
        if actor is not None:
            return actor.runner.latest
        return None if peers is None else peers.turn(session_key)

    def deliver(self, accepted: Accepted) -> None:
        """Hand an accepted message to its actor."""
        key = accepted.receipt.session_key
        if not self._context.store.cluster.serves(accepted):
            return
        if key not in self.quarantined and not self._ended.is_set():  # else it stays in the store
            self.actor(key, accepted.claim).deliver(accepted)

    def actor(self, session_key: str, claim: Claim | None = None) -> SessionActor:
        """Return the actor of this key, and start it if there is none.

        In a cluster, one is started only under a `claim`, without which this raises `NotOwner`. An
        actor of an earlier claim is replaced.
        """
        actor = self._actors.get(session_key)
        if actor is not None and claim is not None and actor.claim != claim:
            self.lose(session_key, actor.claim)
        actor = self._actors.pop(session_key, None) or self._start(session_key, claim)
        self._actors[session_key] = actor  # at the end: the least recently used come first
        actor.last_used = trio.current_time()
        return actor

    def lose(self, session_key: str, claim: Claim | None) -> None:
        """End the actor that runs under this claim: another node serves its conversation."""
        actor = self._actors.get(session_key)
        if actor is not None and actor.claim == claim:
            self._forget(actor)
            actor.lose()

    def lose_all(self) -> None:
        """End all actors quietly: this node was declared dead."""
        for actor in list(self._actors.values()):
            self.lose(actor.key, actor.claim)

    def _start(self, session_key: str, claim: Claim | None) -> SessionActor:
        if self._ended.is_set():
            raise self.refusal()
        require_encodable(session_key)
        kind = EphemeralActor if is_ephemeral_key(session_key) else SessionActor
        lose = functools.partial(self.lose, session_key, claim)
        actor = kind(session_key, self._context, self._context.store.held(claim, lose))
        actor.claim = claim
        assert self._nursery is not None
        start = functools.partial(start_soon, self._nursery, self._supervise, actor, name=TASK_NAME)
        self._task_context.copy().run(start)
        if claim is not None and self._context.peers is not None:
            self._actors[session_key] = actor
            self._context.peers.serve(session_key, claim.fence)
        return actor

    async def _supervise(self, actor: SessionActor) -> None:
        """Run an actor. If it fails, its open messages start a new one."""
        caught = contained(StoreFailed)
        try:
            with caught:
                await run_while_served(actor)
            if (
                caught.error is not None and not actor.lost
            ):  # the one place where the failure of a session ends
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
            if actor.claim is not None and self._context.peers is not None:
                self._context.peers.leave(actor.key, actor.inbox.known)

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
                await notify_of_pause(self._context, actor.key)
                await trio.sleep(pause)
            finally:
                self.quarantined.discard(actor.key)
        if not self.draining:
            self.actor(actor.key, actor.claim).wake()

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
        before = now - self._context.config.idle_timeout
        self._end_idle([actor for actor in self._actors.values() if actor.last_used <= before])

    def balance(self) -> None:
        """End idle actors that run on a loaded node of a cluster: other nodes shall serve them."""
        idle = [actor.key for actor in self._actors.values() if actor.idle]
        away = self._context.store.cluster.balance(len(self._actors), idle)
        self._end_idle([self._actors[key] for key in away])

    def end_idle(self) -> None:
        """End all idle actors, and give up their conversations."""
        self._end_idle(list(self._actors.values()))

    def _end_idle(self, actors: Iterable[SessionActor]) -> None:
        """End those of the actors that are idle, and give up their conversations."""
        ended = [actor for actor in actors if actor.idle]
        for actor in ended:
            self._forget(actor)  # no checkpoint since it was seen to be idle
            actor.inbox.mailbox.close()
        self._context.store.cluster.release_idle([each.claim for each in ended if each.claim])

    # Start and end

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Hold the actors until they are ended."""
        try:
            watching = self._context.store.cluster.watch(self.lose_all)
            with watching, contained(Exception) as caught:
                await self._context.compressor.begin()
                await self._dispatcher.recover()
                async with trio.open_nursery() as self._nursery:
                    start_soon(self._nursery, self._recovery.run)
                    task_status.started()
                    await trio.sleep_forever()
            if not self.draining:  # a `Cancelled` that no scope asked for was taken for an end
                raise ActorStopped("the task of all conversations has ended") from caught.error
        finally:
            set_event(self._ended)

    async def wait_recovered(self) -> None:
        """Wait until the conversations of an earlier process have been woken."""
        await self._recovery.finished.wait()

    async def wait_sent(self) -> None:
        """Wait until all replies have been sent."""
        await self._dispatcher.wait_sent()

    async def drain(self, seconds: float | None = None) -> None:
        """Accept nothing new, let accepted work finish, stop the rest; then run the hooks.

        What is accepted but not finished stays in the store for the next start. Calls that wait
        for its reply raise an error, and subscriptions end. Of several drains at once, one does the
        work for all, within the time of the first; if it is cancelled, another one goes on.
        """
        if seconds is not None and not is_duration(seconds):
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
        """Wait until no conversation has anything to do.

        If other nodes go on, they get the platforms, and each conversation once it is idle.
        """
        await self._recovery.finished.wait()
        cluster = self._context.store.cluster
        if cluster.others:
            await self._dispatcher.hand_over(self._context.config.close_timeout)
        await cluster.start_draining()
        while busy := [actor for actor in self._actors.values() if not actor.idle]:
            if cluster.others:
                self.end_idle()
            await busy[0].wait_idle()
        if self._context.peers is not None:
            await self._context.peers.wait_answered()

    def hurry(self) -> None:
        """End the time of drains for turns: the block has failed or was cancelled."""
        self._drain_deadline = trio.current_time()
        if self._patience is not None:
            self._patience.deadline = self._drain_deadline

    async def _finish(self) -> None:
        """Wait for the hooks, whose time starts now, then end subscriptions."""
        config, cluster = self._context.config, self._context.store.cluster
        if cluster.holds(HOOKS) or not cluster.others:
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
        owned = [actor.key for actor in self._actors.values() if actor.claim is not None]
        keys = {actor.key for actor in self._actors.values() if actor.has_session}
        cancel(self._nursery.cancel_scope)
        await self._ended.wait()
        keys |= self._cancelled
        attempts, self._attempts, self._cancelled = self._attempts, {}, set()
        store = self._context.store
        with trio.move_on_after(self._context.config.close_timeout):
            if not store.cluster.others:  # else another node goes on, and nothing ends
                await finalize(self._context, sorted(keys))  # in the same order in every process
            if attempts:  # afterwards: `finalize` looks at the attempts
                restore = functools.partial(store.restore_attempts, attempts)
                await retry("cancelled turns still count as attempts", restore)
            hand_over = functools.partial(store.cluster.hand_over, sorted(owned))
            await retry("conversations are not handed over yet", hand_over)
            await self._dispatcher.flush()

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
            raise copy_of(error)

    def refusal(self) -> Exception:
        """Return the error for requests that come while the runtime drains, or later."""
        error = self._end_error or self._context.store.failure
        if error is None and self._drained:
            return ActorStopped(ENDED)
        return copy_of(error or Draining("the runtime is ending and accepts no new work"))

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
            raise copy_of(failure)
