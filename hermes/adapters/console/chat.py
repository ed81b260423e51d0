"""What a console needs of the conversation that it shows, in this process or in another one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import uuid4

import attrs

from hermes.actors.commands import recognize
from hermes.actors.runtime import Runtime
from hermes.adapters.console.files.local import LocalFile
from hermes.events import Envelope, MessageAccepted
from hermes.messages import Inbound, JsonObject, Source, Status, file_id_of
from hermes.protocols import FileReader
from hermes.texts import Texts

MAX_SENT = 1000


class Events(Protocol):
    """The events of a conversation, in order; `lost` counts those that were dropped."""

    lost: int

    def __aiter__(self) -> Events:
        """Return the events themselves."""
        ...

    async def __anext__(self) -> Envelope:
        """Wait for the next event."""
        ...

    def close(self) -> None:
        """Stop receiving. Events that have arrived can still be read."""
        ...


@attrs.frozen
class NamedSession:
    """A session that can be resumed."""

    id: str
    title: str | None


@attrs.frozen
class ChatFile:
    """A file of a conversation: the part that names it, and the key that may read it."""

    part: JsonObject
    session_key: str


class Chat(Protocol):
    """One conversation."""

    @property
    def texts(self) -> Texts:
        """What users are told."""
        ...

    def subscribe(self) -> AbstractContextManager[Events]:
        """Receive events from now on, with those of `MessageAccepted`."""
        ...

    def has_sent(self, event: MessageAccepted) -> bool:
        """Whether a message was sent here, and not by another user of the conversation."""
        ...

    async def submit(self, text: str, files: Sequence[LocalFile] = ()) -> int:
        """Send a message or a command; returns its inbox id once it is on disk."""
        ...

    async def ask(self, text: str, files: Sequence[LocalFile] = ()) -> int:
        """Send a message or a command, and wait for its answer; returns the id of its turn."""
        ...

    async def files(self) -> Sequence[ChatFile]:
        """Return the files of the current session, oldest first."""
        ...

    async def open_file(self, file: ChatFile) -> FileReader:
        """Return a reader of a file. Raises `UnknownFile` if it was deleted."""
        ...

    async def status(self) -> Status:
        """Return the state of the conversation."""
        ...

    async def interrupt(self) -> bool:
        """Interrupt the running turn; returns whether there was one."""
        ...

    async def sessions(self, limit: int) -> Sequence[NamedSession]:
        """Return the sessions that can be resumed, latest activity first."""
        ...


@attrs.frozen
class RuntimeChat:
    """A conversation of a runtime in this process."""

    runtime: Runtime
    session_key: str
    source: Source
    _sent: deque[str] = attrs.field(init=False, factory=lambda: deque(maxlen=MAX_SENT))
    """The event ids of the latest messages that were sent here."""

    @property
    def texts(self) -> Texts:
        """What users are told."""
        return self.runtime.texts

    def subscribe(self) -> AbstractContextManager[Events]:
        """Receive events from now on, with those of `MessageAccepted`."""
        return self.runtime.subscribe(self.session_key, messages=True)

    def has_sent(self, event: MessageAccepted) -> bool:
        """Whether a message was sent here, and not by another user of the conversation."""
        return event.event_id in self._sent

    def _new_event_id(self) -> str:
        self._sent.append(uuid4().hex)
        return self._sent[-1]

    async def submit(self, text: str, files: Sequence[LocalFile] = ()) -> int:
        """Send a message or a command; returns its inbox id once it is on disk."""
        text, command = recognize(text)
        event_id = self._new_event_id()
        inbound = Inbound(self.session_key, event_id, text, self.source, command=command)
        return (
            await self.runtime.submit(inbound, attachments=[each.attachment for each in files])
        ).inbox_id

    async def ask(self, text: str, files: Sequence[LocalFile] = ()) -> int:
        """Send a message or a command, and wait for its answer; returns the id of its turn."""
        reply = await self.runtime.ask(
            self.session_key, text, attachments=[each.attachment for each in files],
            source=self.source, commands="all", event_id=self._new_event_id(),
        )  # fmt: skip
        return reply.turn_id

    async def files(self) -> Sequence[ChatFile]:
        """Return the files of the current session, oldest first."""
        rows = await self.runtime.conversation(self.session_key).history(include_waiting=False)
        parts = [part for row in rows for part in row.parts or () if file_id_of(part)]
        return [ChatFile(part, self.session_key) for part in parts]

    async def open_file(self, file: ChatFile) -> FileReader:
        """Return a reader of a file. Raises `UnknownFile` if it was deleted."""
        return await self.runtime.conversation(file.session_key).open_file(file.part["file"])

    async def status(self) -> Status:
        """Return the state of the conversation."""
        return await self.runtime.conversation(self.session_key).status()

    async def interrupt(self) -> bool:
        """Interrupt the running turn; returns whether there was one."""
        return await self.runtime.conversation(self.session_key).interrupt()

    async def sessions(self, limit: int) -> Sequence[NamedSession]:
        """Return the sessions that can be resumed, latest activity first."""
        found = await self.runtime.conversation(self.session_key).sessions(limit=limit)
        return [NamedSession(each.session.id, each.session.title) for each in found]
