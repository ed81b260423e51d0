"""Mailboxes and requests, for the session actors and the store actor.

`Mailbox` is a bounded queue with one reader. `Request` is a message that is always answered, at the
latest when its actor ends. Both sides of a request wait with `wait_task_rescheduled` and add no
further checkpoint, so a request costs about two passes of the scheduler. Deadlines belong to the
work, not to every request: `fail_after` costs more than a request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

import attrs
from outcome import Error
from trio.lowlevel import (
    Abort,
    Task,
    current_task,
    enable_ki_protection,
    wait_task_rescheduled,
)

from hermes.background import OUT_OF_MEMORY, resume, until_memory
from hermes.errors import ActorStopped, Overloaded

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")

CAPACITY = 1000
_ENDED = ActorStopped("the actor has ended")
_UNANSWERED = ActorStopped("the actor ended before it could answer")


class Mailbox(Generic[M]):
    """A bounded queue with one reader. A full mailbox refuses messages, and so does a closed one.

    `capacity` is the number of messages that may wait.
    """

    __slots__ = ("_messages", "_reader", "_stopped", "capacity")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity: int = capacity
        self._messages: list[M] | None = None  # created on demand: most actors are idle
        self._reader: Task | None = None
        self._stopped: Exception | None = None

    def __len__(self) -> int:
        return 0 if self._messages is None else len(self._messages)

    def __iter__(self) -> Iterator[M]:
        return iter(self._messages or ())

    @property
    def closed(self) -> bool:
        """Whether the mailbox accepts no more messages."""
        return self._stopped is not None

    @property
    def parked(self) -> bool:
        """Whether the reader has taken everything and is waiting."""
        return self._reader is not None

    # No Ctrl-C between storing the reader and parking it, or between waking and forgetting it.
    @enable_ki_protection
    def send_nowait(self, message: M) -> None:
        """Enqueue a message and wake the reader.

        Raises `Overloaded` if the mailbox is full. If it is closed, raises the error it was closed
        with: `ActorStopped` unless the actor gave another one.
        """
        if self._stopped is not None:
            raise copy_of(self._stopped)
        if self._messages is not None and len(self._messages) >= self.capacity:
            raise Overloaded(f"{self.capacity} messages are already waiting")
        if self._reader is not None:  # first: a message that cannot be stored was not sent
            resume(self._reader)
            self._reader = None
        if self._messages is None:
            self._messages = [message]
        else:
            self._messages.append(message)

    def take_nowait(self, limit: int | None = None) -> list[M]:
        """Return the waiting messages in order, at most `limit` of them; the list may be empty."""
        messages = self._messages
        if messages is None:
            return []
        if limit is not None and len(messages) > limit:
            self._messages = messages[limit:]
            return messages[:limit]
        self._messages = None
        return messages

    def remove(self, message: M, placeholder: M) -> None:
        """Remove a waiting message.

        If it was the only one, the placeholder takes its place: the reader may already be on its
        way, and would take an empty mailbox for a closed one.
        """
        assert self._messages is not None
        self._messages.remove(message)
        self._messages = self._messages or [placeholder]

    @enable_ki_protection
    async def take(self, limit: int | None = None) -> list[M]:
        """Wait for messages and return them; an empty list means that the mailbox is closed."""
        while self._messages is None and self._stopped is None:
            self._reader = current_task()
            try:
                await wait_task_rescheduled(self._abort)
            finally:  # also if there was no memory to wait
                self._reader = None
        return self.take_nowait(limit)

    @enable_ki_protection
    def _abort(self, _: object) -> Abort:
        self._reader = None
        return Abort.SUCCEEDED

    @enable_ki_protection
    def close(self, error: Exception | None = None) -> None:
        """Accept no more messages; those that are waiting can still be taken.

        Later senders get a copy of `error`.
        """
        if error is not None or self._stopped is None:
            self._stopped = error or _ENDED
        if self._reader is not None:
            resume(self._reader)
            self._reader = None

    def abandon(self, error: Exception) -> None:
        """Refuse messages from now on, but wake nobody: the reader runs in another process."""
        self._stopped = error

    def require_open(self) -> None:
        """Raise what `send_nowait` would raise if the mailbox is closed."""
        if self._stopped is not None:
            raise copy_of(self._stopped)

    def refuse_rest(self, taken: Iterable[M] = ()) -> None:
        """Close the mailbox and fail every request in it, and those of `taken`."""
        self.close()
        refuse(taken, self._stopped)
        refuse(self._messages or (), self._stopped)
        self._messages = None


class _Receiver(Protocol[M_contra]):
    """Any mailbox that accepts messages of this type, among others."""

    def send_nowait(self, message: M_contra, /) -> None: ...


@attrs.define(eq=False, weakref_slot=False)
class Request(Generic[R]):
    """A message that asks for an answer; one task can wait for it.

    `work` is what the actor is asked to do, if the type of the request does not say it.
    """

    work: Callable[[], Awaitable[R]] | None = None
    answered: bool = attrs.field(default=False, init=False)
    """Whether the request was answered or failed."""
    abandoned: bool = attrs.field(default=False, init=False)
    """Whether the waiting task was cancelled, so that nobody is interested any more."""
    _task: Task | None = attrs.field(default=None, init=False)
    _answer: Any = attrs.field(default=None, init=False)

    def answer(self, value: R | Error) -> None:
        """Answer the request, unless that was done before; an `Error` lets it fail."""
        if not self.answered:
            self.answered = True
            self._answer = value
            if self._task is not None:
                resume(self._task)
                self._task = None

    def fail(self, error: BaseException) -> None:
        """Let the request fail, unless it was answered before."""
        self.answer(Error(error))

    # No Ctrl-C between checking for an answer and parking: only a parked task may be woken.
    @enable_ki_protection
    async def wait(self, sent_to: _Receiver[Request[R]] | None = None) -> R:
        """Wait for the answer and return it, or raise the error.

        With `sent_to`, the request is first sent to that mailbox.
        """
        try:
            if sent_to is not None:
                sent_to.send_nowait(self)
            if not self.answered:
                self._task = current_task()
                await wait_task_rescheduled(self._abort)
            if type(self._answer) is Error:  # `isinstance` would ask an abstract base class: slower
                raise self._answer.error
            return cast(R, self._answer)
        finally:
            # There may have been no memory to wait; then nobody waits for an answer any more.
            self._task, self.abandoned = None, not self.answered
            del self  # or the traceback of an error would keep it and the request alive

    @enable_ki_protection
    def _abort(self, _: object) -> Abort:
        self._task = None
        self.abandoned = True
        return Abort.SUCCEEDED


async def serve(
    mailbox: Mailbox[M], handle: Callable[[list[M]], Awaitable[None]], limit: int | None = None
) -> None:
    """Pass messages to `handle`, at most `limit` at a time, until the mailbox is closed.

    However it ends, the mailbox is closed then, and requests without an answer fail.
    """
    batch: list[M] = []
    refuse_rest = mailbox.refuse_rest  # at the end, there may be no memory for the bound method
    try:
        while batch := await mailbox.take(limit):
            await handle(batch)
            batch = []  # do not keep answers alive while nothing arrives
    finally:
        until_memory(refuse_rest, batch)


def refuse(messages: Iterable[object], error: Exception | None = None) -> None:
    """Fail the requests among the messages, each with a copy of `error`."""
    error = error or _UNANSWERED
    for message in messages:
        if isinstance(message, Request):
            try:
                message.fail(copy_of(error))
            except MemoryError:  # the others need an answer too
                message.answer(OUT_OF_MEMORY)


def copy_of(error: Exception) -> Exception:
    """Each task gets its own exception object: raising one extends its traceback."""
    return type(error)(*error.args)
