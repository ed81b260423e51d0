"""A turn as code in another thread sees it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from hermes import user_code
from hermes.agents.crossing import await_on_trio
from hermes.agents.remote_files import CLOSE_SECONDS, from_loop, from_thread
from hermes.agents.remote_runtime import LoopFile, LoopRuntime, ThreadFile, ThreadRuntime
from hermes.agents.threads import Handover, HostLoop
from hermes.errors import TurnClosed
from hermes.events import AgentEvent
from hermes.messages import (
    Attachment,
    ConversationSettings,
    CostTotals,
    JsonObject,
    Message,
    SearchHit,
    Source,
    StoredFile,
    StoredMessage,
    TurnOptions,
    Usage,
)
from hermes.protocols import Turn

R = TypeVar("R")


class RemoteTurn:
    """A turn for code in another thread; its methods call the runtime's thread."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._token = trio.lowlevel.current_trio_token()
        self._closed = threading.Event()
        self.error: BaseException | None = None
        """Why an event could not be published, if the agent was not told."""

    @property
    def session_key(self) -> str:
        """The key of the conversation."""
        return self._turn.session_key

    @property
    def session_id(self) -> str:
        """The current session of the conversation."""
        return self._turn.session_id

    @property
    def turn_id(self) -> int:
        """The id of the turn; the same if the turn runs again after a crash."""
        return self._turn.turn_id

    @property
    def source(self) -> Source:
        """Where the first message of the turn comes from."""
        return self._turn.source

    @property
    def settings(self) -> ConversationSettings:
        """The settings of the conversation when the turn began."""
        return self._turn.settings

    @property
    def metadata(self) -> JsonObject:
        """The metadata of the messages."""
        return self._turn.metadata

    @property
    def options(self) -> TurnOptions:
        """What an API client wants of this turn."""
        return self._turn.options

    @property
    def input(self) -> Sequence[Message]:
        """The messages to answer, and before them the results of a client's tools."""
        return self._turn.input

    @property
    def text(self) -> str:
        """The input as one text, with a line such as `[image cat.png, 12 kB]` for each file."""
        return self._turn.text

    @property
    def decided_calls(self) -> Sequence[int]:
        """The numbers of the tool calls that the input approves or denies."""
        return self._turn.decided_calls

    @property
    def history(self) -> Sequence[Message | StoredMessage]:
        """The stored rows before this turn. Not a copy: do not keep it after the turn."""
        return self._turn.history

    @property
    def deadline(self) -> float:
        """When the turn is cancelled, on Trio's clock."""
        return self._turn.deadline

    @property
    def records(self) -> None:
        """Always None: tools that record their calls need the runtime's own thread."""
        return

    def ordinal(self, tool: str, arguments: str) -> int:
        """Count a tool call; returns how often the same call was made before in this run."""
        return self._call(lambda: self._turn.ordinal(tool, arguments))

    def messages(self) -> list[Message]:
        """Return history and input as valid messages for a model."""
        return self._turn.messages()

    def charge(self, usage: Usage) -> None:
        """Record a call to a provider; it counts whether or not the turn succeeds."""
        self._call(lambda: self._turn.charge(usage))

    def steered(self) -> list[Message]:
        """Return messages that arrived during the turn and should be taken into account now."""
        return self._call(self._turn.steered)

    def end(self) -> None:
        """Close the turn: from now on its methods raise `TurnClosed`."""
        self._closed.set()

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error

    def _call(self, function: Callable[[], R]) -> R:
        """Call a function in the runtime's thread, and return its result."""

        def call() -> R:
            self._check_open()
            return function()

        self._check_open()
        try:
            return trio.from_thread.run_sync(call, trio_token=self._token)
        except trio.RunFinishedError:
            raise self._closed_error() from None

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise self._closed_error()

    def _closed_error(self) -> TurnClosed:
        return TurnClosed(f"turn {self.turn_id} is over")


class ThreadTurn(RemoteTurn):
    """A turn for a function in a thread. The function should check `cancelled` from time to time.

    Methods raise `TurnClosed` after the turn has ended or was cancelled.
    """

    @property
    def cancelled(self) -> bool:
        """Whether the function should stop, because its answer is no longer wanted."""
        return self._closed.is_set()

    def wait_cancelled(self, seconds: float | None = None) -> bool:
        """Sleep until the turn is cancelled, at most `seconds`; returns `cancelled`."""
        return self._closed.wait(seconds)

    def spent(self) -> CostTotals:
        """Return what the conversation, its user and the day have cost, running turns included."""
        return self._await(self._turn.spent)

    def search(
        self, words: str, *, role: str | None = None, limit: int = 20
    ) -> Sequence[SearchHit]:
        """Search the messages of this conversation, earlier sessions included; best match first."""
        return self._await(functools.partial(self._turn.search, words, role=role, limit=limit))

    def open_file(self, file_id: str) -> ThreadFile:
        """Return a reader of a file of this conversation. Raises `UnknownFile`."""
        reader = self._await(lambda: self._turn.open_file(file_id))
        return ThreadFile(reader, self._await)

    def put_file(self, attachment: Attachment) -> StoredFile:
        """Store a file, for `TurnResult.files`. Raises `AttachmentRefused`.

        Raises `TypeError` for an attachment with `chunks`, which are read on an event loop.
        """
        file = from_thread(attachment)
        return self._await(lambda: self._turn.put_file(file))

    @property
    def runtime(self) -> ThreadRuntime:
        """The conversation of the turn, and others. Raises `TurnClosed` if the turn is over."""
        self._check_open()
        return ThreadRuntime(self._turn.runtime, self._await)

    def _await(self, work: Callable[[], Awaitable[R]], /) -> R:
        """Run an async function in the runtime's thread, and return its result."""
        self._check_open()
        return trio.from_thread.run(work, trio_token=self._token)

    def emit(self, event: AgentEvent) -> None:
        """Publish an event; returns when the runtime has published it."""
        self._call(lambda: self._turn.emit(event))


class LoopTurn(RemoteTurn):
    """A turn for a coroutine on the event loop of another thread.

    Methods raise `TurnClosed` after the turn has ended or was cancelled.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._events: Handover[AgentEvent] = Handover(self._token.run_sync_soon, self._emit)

    async def spent(self) -> CostTotals:
        """Return what the conversation, its user and the day have cost, running turns included."""
        return await self._await(self._turn.spent)

    async def search(
        self, words: str, *, role: str | None = None, limit: int = 20
    ) -> Sequence[SearchHit]:
        """Search the messages of this conversation, earlier sessions included; best match first."""
        search = functools.partial(self._turn.search, words, role=role, limit=limit)
        return await self._await(search)

    async def open_file(self, file_id: str) -> LoopFile:
        """Return a reader of a file of this conversation. Raises `UnknownFile`."""
        reader = await self._await(lambda: self._turn.open_file(file_id))
        return LoopFile(reader, self._await)

    async def put_file(self, attachment: Attachment) -> StoredFile:
        """Store a file, for `TurnResult.files`. Raises `AttachmentRefused`."""
        host = HostLoop(asyncio.get_running_loop(), CLOSE_SECONDS)
        file = from_loop(attachment, host)
        return await self._await(lambda: self._turn.put_file(file))

    @property
    def runtime(self) -> LoopRuntime:
        """The conversation of the turn, and others. Raises `TurnClosed` if the turn is over."""
        self._check_open()
        return LoopRuntime(self._turn.runtime, self._await)

    async def _await(self, function: Callable[[], Awaitable[R]], /) -> R:
        """Run an async function in the runtime's thread, and return its result."""
        self._check_open()
        try:
            return await await_on_trio(self._token, function)
        except trio.RunFinishedError:
            raise self._closed_error() from None

    def emit(self, event: AgentEvent) -> None:
        """Publish an event; does not wait, but keeps the order."""
        self._check_open()
        try:
            self._events.put(event)
        except trio.RunFinishedError:
            raise self._closed_error() from None

    def _emit(self, event: AgentEvent) -> None:
        # Trio ends with an exception that leaves this function.
        with user_code.contained() as caught:
            self._turn.emit(event)
        if isinstance(caught.error, TurnClosed):
            self.end()
        elif caught.error is not None:
            self._fail(caught.error)
