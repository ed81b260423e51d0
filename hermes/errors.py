"""The errors that Hermes raises, one class for each meaning."""

from __future__ import annotations

from typing import Self

from hermes.messages import Receipt


class HermesError(Exception):
    """Base class of all errors that Hermes raises deliberately."""


class StoreError(HermesError):
    """The request failed, and nothing of it was stored."""


class StoreBusy(StoreError):
    """Another process held the write lock for too long. The request can be repeated."""


class StoreFull(StoreError):
    """The disk is full. The request can be repeated once there is space."""


class StoreRefused(StoreError):
    """The file cannot be opened as a Hermes store. It was not changed."""


class StoreUnavailable(StoreRefused):
    """The file could not be opened because of an error that may pass, such as an I/O error.

    It was not changed. Try to open it again later; the bot exits with code 75 for that.
    """


class StoreInUse(StoreRefused):
    """Another runtime owns this file."""


class StoreFailed(HermesError):
    """The store has stopped, or does not know whether the last commit is on disk.

    Reopen it to find out.
    """


class UnknownSession(StoreError, LookupError):
    """No session has this id."""


class AmbiguousTitle(StoreError, LookupError):
    """Several conversations have this title; the message lists them.

    `session_ids` are their latest sessions.
    """

    def __init__(self, text: str, session_ids: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.session_ids = session_ids

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.session_ids)


class TitleTaken(HermesError, ValueError):
    """Another conversation of the key has this `title`; `session_id` is its session."""

    def __init__(self, title: str, session_id: str) -> None:
        super().__init__(f"Title '{title}' is already in use by session {session_id}")
        self.title = title
        self.session_id = session_id

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (self.title, self.session_id)


class TitleTooLong(HermesError, ValueError):
    """The title has `length` visible characters, and the maximum is `limit`."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"Title too long ({length} chars, max {limit})")
        self.length = length
        self.limit = limit

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (self.length, self.limit)


class SessionEnded(StoreError):
    """The session has ended and accepts no more rows."""


class HasContinuation(StoreError):
    """The session continues in a compression child, which the message names."""


class NotInLineage(StoreError):
    """The session id belongs to another conversation."""


class BadImport(StoreError, ValueError):
    """The text to import is not in the format of `export_session`."""


class AttachmentRefused(HermesError, ValueError):
    """The file cannot be attached; the message says why. Nothing of it was stored."""


class AttachmentTooLarge(AttachmentRefused):
    """The file, or all files together, are larger than allowed."""


class AttachmentUnavailable(HermesError):
    """Raised by the `chunks` of an attachment whose content cannot be obtained.

    The message is accepted without its files, and its text ends with the message of this error.
    """


class UnknownTurn(HermesError, LookupError):
    """The conversation has no recorded turn, or no recorded call, with this number."""


class CannotRebuild(HermesError):
    """What a recorded request was made of does not exist any more."""


class UnknownFile(HermesError, LookupError):
    """The conversation has no file with this id."""


class FileDamaged(UnknownFile, StoreError):
    """The content of a file was cut on disk. Models and platforms get a note instead of it."""


class Overloaded(HermesError):
    """Too much is waiting already; the request was refused before anything was accepted."""


class ActorStopped(HermesError):
    """The actor ended before it could answer."""


class Draining(HermesError):
    """The runtime is shutting down and accepts no new work. Accepted messages are safe."""


class NotOwner(HermesError):
    """Another node serves the conversation, or has the role, and nothing was changed."""


class WaitCircle(HermesError):
    """A turn would wait for a conversation that waits for it; the message names the circle."""


class TurnClosed(HermesError):
    """The turn is over, and its agent can no longer act."""


class NotApproved(HermesError):
    """The tool call needs an approval that it does not have. Nothing was recorded."""


class ContextOverflow(HermesError):
    """The conversation does not fit into the model's context window."""


class CompressorFailed(HermesError):
    """The compressor returned no summary. Users are shown the message, redacted and cut.

    `lasting` means that the next attempts would fail, too. `retry_after` is the delay in seconds
    that the provider asked for.
    """

    def __init__(
        self, text: str, *, lasting: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.lasting = lasting
        self.retry_after = retry_after


class EventConflict(HermesError, ValueError):
    """The event_id was used before, in this conversation, for another message."""


class HistoryChanged(HermesError):
    """A conversation has other messages than an API client expects."""


class RequestRefused(HermesError, ValueError):
    """An API client returns a result or a decision that nothing waits for, or asks for a tool that
    the agent has itself."""


class AlreadyAnswered(HermesError):
    """The event was answered before; `await runtime.wait(error.receipt)` returns that reply."""

    def __init__(self, text: str, receipt: Receipt) -> None:
        super().__init__(text)
        self.receipt = receipt

    def __reduce__(self) -> tuple[type[Self], tuple[str, Receipt]]:
        return type(self), (str(self), self.receipt)


class ReplyNotFound(HermesError, LookupError):
    """The store has no reply for this message: it is unknown, or was answered long ago.

    Replies are kept for 30 days, and only those of version 0.1 or later.
    """


class ReplyTimeout(HermesError, TimeoutError):
    """The reply took too long. Only the wait ended: the message is answered in any case.

    `await runtime.wait(error.receipt)` waits on.
    """

    def __init__(self, text: str, receipt: Receipt) -> None:
        super().__init__(text)
        self.receipt = receipt

    def __reduce__(self) -> tuple[type[Self], tuple[str, Receipt]]:
        return type(self), (str(self), self.receipt)


class NotAdmitted(HermesError):
    """The sender has no access. The message was not accepted, and the sender was informed."""


class InvalidToken(NotAdmitted):
    """The token of the request was revoked or has expired. The message was not accepted."""


class RateLimited(NotAdmitted):
    """The sender has sent too many messages. It can send this one again later."""


class Unsendable(HermesError):
    """The chat no longer exists, so nothing can be sent to it."""


class RetryAfter(HermesError):
    """The platform accepted nothing and asks to wait for `seconds`."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds

    def __reduce__(self) -> tuple[type[Self], tuple[str, float]]:
        return type(self), (str(self), self.seconds)


class MessageRefused(HermesError):
    """The platform rejected this message; others may be accepted."""


class OutcomeUnknown(HermesError):
    """The connection ended before the response, so the platform may have accepted the message."""


def actionable(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the exception of a group that a caller can act on, or the group if there is none.

    `StoreFailed` takes precedence over Ctrl-C, and that over other errors of Hermes.
    """
    for kind in (StoreFailed, KeyboardInterrupt, HermesError):
        found, _ = group.split(kind)
        if found is not None:
            error: BaseException = found
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            return error
    return group
