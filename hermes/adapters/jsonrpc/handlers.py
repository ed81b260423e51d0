"""Handlers of the JSON-RPC methods, for one client."""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from uuid import uuid4

import trio

from hermes.actors.commands import recognize
from hermes.actors.runtime import Runtime
from hermes.adapters.jsonrpc import types as t
from hermes.adapters.jsonrpc.events import MessageComplete, StatusUpdate
from hermes.adapters.jsonrpc.files.handlers import FileHandlers, message_parts
from hermes.adapters.jsonrpc.frames import (
    BAD_PARAMS,
    BUSY,
    FILE_REFUSED,
    IN_USE,
    NO_ID,
    NO_STEER,
    NO_TEXT,
    NO_TITLE,
    NOT_FOUND,
    NOT_NOW,
    NOTHING_TO_BRANCH,
    OUT_OF_RANGE,
    TITLE_REFUSED,
    Refused,
)
from hermes.adapters.jsonrpc.handles import PLATFORM, Handle, Handles, submitting
from hermes.adapters.jsonrpc.notifications import Notifier, completion
from hermes.adapters.jsonrpc.opening import Opener
from hermes.adapters.jsonrpc.rows import last_rows, listed, status_result
from hermes.adapters.jsonrpc.send_buffer import SendBuffer
from hermes.errors import AttachmentRefused, ReplyNotFound
from hermes.messages import Inbound, Receipt, Session, SessionMatch, WhenBusy

END_REASON = "rpc_close"


class Handlers(FileHandlers):
    """The methods of one client; all of them may run concurrently.

    The first paragraph of a method's docstring is its summary in the schema and in
    docs/jsonrpc.md.
    """

    def __init__(
        self, runtime: Runtime, buffer: SendBuffer, handles: Handles, nursery: trio.Nursery,
        upload_idle: float,
    ) -> None:  # fmt: skip
        super().__init__(runtime, buffer, handles, nursery, upload_idle)
        self._opener = Opener(runtime, handles)
        self.notifier: Notifier = Notifier(handles, buffer, runtime.admin.running_turns())
        self.epoch: str = secrets.token_hex(8)

    # Sessions

    async def create(self, params: t.CreateParams) -> t.CreateResult:
        """Open a new conversation, or the one with this name.

        Nothing is stored before the first message. The title is set if nothing is stored yet.
        """
        handle, is_new = await self._opener.create(params.conversation)
        _require_open(handle)
        pending = None
        if params.title is not None and handle.stored_id is None:
            with self._opener.remove_on_failure(handle) if is_new else nullcontext():
                pending = (await self._set_title(handle, params.title)).title
        elif params.conversation is not None:
            title = await self._conversation(handle).title()
            pending = title.text if title.pending else None
        return t.CreateResult(handle.id, handle.stored_id, pending, handle.conversation)

    async def attach(self, params: t.AttachParams) -> t.AttachResult:
        """Open the conversation with this session key, as it is, beside its other users."""
        try:
            handle = _require_open(await self._opener.attach(params.session_key))
        except ValueError as error:
            raise Refused(BAD_PARAMS, f"{error}.") from None
        return t.AttachResult(handle.id, handle.stored_id, self._inflight(handle))

    async def status(self, params: t.SessionParams) -> t.StatusResult:
        """Return the state of a conversation: its size, its model and its cost."""
        handle = self._handles.require(params.session_id)
        return status_result(await self._conversation(handle).status())

    def _inflight(self, handle: Handle) -> t.Inflight | None:
        running, api = self.notifier.running.get(handle.session_key), self._runtime.api
        if running is None and api.is_elsewhere(handle.session_key):
            running = self.notifier.learn(handle.session_key, api.progress(handle.session_key))
        return None if running is None else t.Inflight(running.turn_id, running.text)

    async def resume(self, params: t.ResumeParams) -> t.ResumeResult:
        """Continue a stored conversation; one that is open already keeps its handle."""
        target = params.session_id or params.title or ""
        if not target:
            raise Refused(NO_ID)
        known = self._handles.get(params.session_id)
        handle = _require_open(known or await self._opener.resume(target))
        await self._match(handle)
        while True:  # until no answer ended in the meantime: it would be in neither of the two
            count = handle.answer_count
            rows = await self._conversation(handle).history(include_waiting=False)
            title = await self._conversation(handle).title()
            if count == handle.answer_count:
                break
        inflight = self._inflight(handle)
        return t.ResumeResult(
            session_id=handle.id,
            stored_session_id=handle.stored_id,
            title=title.text,
            message_count=len(rows),
            messages=last_rows(rows, params.limit),
            running=inflight is not None or bool(handle.pending),
            inflight=inflight,
            conversation=handle.conversation,
        )

    async def close(self, params: t.SessionParams) -> t.CloseResult:
        """Finalize and end the current stored session, and remove the handle.

        Messages submitted before are answered first. A session of another platform is not ended.
        """
        handle = self._handles.require(params.session_id)
        handle.closing = True
        try:
            await self.stop_uploads(handle)
            ended = None
            if await self._is_own_session(handle):
                change = await self._conversation(handle).close(reason=END_REASON)
                ended = change.old_session_id
        except BaseException:  # undone also if cancelled, then raised
            handle.closing = False
            raise
        self._handles.remove(handle)
        return t.CloseResult(closed=True, stored_session_id=ended)

    async def _is_own_session(self, handle: Handle) -> bool:
        session = await self._session(handle)
        return session is None or session.source == PLATFORM

    async def _session(self, handle: Handle) -> Session | None:
        """Return the stored session of a handle; None before the first message."""
        found = await self._match(handle)
        return None if found is None else found.session

    async def _match(self, handle: Handle) -> SessionMatch | None:
        """Return the stored conversation of a handle, which may be in another session by now."""
        stored_id = handle.stored_id
        found = None if stored_id is None else await self._runtime.admin.find(stored_id)
        if found is not None and handle.stored_id == stored_id:
            self.notifier.moved_to(handle, found.session_id, "compression")
        return found

    async def delete(self, params: t.DeleteParams) -> t.DeleteResult:
        """Delete a stored conversation, including its messages before compressions."""
        if not params.session_id:
            raise Refused(NO_ID)
        found = await self._opener.find(params.session_id, by_id=True)
        if found.session is None:
            raise Refused(NOT_FOUND)
        open_ids = {handle.stored_id for handle in self._handles}
        if open_ids.intersection(found.lineage):
            raise Refused(IN_USE)
        return t.DeleteResult(
            deleted=True, messages=await self._runtime.admin.delete(params.session_id)
        )

    async def list(self, params: t.ListParams) -> t.ListResult:
        """List the stored conversations of all platforms, most recently active first."""
        sessions = self._runtime.admin.sessions
        if params.session_id is not None:
            sessions = self._conversation(self._handles.require(params.session_id)).sessions
        found = await sessions(
            include_subagents=params.include_subagents, include_archived=params.include_archived,
            limit=params.limit, offset=params.offset,
        )  # fmt: skip
        live = {handle.stored_id: handle.id for handle in self._handles}
        return t.ListResult([listed(each, live.get(each.session.id)) for each in found])

    # Messages

    async def submit(self, params: t.SubmitParams) -> t.SubmitResult:
        """Submit a message; it is on disk when the response is sent, and is processed once."""
        handle = self._handles.require(params.session_id)
        _require_content(params)
        busy = self._is_busy(handle)
        sent_to = await self._sent_to(handle, params, busy=busy)
        if busy and params.busy == "reject" and sent_to is None:
            raise Refused(BUSY)
        receipt = await self._submit(handle, params, params.busy, params.event_id, sent_to)
        if params.event_id is not None and await self._is_answered(handle, receipt):
            handle.pending.discard(receipt.inbox_id)
            reply = await self._reply(receipt)
            return t.SubmitResult("answered", receipt.inbox_id, handle.stored_id, reply)
        status: t.SubmitStatus = "queued" if busy else "streaming"
        if busy and params.busy == "steer":
            status = "steered"
        return t.SubmitResult(status, receipt.inbox_id, handle.stored_id)

    async def _sent_to(self, handle: Handle, params: t.SubmitParams, *, busy: bool) -> str | None:
        """Return the conversation to which a repeated message was sent, if it has to be known."""
        if params.event_id is not None and (handle.others or (busy and params.busy == "reject")):
            for name in (handle.conversation, *handle.others):
                (source, key), event_id = handle.origin(name), f"{name}:{params.event_id}"
                if await self._runtime.receipt_of(key, event_id, source=source):
                    return name
        return None

    async def _is_answered(self, handle: Handle, receipt: Receipt) -> bool:
        """Return whether a message was answered; if not, `message.complete` is not sent yet.

        A message of another conversation counts as answered: `_reply` waits for its reply.
        """
        answered = await self._runtime.is_answered(receipt)
        return answered or receipt.inbox_id not in handle.pending  # answered in the meantime

    async def _reply(self, receipt: Receipt) -> MessageComplete | None:
        """Return the stored reply to a message that was answered."""
        try:
            return completion(await self._runtime.wait(receipt), [receipt.inbox_id])
        except ReplyNotFound:
            return None

    async def steer(self, params: t.SteerParams) -> t.SubmitResult:
        """Send a message to the running answer."""
        handle = self._handles.require(params.session_id)
        _require_content(params)
        if not self._is_busy(handle):
            raise Refused(NO_STEER)
        receipt = await self._submit(handle, params, "steer")
        return t.SubmitResult("steered", receipt.inbox_id, handle.stored_id)

    async def _submit(
        self, handle: Handle, params: t.SteerParams, busy: WhenBusy | None,
        event_id: str | None = None, sent_to: str | None = None,
    ) -> Receipt:  # fmt: skip
        name = sent_to or handle.conversation
        # Earlier versions stored ids in this form, without a scope.
        unique_id = uuid4().hex if event_id is None else f"{name}:{event_id}"
        text, command = recognize(params.text)
        source, key = handle.origin(name)
        parts, attachments = message_parts(params.parts)
        inbound = Inbound(
            key, unique_id, text, source, parts=tuple(parts) or None,
            command=command, when_busy=busy, per_conversation=True,
        )  # fmt: skip
        handle.sent.append(unique_id)
        with submitting(handle):
            try:
                receipt = await self._accept(inbound, attachments)
            except ValueError as error:
                code = FILE_REFUSED if isinstance(error, AttachmentRefused) else BAD_PARAMS
                raise Refused(code, f"{error}.") from None
            if receipt.session_key != handle.session_key:
                return receipt
            if receipt.inbox_id not in handle.answered:
                handle.pending.add(receipt.inbox_id)
        if handle.stored_id is None:
            self.notifier.moved_to(handle, receipt.session_id, "created")
        return receipt

    async def interrupt(self, params: t.SessionParams) -> t.InterruptResult:
        """Interrupt the running answer; its text so far is kept."""
        handle = self._handles.require(params.session_id)
        if await self._conversation(handle).interrupt():
            return t.InterruptResult("interrupted")
        if not handle.pending:
            return t.InterruptResult("idle")
        stop = t.SteerParams(session_id=handle.id, text="/stop")
        await self._submit(handle, stop, None)  # accepted, but not started yet
        return t.InterruptResult("interrupted")

    def _is_busy(self, handle: Handle) -> bool:
        return bool(handle.pending) or handle.session_key in self.notifier.running

    def _require_idle(self, handle_id: str) -> Handle:
        handle = self._handles.require(handle_id)
        if self._is_busy(handle):
            raise Refused(BUSY, "An answer is running; interrupt it or wait for its end.")
        return handle

    # Transcripts

    async def title(self, params: t.TitleParams) -> t.TitleResult:
        """Return or set the title; it is pending until the session is stored."""
        handle = self._handles.require(params.session_id)
        if params.title is not None:
            return await self._set_title(handle, params.title)
        return await self._title(handle)

    async def _set_title(self, handle: Handle, title: str) -> t.TitleResult:
        if not title.strip():
            raise Refused(NO_TITLE)
        try:
            await self._conversation(handle).set_title(title)
        except ValueError as error:
            raise Refused(TITLE_REFUSED, f"{error}.") from None
        return await self._title(handle)

    async def _title(self, handle: Handle) -> t.TitleResult:
        await self._match(handle)
        title = await self._conversation(handle).title()
        return t.TitleResult(title.text, title.pending, handle.stored_id)

    async def history(self, params: t.HistoryParams) -> t.HistoryResult:
        """Return the last messages of a session, or those before a given one, as stored."""
        if params.stored_session_id is not None:
            stored = await self._opener.find(params.stored_session_id, by_id=True)
            rows = await self._runtime.admin.messages(params.stored_session_id)
            index = stored.lineage.index(params.stored_session_id)
            parent = stored.lineage[index - 1] if index else None
            messages = last_rows(rows, params.limit, params.before)
            return t.HistoryResult(params.stored_session_id, parent, len(rows), messages)
        handle = self._handles.require(params.session_id)
        rows = await self._conversation(handle).history(include_waiting=False)
        found = await self._match(handle)
        lineage = () if found is None else found.lineage
        parent = lineage[-2] if len(lineage) > 1 else None
        messages = last_rows(rows, params.limit, params.before)
        return t.HistoryResult(handle.stored_id, parent, len(rows), messages)

    async def branch(self, params: t.BranchParams) -> t.BranchResult:
        """Copy the conversation; the copy has its own handle."""
        handle = self._require_idle(params.session_id)
        parent = await self._session(handle)
        if parent is None or not parent.message_count:
            raise Refused(NOTHING_TO_BRANCH)
        copy = self._handles.new()
        with self._opener.remove_on_failure(copy):
            try:
                branch = await self._conversation(handle).branch(params.name, to=copy.session_key)
                title = await self._conversation(copy).title()
            except ValueError as error:
                raise Refused(TITLE_REFUSED, f"{error}.") from None
        child = branch.session_id
        assert child is not None
        copy.stored_id = child
        return t.BranchResult(copy.id, child, title.text, parent.id, copy.conversation)

    async def undo(self, params: t.UndoParams) -> t.UndoResult:
        """Undo the last messages and their answers; they are hidden, not deleted."""
        handle = self._require_idle(params.session_id)
        removed = 0
        if await self._session(handle) is not None:
            removed = (await self._conversation(handle).undo(params.exchanges)).removed
        if not removed:
            raise Refused(OUT_OF_RANGE)
        return t.UndoResult(removed)

    async def compress(self, params: t.CompressParams) -> t.CompressResult:
        """Summarize the older messages now, and continue in a child session."""
        handle = self._require_idle(params.session_id)
        if await self._session(handle) is None:
            return t.CompressResult("skipped", "Not compressed: the session is empty.", None)
        self._send_status(handle, StatusUpdate("compressing", "Summarizing older messages."))
        try:
            change = await self._conversation(handle).compress(params.focus_topic)
        finally:
            self._send_status(handle, StatusUpdate("ready", "Ready."))
        detail = change.detail or ""
        if change.changed:
            before, after = change.tokens_before, change.tokens_after
            return t.CompressResult("compressed", detail, change.session_id, before, after)
        if change.failed:
            return t.CompressResult("failed", detail, handle.stored_id)
        return t.CompressResult("skipped", detail, handle.stored_id)

    def _send_status(self, handle: Handle, status: StatusUpdate) -> None:
        self._buffer.send_event("status.update", handle.id, status)

    # Events

    async def replay(self, params: t.ReplayParams) -> t.ReplayResult:
        """Return frames again, for a client that was disconnected; recent ones are kept."""
        await trio.lowlevel.checkpoint()
        same_epoch = params.epoch in {None, self.epoch}
        found = self._buffer.replay(params.after if same_epoch else 0)
        return t.ReplayResult(found.frames, same_epoch and found.complete, found.last, self.epoch)

    async def wait_answered(self) -> None:
        """Wait until every accepted message is answered."""
        while any(handle.pending for handle in self._handles):
            await self.notifier.wait_answer()


def _require_content(params: t.SteerParams) -> None:
    if not (params.text.strip() or params.parts):
        raise Refused(NO_TEXT)


def _require_open(handle: Handle) -> Handle:
    if handle.closing:
        raise Refused(NOT_NOW, "The session is being closed.")
    return handle
