"""Adapters: how replies reach a platform."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hermes.messages import OutboxRow
from hermes.protocols.files import FileReader


class Adapter(Protocol):
    """Sends replies to one platform.

    `send` returns once the platform has accepted the message. It is called for many chats at once,
    but only once at a time for each chat and thread, and limits the time of its own requests. It
    raises:

    - `Unsendable` if the chat no longer exists: nothing is sent there again;
    - `RetryAfter` if the platform accepted nothing for now;
    - `MessageRefused` if the platform rejected this message;
    - `OutcomeUnknown`, or anything else, if the platform may have accepted it: the message is sent
      again, marked as recovered.
    """

    @property
    def platform(self) -> str:
        """The platform whose replies this adapter sends."""
        ...

    async def send(self, row: OutboxRow, /) -> None:
        """Send one reply, or one part of a long one."""
        ...


@runtime_checkable
class SupportsFiles(Protocol):
    """An adapter that can send files. Others get a line of text that names the file."""

    async def send_file(self, row: OutboxRow, file: FileReader, /) -> None:
        """Send one file of a reply. Raises what `Adapter.send` raises."""
        ...


@runtime_checkable
class SupportsReady(Protocol):
    """An adapter that can wait for its platform before a send.

    `ready` is awaited before each `send` with the same row. A process that ends while it waits has
    not sent the reply, so the reply is not marked as recovered.
    """

    async def ready(self, row: OutboxRow, /) -> None:
        """Wait until the platform would accept this reply."""
        ...


@runtime_checkable
class HasLimit(Protocol):
    """An adapter with a maximum message length; longer texts are split."""

    @property
    def limit(self) -> int | None:
        """The maximum length in UTF-16 code units; None for no limit."""
        ...


@runtime_checkable
class HasAccount(Protocol):
    """An adapter that serves one account of its platform."""

    @property
    def account(self) -> str | None:
        """The account whose replies it sends; None for all accounts."""
        ...


@runtime_checkable
class HasLocal(Protocol):
    """An adapter that says whether it is local.

    An adapter that does not say so connects a network: anybody could write to it, so a runtime does
    not start with it unless it has an access policy.
    """

    @property
    def local(self) -> bool:
        """Whether all messages come from the user of this machine."""
        ...
