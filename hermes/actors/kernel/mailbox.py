"""Mail for one reader, and requests that are always answered.

Both sides of an ask wait by `wait_task_rescheduled`: no checkpoint on either end, about the floor
of two scheduler passes. Deadlines belong to the work, not to every ask (`fail_after` costs more
than the ask itself).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import msgspec
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from hermes.errors import ActorStopped, Overloaded

M = TypeVar("M")
R = TypeVar("R")

CAPACITY = 1000
FAIR = 64
"""Messages handled in a row before others get a turn."""


class MailboxStatistics(msgspec.Struct, frozen=True):
    """How a mailbox is doing."""

    waiting: int
    capacity: int
    parked: bool
    closed: bool


class Mailbox(Generic[M]):
    """A bounded queue with one reader; a full one refuses, a closed one too."""

    __slots__ = ("_closed", "_mail", "_reader", "capacity")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._mail: list[M] | None = None  # made by the first mail: idle actors are many
        self._reader: Task | None = None
        self._closed = False

    def __len__(self) -> int:
        return 0 if self._mail is None else len(self._mail)

    @property
    def closed(self) -> bool:
        """Whether it takes no more mail."""
        return self._closed

    @property
    def parked(self) -> bool:
        """Whether its reader has read everything, and waits."""
        return self._reader is not None

    # No Ctrl-C between noting a reader and waiting, or between waking him and forgetting him.
    @trio.lowlevel.enable_ki_protection
    def send_nowait(self, message: M) -> None:
        """Put the message in, and wake the reader."""
        if self._closed:
            raise ActorStopped("the actor has ended")
        if self._mail is None:
            self._mail = [message]
        elif len(self._mail) < self.capacity:
            self._mail.append(message)
        else:
            raise Overloaded(f"the mailbox holds {self.capacity} messages already")
        if self._reader is not None:
            reschedule(self._reader)
            self._reader = None

    def take_nowait(self) -> list[M]:
        """All that waits, in order; empty where nothing does."""
        mail, self._mail = self._mail, None
        return [] if mail is None else mail

    @trio.lowlevel.enable_ki_protection
    async def take(self) -> list[M]:
        """Wait for mail, then all that waits; empty only once the mailbox is closed."""
        if self._mail is None and not self._closed:
            self._reader = current_task()
            await wait_task_rescheduled(self._give_up)
        return self.take_nowait()

    @trio.lowlevel.enable_ki_protection
    def _give_up(self, _: object) -> Abort:
        self._reader = None
        return Abort.SUCCEEDED

    @trio.lowlevel.enable_ki_protection
    def close(self) -> None:
        """Take no more mail; what waits can still be taken."""
        self._closed = True
        if self._reader is not None:
            reschedule(self._reader)
            self._reader = None

    def statistics(self) -> MailboxStatistics:
        """How the mailbox is doing."""
        return MailboxStatistics(len(self), self.capacity, self.parked, self._closed)


class Request(Generic[R]):
    """A question on its way, and the task that waits for the answer."""

    __slots__ = ("_answered", "_error", "_task", "_value", "work")

    def __init__(self, work: Callable[[], Awaitable[R]] | None = None) -> None:
        self.work = work
        self._task: Task | None = None
        self._value: R | None = None
        self._error: BaseException | None = None
        self._answered = False

    @property
    def answered(self) -> bool:
        """Whether there is an answer, or will be none."""
        return self._answered

    def answer(self, value: R) -> None:
        """Give the answer; a second one is ignored."""
        if not self._answered:
            self._value = value
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Say why there is no answer."""
        if not self._answered:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        self._answered = True
        if self._task is not None:
            reschedule(self._task)
            self._task = None

    # No Ctrl-C between being answered and waiting: a task that does not wait must not be woken.
    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> R:
        """Wait for the answer."""
        if not self._answered:
            self._task = current_task()
            await wait_task_rescheduled(self._give_up)
        if self._error is not None:
            error = self._error
            try:
                raise error
            finally:  # or the error's traceback would hold the error, and all else here
                del error, self
        return self._value  # type: ignore[return-value]

    @trio.lowlevel.enable_ki_protection
    def _give_up(self, _: object) -> Abort:
        self._task = None
        return Abort.SUCCEEDED


async def ask(mailbox: Mailbox[Request[R]], request: Request[R]) -> R:
    """Send a request and wait for its answer."""
    mailbox.send_nowait(request)
    return await request.wait()


async def serve(mailbox: Mailbox[M], handle: Callable[[M], Awaitable[None]]) -> None:
    """Handle mail in order until the mailbox is closed; in the end every request is answered."""
    mail: list[M] = []
    handled = 0
    try:
        while mail := await mailbox.take():
            mail.reverse()
            while mail:
                await handle(mail[-1])
                mail.pop()  # only now: who is being answered is answered in any case
                handled += 1
                if handled % FAIR == 0:
                    await trio.lowlevel.checkpoint()
    finally:
        mailbox.close()
        refuse([*reversed(mail), *mailbox.take_nowait()])


def refuse(mail: Iterable[object], error: Exception | None = None) -> None:
    """Answer every request that nobody will work on any more, each by an error of its own."""
    error = error or ActorStopped("the actor ended before it could answer")
    for message in mail:
        if isinstance(message, Request):
            message.fail(type(error)(*error.args))
