"""`Turn.runtime` for code in another thread: each call runs in the runtime's thread."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import attrs

from hermes.messages import (
    QuestionRoute,
    Reply,
    SearchHit,
    SessionSummary,
    Source,
    Status,
    StoredFile,
    StoredMessage,
    Title,
)
from hermes.protocols import FileReader, OwnConversation, TurnRuntime
from hermes.texts import Texts

R = TypeVar("R")


class LoopCall(Protocol):
    """Runs an async function in the runtime's thread; awaited on another loop."""

    def __call__(self, work: Callable[[], Awaitable[R]], /) -> Awaitable[R]: ...


class ThreadCall(Protocol):
    """Runs an async function in the runtime's thread, and waits for its result."""

    def __call__(self, work: Callable[[], Awaitable[R]], /) -> R: ...


@attrs.frozen
class LoopConversation:
    """`OwnConversation` for a coroutine on the event loop of another thread."""

    _own: OwnConversation
    _call: LoopCall

    @property
    def session_key(self) -> str:
        """The key of the conversation."""
        return self._own.session_key

    async def title(self) -> Title:
        """Return the title."""
        return await self._call(self._own.title)

    async def set_title(self, title: str) -> None:
        """Set the title. Raises `ValueError` if it is too long or already in use."""
        await self._call(lambda: self._own.set_title(title))

    async def status(self) -> Status:
        """Return the state of the conversation."""
        return await self._call(self._own.status)

    async def history(
        self,
        *,
        limit: int | None = None,
        before: int | None = None,
        include_rewound: bool = False,
    ) -> list[StoredMessage]:
        """Return the stored transcript of the current session, without the running turn."""
        page = functools.partial(
            self._own.history, limit=limit, before=before, include_rewound=include_rewound
        )
        return await self._call(page)

    async def sessions(self, *, limit: int = 20, offset: int = 0) -> list[SessionSummary]:
        """Return the sessions of this key, latest activity first."""
        return await self._call(lambda: self._own.sessions(limit=limit, offset=offset))

    async def search(
        self, query: str, *, role: str | None = None, limit: int = 20
    ) -> list[SearchHit]:
        """Search the messages of this key's sessions, best match first."""
        return await self._call(functools.partial(self._own.search, query, role=role, limit=limit))


@attrs.frozen
class LoopRuntime:
    """`TurnRuntime` for a coroutine on the event loop of another thread."""

    _runtime: TurnRuntime
    _call: LoopCall

    @property
    def conversation(self) -> LoopConversation:
        """The conversation of the turn."""
        return LoopConversation(self._runtime.conversation, self._call)

    @property
    def texts(self) -> Texts:
        """What users are told."""
        return self._runtime.texts

    def question_route(self, source: Source) -> QuestionRoute:
        """Return how a question reaches the user."""
        return self._runtime.question_route(source)

    async def ask(
        self,
        session_key: str,
        text: str,
        *,
        source: Source | None = None,
        event_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - threads cannot cancel it
    ) -> Reply:
        """Send a message to another conversation and wait for the reply. See `TurnRuntime.ask`."""
        ask = functools.partial(
            self._runtime.ask,
            session_key,
            text,
            source=source,
            event_id=event_id,
            timeout=timeout,
        )
        return await self._call(ask)


@attrs.frozen
class ThreadConversation:
    """The verbs of `OwnConversation` for a function in a thread, each waiting for its result."""

    _own: OwnConversation
    _call: ThreadCall

    @property
    def session_key(self) -> str:
        """The key of the conversation."""
        return self._own.session_key

    def title(self) -> Title:
        """Return the title."""
        return self._call(self._own.title)

    def set_title(self, title: str) -> None:
        """Set the title. Raises `ValueError` if it is too long or already in use."""
        self._call(lambda: self._own.set_title(title))

    def status(self) -> Status:
        """Return the state of the conversation."""
        return self._call(self._own.status)

    def history(
        self,
        *,
        limit: int | None = None,
        before: int | None = None,
        include_rewound: bool = False,
    ) -> list[StoredMessage]:
        """Return the stored transcript of the current session, without the running turn."""
        page = functools.partial(
            self._own.history, limit=limit, before=before, include_rewound=include_rewound
        )
        return self._call(page)

    def sessions(self, *, limit: int = 20, offset: int = 0) -> list[SessionSummary]:
        """Return the sessions of this key, latest activity first."""
        return self._call(lambda: self._own.sessions(limit=limit, offset=offset))

    def search(self, query: str, *, role: str | None = None, limit: int = 20) -> list[SearchHit]:
        """Search the messages of this key's sessions, best match first."""
        return self._call(functools.partial(self._own.search, query, role=role, limit=limit))


@attrs.frozen
class ThreadRuntime:
    """The verbs of `TurnRuntime` for a function in a thread, each waiting for its result."""

    _runtime: TurnRuntime
    _call: ThreadCall

    @property
    def conversation(self) -> ThreadConversation:
        """The conversation of the turn."""
        return ThreadConversation(self._runtime.conversation, self._call)

    @property
    def texts(self) -> Texts:
        """What users are told."""
        return self._runtime.texts

    def question_route(self, source: Source) -> QuestionRoute:
        """Return how a question reaches the user."""
        return self._runtime.question_route(source)

    def ask(
        self,
        session_key: str,
        text: str,
        *,
        source: Source | None = None,
        event_id: str | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Send a message to another conversation and wait for the reply. See `TurnRuntime.ask`."""
        ask = functools.partial(
            self._runtime.ask,
            session_key,
            text,
            source=source,
            event_id=event_id,
            timeout=timeout,
        )
        return self._call(ask)


@attrs.frozen
class LoopFile:
    """`FileReader` for a coroutine on the event loop of another thread."""

    _reader: FileReader
    _call: LoopCall

    @property
    def file(self) -> StoredFile:
        """What is known of the file."""
        return self._reader.file

    async def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Return bytes from an offset; without a size, all that follow."""
        return await self._call(lambda: self._reader.read(offset, size))


@attrs.frozen
class ThreadFile:
    """The verbs of `FileReader` for a function in a thread, each waiting for its result."""

    _reader: FileReader
    _call: ThreadCall

    @property
    def file(self) -> StoredFile:
        """What is known of the file."""
        return self._reader.file

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Return bytes from an offset; without a size, all that follow."""
        return self._call(lambda: self._reader.read(offset, size))
