"""A conversation of a bot in another process, over JSON-RPC."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import msgspec
import trio

from hermes.adapters.console.chat import ChatFile, NamedSession
from hermes.adapters.console.files.local import LocalFile
from hermes.adapters.jsonrpc import events as e, types as t
from hermes.adapters.jsonrpc.client import NOT_CONNECTED, Client, RequestFailed, open_client
from hermes.adapters.jsonrpc.frames import FILE_REFUSED, NO_FILE, EventParams
from hermes.background import set_event
from hermes.errors import ActorStopped, AttachmentRefused, UnknownFile
from hermes.events import (
    ApprovalAsked,
    Envelope,
    MessageAccepted,
    Notice,
    Retrying,
    RuntimeEvent,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import (
    Approval,
    Message,
    Reply,
    ReplyStatus,
    Status,
    StoredFile,
    ToolCall,
    stored_file,
)
from hermes.texts import ENGLISH, Texts

MAX_REMEMBERED = 200
MAX_MESSAGES = 1000
"""How many messages are searched for files."""
STATUS: dict[e.Status, ReplyStatus] = {
    "complete": "complete",
    "interrupted": "interrupted",
    "error": "failed",
}


class RemoteEvents:
    """The events of a conversation in another process; they end with the connection."""

    def __init__(self) -> None:
        self.lost: int = 0
        self._events: deque[Envelope] = deque()
        self._closed = False
        self._arrived = trio.Event()

    def offer(self, envelope: Envelope) -> None:
        """Take an event."""
        if not self._closed:
            self._events.append(envelope)
            set_event(self._arrived)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Envelope:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._events.popleft()

    def close(self) -> None:
        """Stop receiving. Events that have arrived can still be read."""
        self._closed = True
        set_event(self._arrived)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class RemoteReader:
    """Reads a file of the bot in pieces."""

    def __init__(self, file: StoredFile, client: Client, handle: str) -> None:
        self.file: StoredFile = file
        self._client = client
        self._handle = handle

    async def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Return bytes from an offset; without a size, as many as a response has.

        Raises `UnknownFile` if the file was deleted.
        """
        count = t.MAX_CHUNK if size is None else min(size, t.MAX_CHUNK)
        params = t.ReadParams(session_id=self._handle, file=self.file.id, offset=offset, size=count)
        try:
            return (await self._client.call("file.read", params, t.ReadResult)).data
        except RequestFailed as error:
            if error.code != NO_FILE:
                raise
            raise UnknownFile(f"the file {self.file.id} was deleted") from None


class RemoteChat:
    """A conversation in another process; use `open_remote_chat`.

    All calls raise `ActorStopped` if the connection has ended, and `RequestFailed` if the bot
    refuses them.
    """

    def __init__(self, client: Client, session_key: str, texts: Texts) -> None:
        self._client = client
        self._session_key = session_key
        self.texts: Texts = texts
        self._handle = ""
        self._turn_id: int | None = None
        """The running turn."""
        self._running: tuple[int, ...] = ()
        """The inbox ids of its messages."""
        self._asked: list[tuple[int | None, e.ApprovalRequest]] = []
        self._decision = 0
        """The questions of approval since `attach`, with their turns."""
        self._events = RemoteEvents()
        self._answers: OrderedDict[int, e.MessageComplete] = OrderedDict()
        """The latest answers, by the inbox ids of their messages."""
        self._changed = trio.Event()
        client.on_event = self._receive
        client.on_end = self._end

    @property
    def ended(self) -> bool:
        """Whether the bot has closed the connection."""
        return self._client.ended

    async def attach(self) -> None:
        """Open the conversation. What is running is received from its beginning."""
        params = t.AttachParams(session_key=self._session_key)
        await self._client.call("session.attach", params, t.AttachResult, then=self._attached)

    def _attached(self, result: t.AttachResult) -> None:
        self._handle = result.session_id
        if (running := result.inflight) is not None:
            self._turn_id = running.turn_id
            started = TurnStarted(running.turn_id, result.stored_session_id or "", None)
            self._offer(0, started, running.turn_id)
            self._offer(0, TextDelta(running.text), running.turn_id)

    # Verbs

    def subscribe(self) -> RemoteEvents:
        """Return the events since `attach`; there is one subscriber."""
        return self._events

    def has_sent(self, event: MessageAccepted) -> bool:
        """Return False: the bot reports only messages of others."""
        return False

    async def submit(self, text: str, files: Sequence[LocalFile] = ()) -> int:
        """Send a message or a command; returns its inbox id once it is on disk.

        The files are read here, and uploaded before. Raises `AttachmentRefused` if the bot refuses
        one of them.
        """
        parts = [t.Part(file=await self._upload(each)) for each in files]
        params = t.SubmitParams(session_id=self._handle, text=text, parts=parts)
        return (await self._client.call("prompt.submit", params, t.SubmitResult)).message_id

    async def _upload(self, file: LocalFile) -> str:
        try:
            return (await self._client.upload(self._handle, file.attachment)).id
        except RequestFailed as error:
            if error.code != FILE_REFUSED:
                raise
            raise AttachmentRefused(str(error).rstrip(".")) from None

    async def ask(self, text: str, files: Sequence[LocalFile] = ()) -> int:
        """Send a message or a command, and wait for its answer; returns the id of its turn."""
        return (await self.answer_to(await self.submit(text, files))).turn_id

    async def files(self) -> Sequence[ChatFile]:
        """Return the files of the latest messages of the current session, oldest first."""
        params = t.HistoryParams(session_id=self._handle, limit=MAX_MESSAGES)
        found = await self._client.call("session.history", params, t.HistoryResult)
        parts = [part for row in found.messages for part in row.parts if part.file is not None]
        return [ChatFile(part.stored.part, self._session_key) for part in parts]

    async def open_file(self, file: ChatFile) -> RemoteReader:
        """Return a reader of a file."""
        return RemoteReader(stored_file(file.part), self._client, self._handle)

    async def answer_to(self, inbox_id: int) -> e.MessageComplete:
        """Wait for the answer to a message that was sent here."""
        while inbox_id not in self._answers:
            if self.ended:
                raise ActorStopped(NOT_CONNECTED)
            await self._changed.wait()
        return self._answers[inbox_id]

    def decision_after(self, inbox_id: int) -> int | None:
        """Return the message to the agent about a decision that this command has made, if any."""
        return self._decision if self._decision > inbox_id else None

    def is_running(self, inbox_id: int) -> bool:
        """Return whether the turn of a message is running."""
        return self._turn_id is not None and inbox_id in self._running

    def asked_in(self, turn_id: int) -> list[e.ApprovalRequest]:
        """Return the approvals that a turn has asked for."""
        return [request for turn, request in self._asked if turn == turn_id]

    async def status(self) -> Status:
        """Return the state of the conversation."""
        params = t.SessionParams(session_id=self._handle)
        found = await self._client.call("session.status", params, t.StatusResult)
        return Status(
            session_key=self._session_key,
            session_id=found.stored_session_id,
            title=found.title,
            message_count=found.message_count,
            busy=found.running,
            waiting=found.waiting,
            context_tokens=found.context_tokens,
            compress_at=0,
            window=found.window,
            builds={},
            model=found.model,
            cost=found.cost,
        )

    async def interrupt(self) -> bool:
        """Interrupt the running turn; returns whether there was one."""
        params = t.SessionParams(session_id=self._handle)
        done = await self._client.call("session.interrupt", params, t.InterruptResult)
        return done.status == "interrupted"

    async def sessions(self, limit: int) -> Sequence[NamedSession]:
        """Return the sessions that can be resumed, latest activity first."""
        params = t.ListParams(session_id=self._handle, limit=limit)
        found = await self._client.call("session.list", params, t.ListResult)
        return [NamedSession(each.session_id, each.title) for each in found.sessions]

    # Events

    def _receive(self, frame: EventParams) -> None:
        if frame.type == "status.update" and frame.payload["kind"] == "shed":
            self._events.lost += 1
        elif frame.session_id == self._handle:
            event = self._event(frame.type, frame.payload)
            if event is not None:
                self._offer(frame.seq, event, self._turn_id)
            if isinstance(event, TurnEnded) and event.reply.turn_id == self._turn_id:
                self._turn_id = None

    def _offer(self, seq: int, event: RuntimeEvent, turn_id: int | None) -> None:
        self._events.offer(Envelope(seq, self._session_key, turn_id, event))

    def _event(self, kind: str, payload: Any) -> RuntimeEvent | None:
        """Return an event of the protocol in the form of the runtime."""
        given = msgspec.convert(payload, e.EVENTS[kind]) if kind in e.EVENTS else None
        event: RuntimeEvent | None = None
        match given:
            case e.MessageStart():
                self._turn_id, ids = given.turn_id, tuple(given.message_ids)
                self._running = ids
                event = TurnStarted(given.turn_id, given.stored_session_id, None, ids)
            case e.MessageComplete():
                event = self._ended(given)
            case e.Delta() if kind == "message.delta":
                event = TextDelta(given.text)
            case e.ToolStart():
                event = ToolStarted(ToolCall(given.call_id, given.name, given.arguments))
            case e.ToolComplete():
                event = ToolFinished(given.call_id, given.content, given.failed)
            case e.StatusUpdate():
                event = _status(given)
            case e.ApprovalRequest() | e.MessageAccepted():
                event = self._asked_or_accepted(given)
        return event

    def _asked_or_accepted(
        self, given: e.ApprovalRequest | e.MessageAccepted
    ) -> RuntimeEvent | None:
        if isinstance(given, e.ApprovalRequest):
            self._asked = [*self._asked, (self._turn_id, given)][-MAX_REMEMBERED:]
            return ApprovalAsked(self._approval(given))
        if given.decided_call is not None:
            self._decision = given.message_id
            return None
        return MessageAccepted(
            given.text,
            given.message_id,
            platform=given.platform,
            parts=tuple(msgspec.to_builtins(part) for part in given.parts),
        )

    def _ended(self, given: e.MessageComplete) -> TurnEnded:
        for inbox_id in given.message_ids:
            self._answers[inbox_id] = given
        while len(self._answers) > MAX_REMEMBERED:
            self._answers.popitem(last=False)
        self._notify()
        status = given.reply_status or STATUS[given.status]
        reply = Reply(
            text=given.text,
            session_id=given.stored_session_id,
            turn_id=given.turn_id,
            status=status,
            error=given.error,
            files=tuple(part.stored for part in given.files or ()),
        )
        return TurnEnded(reply, tuple(given.message_ids), dropped_by=given.dropped_by or None)

    def _approval(self, given: e.ApprovalRequest) -> Approval:
        return Approval(
            given.number, self._session_key, self._session_key, given.tool, given.arguments,
            "pending", 0.0, given.expires_at,
        )  # fmt: skip

    def _end(self) -> None:
        self._events.close()
        self._notify()

    def _notify(self) -> None:
        set_event(self._changed)
        self._changed = trio.Event()


def _status(given: e.StatusUpdate) -> RuntimeEvent | None:
    match given.kind:
        case "notice":
            return Notice(given.text)
        case "retrying":
            return Retrying(0.0, given.text)
        case "steered":
            return Steered(Message("user"), tuple(given.message_ids))
        case _:
            return None


@asynccontextmanager
async def open_remote_chat(
    stream: trio.abc.Stream, session_key: str, texts: Texts = ENGLISH
) -> AsyncIterator[RemoteChat]:
    """Open a conversation of the bot at the other end of a stream.

    `texts` has the question for approvals. Raises what `RemoteChat` raises.
    """
    async with open_client(stream) as client:
        chat = RemoteChat(client, session_key, texts)
        await chat.attach()
        yield chat
