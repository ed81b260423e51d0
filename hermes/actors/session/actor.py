"""The actor of one session_key: it alone runs turns, compresses, switches and resets.

Mail and requests wait in its mailbox and are worked on one after the other, in this actor's own
task. What must not wait for a running turn (an interrupt, input that steers, a question about the
status) is decided on at once, by `deliver`, without a checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio

from hermes.actors.context import RuntimeContext, answer_to
from hermes.actors.kernel.mailbox import Mailbox, Request, refuse
from hermes.actors.session.agent_cache import AgentCache
from hermes.actors.session.commands import Commands, mode_of, unwrapped
from hermes.actors.session.operations import SessionOperations
from hermes.actors.session.policy import decide
from hermes.actors.session.route_state import RouteState
from hermes.actors.session.running_turn import Mail
from hermes.actors.session.turn import TurnRunner
from hermes.errors import ActorStopped, AlreadyAnswered, HermesError, Overloaded, StoreFailed
from hermes.messages import (
    Delivery,
    InboxRow,
    Reply,
    ReplyStatus,
    Status,
)

log = logging.getLogger(__name__)

R = TypeVar("R")
MAILS = 64
PAGE = 1000
LONGEST_LINGER = 3.0
REFUSED = "An answer is still running, so this was not taken; send it again later."


class SessionActor:
    """One conversation partner. `deliver` and `request` never wait; `run` is its task."""

    __slots__ = (
        "_behind", "_calm", "_commands", "_held", "_queue", "_stopping", "_urgent", "answering",
        "cache", "context", "key", "last_used", "mailbox", "place",
    )  # fmt: skip

    def __init__(self, session_key: str, context: RuntimeContext) -> None:
        self.key = session_key
        self.context = context
        self.mailbox: Mailbox[Mail | Request[Any] | None] = Mailbox(MAILS)
        self.place = RouteState(session_key, context.store)
        self.cache = AgentCache(context)
        self.answering = TurnRunner(session_key, context, self.place, self.cache)
        self.last_used = 0.0
        self._commands: Commands | None = None
        self._queue: list[Mail | Request[Any] | None] = []  # a deque takes ten times as much
        self._held: set[int] | None = None  # made when needed: idle actors are many
        self._behind = False
        self._urgent: Mail | None = None
        self._stopping: int | None = None
        self._calm: trio.Event | None = None

    # What arrives, decided without a wait

    def deliver(self, delivery: Delivery) -> None:
        """Take a message that is on disk."""
        self.place.learn(delivery)
        if delivery.waiting and not self._held:
            self._behind = True  # others wait that this actor has never seen
        receipt = delivery.receipt
        self._take(Mail(receipt.inbox_id, delivery.inbound, receipt.accepted_at))

    def wake(self, *, behind: bool = True) -> None:
        """There is something to do: messages in the store that nobody has worked on."""
        self._behind = self._behind or behind
        with contextlib.suppress(ActorStopped, Overloaded):
            self.mailbox.send_nowait(None)

    def _take(self, mail: Mail) -> None:
        if self._holds(mail.inbox_id):
            return
        manner = mode_of(mail.inbound)
        mail = Mail(mail.inbox_id, unwrapped(mail.inbound), mail.accepted_at)
        busy = mail.inbound.busy or self.context.config.busy_on(mail.inbound.source.platform)
        turn = self.answering.turn
        action = decide(busy, manner, running=turn is not None)
        self._hold([mail.inbox_id])
        if action == "steer" and turn is not None and turn.steer(mail):
            return
        if action in {"beside", "reject"}:
            work = self._command if action == "beside" else self._reject
            self.context.nursery.start_soon(self._beside, work, mail)
            return
        if manner == "stops":
            self._hurry(mail)
            self.wake(behind=False)
        else:
            self._put(mail)
        if action == "interrupt" and self.answering.interrupt() and manner == "stops":
            self._stopping = mail.inbox_id

    def _hold(self, inbox_ids: Sequence[int]) -> None:
        self._held = self._held or set()
        self._held.update(inbox_ids)

    def _holds(self, inbox_id: int) -> bool:
        return self._held is not None and inbox_id in self._held

    def _let_go(self, mails: Sequence[Mail]) -> None:
        if self._held is not None:
            self._held.difference_update(mail.inbox_id for mail in mails)
            self._held = self._held or None

    def _hurry(self, mail: Mail) -> None:
        """Note a command that ends what waits; of two the later one, which ends the other too."""
        first, last = sorted([mail, self._urgent or mail], key=_inbox_id)
        if first is not last:
            self._queue.append(first)
        self._urgent = last

    def _put(self, mail: Mail) -> None:
        try:
            self.mailbox.send_nowait(mail)
        except Overloaded:  # it is in the store, and will be fetched from there
            self._let_go([mail])
            self._behind = True

    async def request(self, work: Callable[[], Awaitable[R]]) -> R:
        """Have something done between two turns, and wait for it."""
        request: Request[R] = Request(work)
        self.mailbox.send_nowait(request)
        return await request.wait()

    def has_stopped(self, mail: Mail) -> bool:
        """Whether a turn was stopped for this command."""
        return self._stopping == mail.inbox_id

    async def wait_idle(self) -> None:
        """Wait until it has nothing to do, or has ended."""
        while not self.idle and not self.mailbox.closed:
            self._calm = self._calm or trio.Event()
            await self._calm.wait()

    def _note_calm(self) -> None:
        if self._calm is not None:
            self._calm.set()
            self._calm = None

    @property
    def verbs(self) -> SessionOperations:
        """What can be done between two turns."""
        return SessionOperations(self.key, self.context, self.place, self.cache)

    @property
    def idle(self) -> bool:
        """Whether it could end now without anybody noticing."""
        return self.mailbox.parked and not self._held and not self._behind

    @property
    def has_session(self) -> bool:
        """Whether there is a conversation that hooks could finalize."""
        return self.place.head is not None and self.place.head.message_count > 0

    # The task

    async def run(self) -> None:
        """Work until the mailbox is closed."""
        try:
            while True:
                self._queue.extend(self.mailbox.take_nowait())
                if self._behind:  # first: what is behind may be older than what is here
                    await self._refill()
                elif self._urgent is not None:
                    await self._run_urgent(self._urgent)
                elif self._queue:
                    await self._step()
                else:
                    self._note_calm()
                    if not (mail := await self.mailbox.take()):
                        return
                    self._queue.extend(mail)
        finally:
            self.mailbox.close()
            self._note_calm()
            refuse([*self._queue, *self.mailbox.take_nowait()], self.context.stop_error())

    async def _run_urgent(self, command: Mail) -> None:
        """A command that ends all that waits, itself included what the mailbox could not hold."""
        self._urgent = None
        dropped = [item for item in self._queue if isinstance(item, Mail)]
        before = [mail for mail in dropped if mail.inbox_id < command.inbox_id]
        kept = [item for item in self._queue if item not in before]
        self._queue = kept
        await self._run_command(command, before)

    async def _step(self) -> None:
        """The next request, command or turn."""
        first = self._queue[0]
        if first is None:
            self._queue.pop(0)
        elif isinstance(first, Request):
            self._queue.pop(0)
            await self._work(first)
        elif first.inbound.command:
            self._queue.pop(0)
            await self._run_command(first, ())
        elif await self._gather(first):
            await self.turn(self._next_turn())

    async def _gather(self, mail: Mail) -> bool:
        """Wait a little for what belongs to a message; False where something else comes first.

        All of it is on disk: who dies meanwhile finds it waiting, and takes it at once.
        """
        begun = trio.current_time()
        until = begun + mail.inbound.linger
        while trio.current_time() < until:
            fresh: list[Mail | Request[Any] | None] = []
            with trio.move_on_at(until):
                fresh = await self.mailbox.take()
                if not fresh:
                    return True  # closed: nothing more will come
            self._queue.extend(fresh)
            if self._urgent is not None or self._behind:
                return False
            last = next((item for item in reversed(fresh) if item is not None), mail)
            if not isinstance(last, Mail) or last.inbound.command:
                break
            if fresh:
                until = min(begun + LONGEST_LINGER, trio.current_time() + last.inbound.linger)
        return True

    async def _work(self, request: Request[Any]) -> None:
        assert request.work is not None
        try:
            request.answer(await request.work())
        except (HermesError, ValueError) as error:
            request.fail(error)
        except BaseException:
            refuse([request], self.context.stop_error())
            raise

    def _next_turn(self) -> list[Mail]:
        mails: list[Mail] = []
        while self._queue:
            item = self._queue[0]
            if not isinstance(item, Mail) or item.inbound.command:
                break
            mails.append(item)
            self._queue.pop(0)
        return mails

    async def turn(self, mails: Sequence[Mail], *, retry: bool = False) -> None:
        """Answer these messages; what was discarded waits again."""
        ran = await self.answering.run(mails, self._following, retry=retry)
        self.last_used = trio.current_time()
        self._put_back(ran.left)
        if ran.discarded:
            await self._discarded(ran.mails)
        else:
            self._let_go(ran.mails)

    def _put_back(self, mails: Sequence[Mail]) -> None:
        """Queue mail again, in its place among the others: right behind all that came before it."""
        behind: list[Mail | Request[Any] | None] = []
        for mail in reversed(mails):
            while self._queue and not _is_before(self._queue[-1], mail):
                behind.append(self._queue.pop())
            behind.append(mail)
        self._queue.extend(reversed(behind))

    def _following(self) -> list[int]:
        """The messages that the next turn will take."""
        self._queue.extend(self.mailbox.take_nowait())
        ids: list[int] = []
        for item in self._queue:
            if not isinstance(item, Mail) or item.inbound.command:
                break
            ids.append(item.inbox_id)
        return ids

    async def _discarded(self, mails: Sequence[Mail]) -> None:
        """The fence had moved: what is still open runs again where the key leads now."""
        self.place.forget()
        still_open = {row.inbox_id for row in await self._open_rows()}
        self._put_back([mail for mail in mails if mail.inbox_id in still_open])
        for mail in mails:
            if mail.inbox_id not in still_open:
                self._let_go([mail])
                gone = AlreadyAnswered(f"message {mail.inbox_id} was answered elsewhere")
                self.context.waiters.fail(mail.inbound.identity, gone)

    async def _refill(self) -> None:
        """Fetch messages that an earlier process left, or that found the mailbox full."""
        self._behind = False
        fresh = [row for row in await self._open_rows() if not self._holds(row.inbox_id)]
        spent = [row for row in fresh if row.attempts >= self.context.config.max_attempts]
        if spent:
            await self._park(spent)
        left = [row for row in fresh if row.attempts < self.context.config.max_attempts]
        if left:
            await self.context.store.start_inbox(_first_turn(left))
        self._queue.extend(self.mailbox.take_nowait())
        found = [row for row in left if not self._holds(row.inbox_id)]  # delivered while we read
        self._hold([row.inbox_id for row in found])
        self._put_back([_mail(row) for row in found if not self._is_urgent(row)])

    async def _open_rows(self) -> list[InboxRow]:
        """All that waits for this key; how much that can be is bounded when it is accepted."""
        rows: list[InboxRow] = []
        after = 0
        while page := await self.context.store.open_inbox(self.key, after=after, limit=PAGE):
            rows += page
            if len(page) < PAGE:
                break
            after = page[-1].inbox_id
        return rows

    def _is_urgent(self, row: InboxRow) -> bool:
        """Take a command out that ends what waits; an earlier process may have left it."""
        if row.inbound.command and mode_of(row.inbound) == "stops":
            self._hurry(_mail(row))
            return True
        return False

    async def _park(self, rows: Sequence[InboxRow]) -> None:
        """Set work aside that was begun too often, and say so."""
        for row in rows:
            mail = Mail(row.inbox_id, row.inbound)
            log.error("message %d of %s was begun %d times", row.inbox_id, self.key, row.attempts)
            text = (
                f"I tried {row.attempts} times to answer this and never got to the end, so I "
                "stopped trying. Your message is kept; send it again to have another try."
            )
            answer = answer_to([mail], self.place.session_id or "", text, "notice")
            await self.context.store.park_inbox([row.inbox_id], "begun too often", answer=answer)
            self._reply([mail], text, "refused")

    # Commands

    async def _run_command(self, mail: Mail, dropped: Sequence[Mail]) -> None:
        text = await self._command_text(mail, dropped)
        if text is not None:
            self._reply([mail], text, "command")
            if dropped:
                self._reply(dropped, text, "refused", mail.inbox_id)

    async def _command(self, mail: Mail) -> None:
        await self._run_command(mail, ())

    async def _command_text(self, mail: Mail, dropped: Sequence[Mail]) -> str | None:
        if self._commands is None:
            self._commands = Commands(self)
        return await self._commands.run(mail, dropped)

    async def _reject(self, mail: Mail) -> None:
        session_id = self.place.session_id or ""
        await self.context.store.answer(answer_to([mail], session_id, REFUSED, "notice"))
        self._reply([mail], REFUSED, "refused")

    async def _beside(self, work: Callable[[Mail], Awaitable[None]], mail: Mail) -> None:
        """Answer something while a turn runs; its row stays open where that fails."""
        try:
            await work(mail)
        except StoreFailed:
            raise
        except Exception:  # what fails here must harm nobody else
            log.exception("message %d of %s waits", mail.inbox_id, self.key)
            self._let_go([mail])
            self.wake()

    def _reply(
        self, mails: Sequence[Mail], text: str, status: ReplyStatus, dropped_by: int | None = None
    ) -> None:
        self._let_go(mails)
        self._note_calm()
        reply = Reply(
            text=text,
            session_id=self.place.session_id or "",
            turn_id=mails[0].inbox_id,
            status=status,
        )
        self.context.tell(mails, reply, dropped_by)

    async def status(self) -> Status:
        """How the conversation is doing."""
        limits = self.context.compression.limits
        if await self.context.store.get_route(self.key) is None:
            return Status(
                session_key=self.key, session_id=None, title=None, message_count=0, busy=False,
                waiting=0, context_tokens=0, compress_at=limits.compress_at, window=limits.window,
                builds=self.cache.builds,
            )  # fmt: skip
        head = await self.place.locate(look=True)
        held = await self.cache.transcript(head)
        standing = await self.context.compression.standing(head.session_id)
        return Status(
            session_key=self.key,
            session_id=head.session_id,
            title=await self.verbs.title(),
            message_count=head.message_count,
            busy=self.answering.turn is not None,
            waiting=sum(isinstance(item, Mail) for item in self._queue) + len(self.mailbox),
            context_tokens=self.answering.room.taken(held),
            compress_at=limits.compress_at,
            window=limits.window,
            builds=self.cache.builds,
            compression_note=self.context.compression.blocked(standing),
        )


def _first_turn(rows: Sequence[InboxRow]) -> list[int]:
    """The rows that are begun with next."""
    ids = [row.inbox_id for row in itertools.takewhile(_is_message, rows)]
    return ids or [rows[0].inbox_id]


def _is_before(item: Mail | Request[Any] | None, mail: Mail) -> bool:
    return isinstance(item, Mail) and item.inbox_id < mail.inbox_id


def _is_message(row: InboxRow) -> bool:
    return not row.inbound.command


def _mail(row: InboxRow) -> Mail:
    return Mail(row.inbox_id, unwrapped(row.inbound), row.accepted_at)


def _inbox_id(mail: Mail) -> int:
    return mail.inbox_id
