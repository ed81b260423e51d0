"""`open_store`: the store for a runtime, every verb awaited, many committed at once."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import apsw
import trio

from hermes.errors import StoreBusy, plain
from hermes.messages import (
    Accepted,
    Approval,
    Delivery,
    ExpiryPolicy,
    Hooks,
    Inbound,
    InboxReply,
    OutboxRow,
)
from hermes.store import actor, connection, file_lock
from hermes.store.chunked import Chunked
from hermes.store.conversations import (
    boundaries,
    inbox,
    inbox_end,
    leases,
    lineage,
    listing,
    messages,
    outbox,
    rotation,
    routes,
    search,
    sessions,
    titles,
    turns,
)
from hermes.store.hooks import HOOK_TIMEOUT, HookRunner, require_hooks
from hermes.store.maintenance import cleanup, stats, transfer
from hermes.store.records import access, key_value, tool_records, usage
from hermes.store.transaction import Clock, Transaction, Work
from hermes.store.worker import OpenWorker, ThreadWorker, Worker, open_in_thread

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

Verb = Callable[Concatenate["Store", P], Awaitable[R]]


def _writes(function: Callable[Concatenate[Transaction, P], R]) -> Verb[P, R]:
    @functools.wraps(function)
    def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return self.transact(lambda tx: function(tx, *args, **kwargs))

    return verb


def _reads(function: Callable[Concatenate[Transaction, P], R]) -> Verb[P, R]:
    @functools.wraps(function)
    async def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.snapshot(lambda tx: function(tx, *args, **kwargs))

    return verb


def _browses(function: Callable[Concatenate[Transaction, P], R]) -> Verb[P, R]:
    @functools.wraps(function)
    async def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.snapshot(lambda tx: function(tx, *args, **kwargs), browse=True)

    return verb


def _alone(function: Callable[Concatenate[Transaction, P], R]) -> Verb[P, R]:
    @functools.wraps(function)
    def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return self.transact_alone(lambda tx: function(tx, *args, **kwargs))

    return verb


def _steps(function: Callable[P, Generator[Work[S], S, R]]) -> Verb[P, R]:
    @functools.wraps(function)
    async def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        steps = Chunked(function(*args, **kwargs))
        while (work := steps.next()) is not None:
            with steps.counted():
                steps.done(await self.transact(work))
        return steps.result()

    return verb


def _searches(function: Callable[Concatenate[Transaction, P], R]) -> Verb[P, R]:
    @functools.wraps(function)
    async def verb(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if await self.snapshot(search.unindexed):
            await self.index_pending()
        return await self.snapshot(lambda tx: function(tx, *args, **kwargs), browse=True)

    return verb


class Store(actor.StoreActor):
    """The verbs of `SessionStore`, awaited. Each is one transaction, on disk when it returns."""

    deliver: Callable[[Delivery], None] | None = None

    async def accept(
        self,
        inbound: Inbound,
        *,
        policy: ExpiryPolicy = inbox.NEVER,
        max_queued: int = inbox.MAX_QUEUED,
    ) -> Accepted:
        """Make an inbound message durable, and hand it to `deliver` as soon as it is.

        `deliver` hears of new messages in inbox order, whether or not the caller still waits.
        """

        return await self.transact(
            lambda tx: inbox.accept(tx, inbound, policy=policy, max_queued=max_queued),
            self._delivered,
        )

    def _delivered(self, accepted: Accepted) -> None:
        stored = accepted.inbound
        if self.deliver is not None and stored is not None:
            self.deliver(
                Delivery(accepted.receipt, stored, accepted.head, accepted.waiting, accepted.route)
            )

    async def decide_approval(
        self,
        session_key: str,
        approval_id: int | None,
        *,
        approve: bool,
        answer: InboxReply | None = None,
        then: Inbound | None = None,
        policy: ExpiryPolicy = inbox.NEVER,
    ) -> Approval | None:
        """Allow or refuse a call that waits; the message `then` is delivered like any other."""

        def decide(tx: Transaction) -> tool_records.Decided:
            return tool_records.decide(
                tx, session_key, approval_id,
                approve=approve, answer=answer, then=then, policy=policy,
            )  # fmt: skip

        def after(decided: tool_records.Decided) -> None:
            if decided.accepted is not None:
                self._delivered(decided.accepted)

        return (await self.transact(decide, after)).approval

    create_session = _writes(sessions.create_session)
    ensure_session = _writes(sessions.ensure_session)
    end_session = _writes(sessions.end_session)
    promote_to_session_reset = _writes(sessions.promote_to_session_reset)
    reopen_session = _writes(sessions.reopen_session)
    set_system_prompt = _writes(sessions.set_system_prompt)
    get_session = _reads(sessions.get_session)
    head = _reads(sessions.head)

    append_message = _writes(messages.append_message)
    append_messages = _writes(messages.append_messages)
    replace_messages = _writes(messages.replace_messages)
    rewind = _writes(messages.rewind)
    edit_message = _writes(messages.edit_message)
    get_messages = _reads(messages.get_messages)
    load = _reads(messages.load)

    set_session_title = _writes(titles.set_session_title)
    set_auto_title_if_empty = _writes(titles.set_auto_title_if_empty)
    get_next_title_in_lineage = _reads(titles.get_next_title_in_lineage)
    resolve_session_by_title = _reads(titles.resolve_session_by_title)

    resolve_session_id = _reads(lineage.resolve_session_id)
    get_compression_tip = _reads(lineage.get_compression_tip)
    get_compression_lineage = _reads(lineage.get_compression_lineage)
    get_conversation_root = _reads(lineage.get_conversation_root)

    get_route = _reads(routes.get_route)
    route_head = _reads(routes.route_head)
    find = _reads(routes.find)
    new_session = _writes(routes.new_session)
    close_session = _writes(routes.close)
    finalize = _writes(routes.finalize)
    switch = _writes(routes.switch)
    set_pending_title = _writes(routes.set_pending_title)
    apply_pending_title = _writes(routes.apply_pending_title)
    take_notice = _writes(routes.take_notice)
    sweep_expired = _writes(routes.sweep_expired)

    open_inbox = _reads(inbox.open_inbox)
    waiting_keys = _reads(inbox.waiting_keys)
    start_inbox = _writes(inbox.start_inbox)
    park_inbox = _writes(inbox_end.park_inbox)
    answer = _writes(inbox_end.close)
    commit_turn = _writes(turns.commit_turn)

    begin_once = _writes(tool_records.begin_once)
    end_once = _writes(tool_records.end_once)
    ask_approval = _writes(tool_records.ask_approval)
    take_approval = _writes(tool_records.take_approval)
    get_approval = _reads(tool_records.get_approval)
    pending_approvals = _reads(tool_records.pending_approvals)

    find_principal = _reads(access.find_principal)
    principals = _reads(access.principals)
    pairings = _reads(access.pairings)
    request_pairing = _writes(access.request_pairing)
    approve_pairing = _writes(access.approve_pairing)
    unpair = _writes(access.unpair)

    pending_outbox = _reads(outbox.pending_outbox)
    mark_sending = _writes(outbox.mark_sending)
    mark_part = _writes(outbox.mark_part)
    mark_sent = _writes(outbox.mark_sent)
    mark_unsent = _writes(outbox.mark_unsent)
    mark_unknown = _writes(outbox.mark_unknown)
    mark_dead = _writes(outbox.mark_dead)
    mark_lane_dead = _writes(outbox.mark_lane_dead)
    recover_outbox = _writes(outbox.recover_outbox)
    outbox_facts = _browses(outbox.outbox_facts)
    facts = _browses(stats.facts)

    pending_boundaries = _reads(boundaries.pending_boundaries)
    close_boundary = _writes(boundaries.close_boundary)

    rotate = _writes(rotation.rotate)
    branch = _writes(rotation.branch)
    acquire_lease = _writes(leases.acquire_lease)
    forget_runtimes = _writes(leases.forget_runtimes)
    try_acquire_compression_lock = _writes(leases.try_acquire_compression_lock)
    refresh_compression_lock = _writes(leases.refresh_compression_lock)
    release_compression_lock = _writes(leases.release_compression_lock)
    get_compression_lock_holder = _reads(leases.get_compression_lock_holder)

    update_token_counts = _writes(usage.update_token_counts)
    book = _writes(usage.book)
    get_usage = _reads(usage.get_usage)
    spent = _reads(usage.spent)
    get_meta = _reads(key_value.get_meta)
    set_meta = _writes(key_value.set_meta)

    list_sessions = _browses(listing.list_sessions)
    export_session = _browses(transfer.export_session)
    delete_session = _writes(cleanup.delete_session)
    prune_empty_ghost_sessions = _writes(cleanup.prune_empty_ghost_sessions)
    finalize_orphaned_compression_sessions = _writes(cleanup.finalize_orphaned_compression_sessions)
    forget_closed = _writes(cleanup.forget_closed)
    integrity_check = _browses(cleanup.integrity_check)
    check_search = _alone(search.check_search)
    rebuild_search = _alone(search.rebuild_search)
    index_pending = _steps(search.index_pending)
    import_sessions = _steps(transfer.import_sessions)
    prune_sessions = _steps(cleanup.prune_sessions)
    search_messages = _searches(search.search_messages)

    async def vacuum(self) -> None:
        """Give free space back to the disk; nothing else is written meanwhile."""
        await self.run_alone(connection.vacuum)

    async def backup(self, target: str | os.PathLike[str]) -> Path:
        """Copy the database while it is in use; the copy appears whole or not at all."""
        return await self.run_beside(lambda db: connection.backup(db, Path(target)))


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_store(  # noqa: PLR0913
    path: str | os.PathLike[str],
    *,
    deliver: Callable[[Delivery], None] | None = None,
    send: Callable[[Sequence[OutboxRow]], None] | None = None,
    hooks: Hooks | None = None,
    hook_timeout: float = HOOK_TIMEOUT,
    sweep_interval: float = actor.SWEEP_INTERVAL,
    clock: Clock | None = None,
    open_worker: OpenWorker = open_in_thread,
    vfs: str | None = None,
) -> AsyncIterator[Store]:
    """Open the store as the one runtime of its file; leaving the block commits what still waits.

    Raises `StoreFailed` out of the block when the store cannot go on.
    """
    require_hooks(hooks or {})
    clock = clock or Clock()
    real = file_lock.resolve(path)
    had_lock = file_lock.has_lock(real)
    lock = file_lock.RuntimeLock(real)
    try:
        opened = _open_workers(real, clock, open_worker, vfs, had_lock=had_lock)
        async with opened as (workers, guard):
            store = Store(*workers, guard, clock)
            store.deliver = deliver
            store.send = send
            threads = isinstance(workers[0], ThreadWorker)
            async with _running(store, hooks or {}, hook_timeout, sweep_interval, threads=threads):
                yield store
    finally:
        lock.close()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def _open_workers(
    path: Path, clock: Clock, open_worker: OpenWorker, vfs: str | None, *, had_lock: bool
) -> AsyncIterator[tuple[tuple[Worker, Worker, Worker], file_lock.FileGuard]]:
    workers: list[Worker] = []
    with file_lock.no_trace(path, had_lock=had_lock):
        threads = open_worker is open_in_thread
        first, guard = await _open_first(path, clock, vfs, threads=threads)
    try:
        try:
            for readonly in (False, True, True):
                worker = await open_worker(path, readonly=readonly, vfs=vfs)
                workers.append(worker)
        except apsw.Error as error:
            raise connection.unreadable(path, error) from error
        finally:
            first.close()
        writer, reader, browser = workers
        yield (writer, reader, browser), guard
    finally:
        with trio.CancelScope(shield=True):
            guard.leave()
            for worker in reversed(workers):  # the writer last: it may remove the log
                await worker.aclose()
            guard.close()


@trio.lowlevel.enable_ki_protection
async def _open_first(
    path: Path, clock: Clock, vfs: str | None, *, threads: bool
) -> tuple[connection.Database, file_lock.FileGuard]:
    """A first connection, and the guard: from here on nobody can take the file's locks away."""

    def open_it() -> tuple[connection.Database, file_lock.FileGuard]:
        return connection.open_database(path, clock, vfs), file_lock.FileGuard(path)

    give_up = trio.current_time() + file_lock.OPENING_SECONDS
    while (turn := file_lock.Opening(path)).waits:
        if trio.current_time() > give_up:
            raise StoreBusy(f"{path} is being opened by another process; try again")
        await trio.sleep(file_lock.OPENING_PAUSE)
    with turn:
        return await trio.to_thread.run_sync(open_it) if threads else open_it()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def _running(
    store: Store, hooks: Hooks, hook_timeout: float, sweep_interval: float, *, threads: bool
) -> AsyncIterator[None]:
    """The actor's tasks around a block of the caller's; the writer ends last."""
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as writing:
            writing.start_soon(_shielded, store.write)
            try:
                async with trio.open_nursery() as beside:
                    lanes = HookRunner(
                        beside,
                        hooks,
                        close=store.close_boundary,
                        load=store.load,
                        seconds=hook_timeout,
                        threads=threads,
                    )
                    store.attach(lanes)
                    beside.start_soon(store.index)
                    beside.start_soon(store.sweep, sweep_interval)
                    beside.start_soon(store.deliver_boundaries, lanes)
                    try:
                        yield
                    except BaseException as error:  # noqa: BLE001 - raised below, not in a group
                        raised = error
                    beside.cancel_scope.cancel()
            finally:
                store.close()
    except BaseExceptionGroup as group:
        raise plain(group) from raised
    if raised is not None:
        raise raised


@trio.lowlevel.enable_ki_protection
async def _shielded(task: Callable[[], Awaitable[None]]) -> None:
    """A last commit must find its writer, however its caller came to end."""
    with trio.CancelScope(shield=True):
        await task()
