"""The actor of one session_key: it alone runs turns, compresses, switches and resets.

Messages and requests wait in its mailbox and are handled one after the other, in the actor's own
task. What must not wait for a running turn (an interrupt, steering input, a status request) is
decided at once, in `deliver`, without a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import trio
from msgspec.structs import replace

from hermes.actors.commands import CommandMode, interpret
from hermes.actors.context import RuntimeContext
from hermes.actors.kernel.mailbox import Request, refuse
from hermes.actors.session.commands.calls import CommandCall
from hermes.actors.session.commands.handlers import run_command
from hermes.actors.session.commands.listing import read_status
from hermes.actors.session.following import announce
from hermes.actors.session.inbox import SessionInbox, Work, gather
from hermes.actors.session.policy import decide
from hermes.actors.session.retries import TEMPORARY, answered_elsewhere
from hermes.actors.session.state import SessionState
from hermes.actors.session.transcription import can_be_steered
from hermes.actors.session.turn import TurnRunner
from hermes.background import cancel, set_event, start_soon
from hermes.errors import HermesError, NotOwner, StoreFailed
from hermes.messages import Accepted, Approval, Claim, InboxRow, Reply, ReplyStatus, Status
from hermes.outbound import inbox_reply, metadata_of
from hermes.protocols import Store
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

R = TypeVar("R")


class SessionActor:
    """One conversation. `deliver` never waits; `request` waits for its turn; `run` is its task."""

    __slots__ = (
        "_calm", "_stopped_for", "claim", "inbox", "last_used", "lost", "runner", "scope", "state",
    )  # fmt: skip

    def __init__(self, key: str, context: RuntimeContext, store: Store | None = None) -> None:
        self.state: SessionState = SessionState(key, context, store)
        self.inbox: SessionInbox = SessionInbox(merge=context.config.merge_messages)
        self.runner: TurnRunner = TurnRunner(self.state, self.inbox)
        self.last_used: float = 0.0
        self.claim: Claim | None = None
        """Under which this node serves the conversation; None if it is the only one."""
        self.lost: bool = False
        """Whether another node serves the conversation now."""
        self._stopped_for: int | None = None
        """The command that interrupted the last turn."""
        self._calm: trio.Event | None = None
        self.scope: trio.CancelScope | None = None

    @property
    def key(self) -> str:
        """The session_key."""
        return self.state.key

    # Input, decided without waiting

    def deliver(self, accepted: Accepted) -> None:
        """Take a message that is on disk."""
        self.state.learn(accepted.receipt.epoch, accepted.head, accepted.route)
        if accepted.waiting and self.inbox.misses(accepted.waiting, accepted.previous):
            self.inbox.behind = True  # there are older messages that this actor has never seen
        receipt = accepted.receipt
        self._take(InboxRow(receipt.inbox_id, accepted.inbound, 0, receipt.accepted_at))

    def _take(self, row: InboxRow) -> None:
        if self.inbox.knows(row.inbox_id):
            return
        self.inbox.add([row.inbox_id])
        if self.runner.turn or row.inbound.command or self.state.context.bus.followers:
            self._take_slowly(row)
        else:
            self.inbox.put(row)

    def _take_slowly(self, row: InboxRow) -> None:
        """Take a message that is more than the next one in a queue that nobody watches."""
        try:
            self._decide(row)
        except MemoryError:  # the supervisor finds it in the store
            self.inbox.release([row.inbox_id])
            raise
        self._announce(row)

    def _announce(self, row: InboxRow) -> None:
        announce(self.state.context.bus, self.key, row)

    def _decide(self, row: InboxRow) -> None:
        """Take a command, or a message that arrives while a turn runs."""
        inbox, turn = self.inbox, self.runner.turn
        mode: CommandMode = "message"
        if row.inbound.command:
            self.state.note_command(row.inbox_id)
            mode, inbound = interpret(row.inbound)
            row = replace(row, inbound=inbound)
        config = self.state.context.config
        when_busy = row.inbound.when_busy or config.busy_on(row.inbound.source.platform)
        action = decide(when_busy, mode, running=turn is not None)
        steers = action == "steer" and can_be_steered(self.state.context, row)
        if steers and turn is not None and turn.steer(row):
            return
        if action in {"concurrent", "reject"}:
            work = self._run_command if action == "concurrent" else self._reject
            start_soon(self.state.context.nursery, self._run_concurrently, work, row)
            return
        if mode == "stops":
            inbox.put_urgent(row)
            inbox.wake(behind=False)
        else:
            inbox.put(row)
        if action == "interrupt" and self.runner.interrupt() and mode == "stops":
            self._stopped_for = row.inbox_id

    async def withdraw(self, inbox_id: int) -> bool:
        """Close a message whose turn has not begun. Returns False if it has begun or ended."""
        turn = self.runner.turn
        row = self.inbox.remove(inbox_id) or (turn and turn.remove(inbox_id))
        if row is None and self.inbox.knows(inbox_id):
            return False
        self.inbox.add([inbox_id])  # until it is closed, it is not fetched from the store either
        withdrawn = None
        try:
            with trio.CancelScope(shield=True):
                withdrawn = await self.state.store.withdraw(self.key, inbox_id)
        finally:
            self.inbox.release([inbox_id])
            if withdrawn is None:
                self.wake()  # it may still be open
        if withdrawn is None:
            return False
        self._notify_idle()
        self._announce(withdrawn.row)  # it may have been in the store only
        self.state.context.bus.reply([withdrawn.row], withdrawn.reply)
        return True

    def wake(self) -> None:
        """Tell the actor that the store has messages for it."""
        self.inbox.wake(behind=True)

    async def request(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run something between two turns, and return its result."""
        request: Request[R] = Request(work)
        self.inbox.put(request)
        return await request.wait()

    @property
    def idle(self) -> bool:
        """Whether the actor could end now without losing anything."""
        return self.inbox.idle

    async def wait_idle(self) -> None:
        """Wait until the actor has nothing to do, or has ended."""
        while not self.idle and not self.inbox.mailbox.closed:
            self._calm = trio.Event() if self._calm is None else self._calm
            await self._calm.wait()

    def _notify_idle(self) -> None:
        if self._calm is not None:
            set_event(self._calm)
            self._calm = None

    @property
    def has_session(self) -> bool:
        """Whether the actor knows its session; otherwise it has not come to any turn."""
        return self.state.head is not None

    # The task

    def lose(self) -> None:
        """End without a word: another node serves the conversation now."""
        self.lost = True
        self.inbox.mailbox.close()
        if self.scope is not None:
            cancel(self.scope)

    async def run(self) -> None:
        """Work until the mailbox is closed."""
        inbox, caches = self.inbox, self.state.context.caches
        try:
            while True:
                await self.state.context.store.cluster.until_trusted()
                inbox.collect()
                if inbox.behind:  # first: what is in the store may be older than the queue
                    await self._refill()
                elif inbox.urgent is not None:
                    await self._run_command(*inbox.take_urgent())
                elif inbox.queue:
                    await self._step(inbox.queue[0])
                else:
                    caches.offer(self.state.cache)
                    self._notify_idle()
                    if not (items := await inbox.mailbox.take()):
                        return
                    caches.withdraw(self.state.cache)
                    inbox.collect(items)
        finally:
            self._end()

    def _end(self) -> None:
        self.inbox.mailbox.close()
        self._notify_idle()
        self.inbox.collect()
        refuse(self.inbox.queue, self._stop_error())

    def _stop_error(self) -> Exception:
        if self.lost:
            return NotOwner(f"{self.key} is served by another node now")
        return self.state.context.stop_error()

    async def _step(self, first: Work) -> None:
        """Handle the next request, command or turn."""
        if isinstance(first, InboxRow) and not first.inbound.command:
            if not first.inbound.linger or await gather(self.inbox, first):
                await self._run_turn(self.inbox.take_turn())
            return
        self.inbox.queue.pop(0)
        if isinstance(first, InboxRow):
            await self._run_command(first)
        else:
            await self._run_request(first)

    async def _run_request(self, request: Request[Any]) -> None:
        assert request.work is not None
        try:
            request.answer(await request.work())
        except (HermesError, ValueError) as error:
            request.fail(error)
        except BaseException:
            refuse([request], self._stop_error())
            raise

    async def _run_turn(self, rows: Sequence[InboxRow], *, retry: bool = False) -> None:
        """Answer these messages. After a discarded turn, those still open wait again."""
        turn = await self.runner.run(rows, retry=retry)
        self.last_used = trio.current_time()
        if turn.unused:
            self.inbox.put_back(turn.unused)
        if turn.discarded:
            await self._requeue(turn.rows)
        else:
            self.inbox.release([row.inbox_id for row in turn.rows])

    async def _requeue(self, rows: Sequence[InboxRow]) -> None:
        self.state.forget()
        still_open = {row.inbox_id: row.attempts for row in await self.state.open_rows()}
        waiting = [row for row in rows if row.inbox_id in still_open]
        limit = self.state.context.config.max_attempts
        for row in [row for row in waiting if still_open[row.inbox_id] >= limit]:
            waiting.remove(row)
            await self._park(replace(row, attempts=still_open[row.inbox_id]))
        self.inbox.put_back(waiting)
        # Each of its turns counts: another process could discard them without end.
        await self.state.store.start_inbox([row.inbox_id for row in waiting])
        for row in rows:
            if row.inbox_id not in still_open:
                self.inbox.release([row.inbox_id])
                self.state.context.bus.fail(row.inbound, answered_elsewhere(self.state, row))

    # Messages that are only in the store

    async def _refill(self) -> None:
        """Fetch messages that an earlier process left, or that found the mailbox full."""
        inbox, store = self.inbox, self.state.store
        limit = self.state.context.config.max_attempts
        inbox.behind = False
        with inbox.reading() as released:
            rows = await self.state.open_rows()
            if not all(inbox.knows(row.inbox_id) for row in rows):
                await store.start_inbox(())  # a write: what came before it is delivered then
            unknown = [row for row in rows if not inbox.knows(row.inbox_id)]
            for row in unknown:
                if row.attempts >= limit:
                    await self._park(row)
            rows = [row for row in unknown if row.attempts < limit]
            if rows:
                first = inbox.first_turn(rows) or rows[:1]
                inbox.note_attempts(rows)
                await store.start_inbox([row.inbox_id for row in first])
        inbox.collect()
        taken = released | inbox.known  # closed or delivered meanwhile
        fetched = [row for row in rows if row.inbox_id not in taken]
        inbox.add([row.inbox_id for row in fetched])
        for row in fetched:
            mode, inbound = interpret(row.inbound) if row.inbound.command else (None, row.inbound)
            if mode is not None:
                self.state.note_command(row.inbox_id)
            if mode == "stops":
                inbox.put_urgent(row)
            else:
                inbox.put_back([replace(row, inbound=inbound)])
                self._announce(row)

    async def fetch(self, after: int) -> bool:
        """Take messages after this id that another process has accepted, as `deliver` does.

        Returns False if the actor is idle or has ended; then the next one that wakes reads them.
        """
        inbox, store = self.inbox, self.state.store
        with inbox.reading() as released:
            rows = await store.open_inbox(self.key, after=after)
            with suppress(*TEMPORARY):
                await store.start_inbox(())  # a write: what came before it is delivered then
        if self.idle or inbox.mailbox.closed:
            return False
        for row in rows:
            if row.inbox_id in released or inbox.knows(row.inbox_id):
                continue
            if row.attempts:  # it must be counted again, and may have to be parked
                self.wake()
            else:
                inbox.add([row.inbox_id])
                self._take_slowly(row)
                inbox.restore_order(row.inbox_id)
        return True

    async def _park(self, row: InboxRow) -> None:
        """Set a message aside that failed too often, and tell its sender."""
        extra = {"metadata": row.inbound.metadata}
        about = (row.inbox_id, self.key, row.attempts)
        log.error("message %d of %s failed %d times", *about, extra=extra)
        text = self.state.context.texts.gave_up.format(attempts=row.attempts)
        answer = inbox_reply([row], self.state.session_id or "", text, "notice")
        await self.state.store.park_inbox([row.inbox_id], "begun too often", answer=answer)
        self._announce(row)
        self._reply([row], text, "refused")

    # Commands, and messages that get no turn

    async def _run_command(self, row: InboxRow, cancelled: Sequence[InboxRow] = ()) -> None:
        stopped = self._stopped_for == row.inbox_id
        call = CommandCall(row, cancelled, stopped, self.status)
        text = await run_command(self.state, call)
        if text is None:
            await self._run_turn([*cancelled, row], retry=True)
            return
        self._reply([row], text, "command", shows=call.shows)
        if cancelled:
            self._reply(cancelled, text, "refused", dropped_by=row.inbox_id)

    async def _reject(self, row: InboxRow) -> None:
        text = self.state.context.texts.busy
        answer = inbox_reply([row], self.state.session_id or "", text, "notice")
        await self.state.store.answer(answer)
        self._reply([row], text, "refused")

    async def _run_concurrently(
        self, work: Callable[[InboxRow], Awaitable[None]], row: InboxRow
    ) -> None:
        """Handle a message beside a running turn; if that fails, its row stays open."""
        with contained(StoreFailed) as caught:
            await work(row)
        if caught.error is not None and not self.lost:
            about, extra = (row.inbox_id, self.key), {"metadata": row.inbound.metadata}
            log.error("message %d of %s waits", *about, exc_info=caught.error, extra=extra)
            self.inbox.release([row.inbox_id])
            self.wake()

    def _reply(
        self,
        rows: Sequence[InboxRow],
        text: str,
        status: ReplyStatus,
        *,
        dropped_by: int | None = None,
        shows: Sequence[Approval] = (),
    ) -> None:
        self.inbox.release([row.inbox_id for row in rows])
        self._notify_idle()
        reply = Reply(
            text=text,
            session_id=self.state.session_id or "",
            turn_id=rows[0].inbox_id,
            status=status,
            metadata=metadata_of(rows),
            approvals=tuple(shows),
        )
        self.state.context.bus.reply(rows, reply, dropped_by=dropped_by)

    async def status(self) -> Status:
        """Return the state of the conversation; also while a turn runs."""
        status = await read_status(self.state, self.inbox)
        return replace(status, busy=self.runner.turn is not None)
