"""`SessionStore`: the store for scripts, tools and tests, one call after the other."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import apsw

from hermes.errors import ActorStopped
from hermes.store import connection, file_lock
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
from hermes.store.group_commit import commit_one, read, translate
from hermes.store.maintenance import cleanup, stats, transfer
from hermes.store.records import access, key_value, tool_records, usage
from hermes.store.transaction import Clock, Transaction, Work

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def _writes(
    function: Callable[Concatenate[Transaction, P], R],
) -> Callable[Concatenate[SessionStore, P], R]:
    @functools.wraps(function)
    def verb(self: SessionStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.transact(lambda tx: function(tx, *args, **kwargs))

    return verb


def _reads(
    function: Callable[Concatenate[Transaction, P], R],
) -> Callable[Concatenate[SessionStore, P], R]:
    @functools.wraps(function)
    def verb(self: SessionStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.snapshot(lambda tx: function(tx, *args, **kwargs))

    return verb


def _steps(
    function: Callable[P, Generator[Work[S], S, R]],
) -> Callable[Concatenate[SessionStore, P], R]:
    @functools.wraps(function)
    def verb(self: SessionStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        steps = Chunked(function(*args, **kwargs))
        while (work := steps.next()) is not None:
            with steps.counted():
                steps.done(self.transact(work))
        return steps.result()

    return verb


def _searches(
    function: Callable[Concatenate[Transaction, P], R],
) -> Callable[Concatenate[SessionStore, P], R]:
    @functools.wraps(function)
    def verb(self: SessionStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.snapshot(search.unindexed):
            self.index_pending()
        return self.snapshot(lambda tx: function(tx, *args, **kwargs))

    return verb


class SessionStore:
    """A Hermes database, opened beside its runtime or without one. Threads take turns.

    Each verb is one transaction, on disk when it returns.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        vfs: str | None = None,
    ) -> None:
        self.path = file_lock.resolve(path)
        self._clock = clock or Clock()
        self._turn = threading.RLock()
        had_lock = file_lock.has_lock(self.path)
        with file_lock.no_trace(self.path, had_lock=had_lock), file_lock.wait_opening(self.path):
            self._db = connection.open_database(self.path, self._clock, vfs)
            self._guard = file_lock.FileGuard(self.path)
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._turn:
            if self._open:
                self._open = False
                self._guard.leave()
                self._db.close()
                self._guard.close()

    def transact(self, work: Work[R]) -> R:
        """Run the work in a transaction of its own."""
        with self._turn:
            self._require_open()
            try:
                value = commit_one(self._db, self._clock, self._guard.check, work)
            except BaseException:
                self._db.abandon()
                raise
            if self._db.checkpoint_due:
                self._checkpoint()
            return value

    def snapshot(self, work: Work[R]) -> R:
        """Run work that only reads."""
        with self._turn:
            self._require_open()
            try:
                return read(self._db, self._clock, work)
            except BaseException:
                self._db.abandon()
                raise

    def _require_open(self) -> None:
        if not self._open:
            raise ActorStopped(f"{self.path} is closed")

    def _checkpoint(self) -> None:
        try:
            self._db.checkpoint()
        except apsw.Error as error:  # what is committed stays committed; the next one tries again
            log.debug("%s: checkpoint failed: %s", self.path, error)

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

    accept = _writes(inbox.accept)
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
    decide_approval = _writes(tool_records.decide_approval)

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
    outbox_facts = _reads(outbox.outbox_facts)
    facts = _reads(stats.facts)

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

    list_sessions = _reads(listing.list_sessions)
    export_session = _reads(transfer.export_session)
    delete_session = _writes(cleanup.delete_session)
    prune_empty_ghost_sessions = _writes(cleanup.prune_empty_ghost_sessions)
    finalize_orphaned_compression_sessions = _writes(cleanup.finalize_orphaned_compression_sessions)
    forget_closed = _writes(cleanup.forget_closed)
    integrity_check = _reads(cleanup.integrity_check)
    check_search = _writes(search.check_search)
    rebuild_search = _writes(search.rebuild_search)
    index_pending = _steps(search.index_pending)
    import_sessions = _steps(transfer.import_sessions)
    prune_sessions = _steps(cleanup.prune_sessions)
    search_messages = _searches(search.search_messages)

    def vacuum(self) -> None:
        """Give free space back to the disk."""
        with self._turn:
            self._require_open()
            self._run(connection.vacuum)

    def backup(
        self, target: str | os.PathLike[str], *, progress: connection.Progress | None = None
    ) -> Path:
        """Copy the database while it is in use; the copy appears whole or not at all."""
        with self._turn:
            self._require_open()
            return self._run(lambda db: connection.backup(db, Path(target), progress=progress))

    def _run(self, function: Callable[[connection.Database], R]) -> R:
        try:
            return function(self._db)
        except apsw.Error as error:
            raise translate(error, "nothing was done") from error
