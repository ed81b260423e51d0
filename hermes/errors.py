"""What can go wrong, one class per meaning."""

from __future__ import annotations


class HermesError(Exception):
    """Base of every error that Hermes raises on purpose."""


class StoreError(HermesError):
    """The request was not stored: nothing of it is in the file."""


class StoreBusy(StoreError):
    """Another process held the write lock for too long; the same request may be sent again."""


class StoreFull(StoreError):
    """The disk is full; the same request may be sent again once there is room."""


class StoreRefused(StoreError):
    """The file cannot be opened as a Hermes store; it was left as it is."""


class StoreInUse(StoreRefused):
    """Another runtime owns this file."""


class StoreFailed(HermesError):
    """The store stopped, or cannot tell whether the last commit is on disk: reopen and look."""


class UnknownSession(StoreError, LookupError):
    """No session has this id."""


class SessionEnded(StoreError):
    """The session has ended and takes no more rows."""


class HasContinuation(StoreError):
    """The session goes on in a compression child, which is named."""


class NotInLineage(StoreError):
    """The session id belongs to another conversation."""


class BadImport(StoreError, ValueError):
    """The text to import is not what `export_session` writes."""


class Overloaded(HermesError):
    """Refused before anything was acknowledged: too much is waiting already."""


class ActorStopped(HermesError):
    """The actor ended before it could answer."""


class Draining(HermesError):
    """The runtime is about to end and takes no new work; what it has taken is safe."""


class TurnClosed(HermesError):
    """The turn is over: what its agent still wants to say or do is refused."""


class NotApproved(HermesError):
    """The call needs an approval that nobody has given; nothing was recorded."""


class ContextOverflow(HermesError):
    """The conversation does not fit into the model's context window."""


class CompressorFailed(HermesError):
    """There is no summary. `lasting`: trying again soon is in vain; `retry_after`: in seconds."""

    def __init__(
        self, text: str, *, lasting: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.lasting = lasting
        self.retry_after = retry_after


class AlreadyAnswered(HermesError):
    """This event had its turn before; the transcript has what was said."""


class NotAdmitted(HermesError):
    """Who wrote is not allowed to; nothing was taken, and what there is to say was said."""


class Unsendable(HermesError):
    """The chat is gone for good: nothing can be sent there any more."""


class RetryAfter(HermesError):
    """The platform took nothing and asks to be left alone for so many `seconds`."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


class MessageRefused(HermesError):
    """The platform took nothing: it does not want this message, and would take others."""


class OutcomeUnknown(HermesError):
    """The platform may have taken the message or not: the connection ended before its answer."""


def plain(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one thing that a caller of a block can do something about, out of its group."""
    for kind in (StoreFailed, KeyboardInterrupt, HermesError):
        found, _ = group.split(kind)
        if found is not None:
            error: BaseException = found
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            return error
    return group
