"""What the methods do: the conversations of one client, on a runtime's verbs and nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

import trio

from hermes.actors.compression.compressor import Compressed, CompressionFailed
from hermes.actors.runtime import Runtime
from hermes.actors.session.commands import parse
from hermes.adapters.jsonrpc import types as v
from hermes.adapters.jsonrpc.events import StatusUpdate
from hermes.adapters.jsonrpc.frames import (
    BAD_PARAMS,
    BUSY,
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
from hermes.adapters.jsonrpc.handles import PLATFORM, Handle, Handles, is_ours
from hermes.adapters.jsonrpc.notifications import Notifier
from hermes.adapters.jsonrpc.send_buffer import SendBuffer
from hermes.messages import Busy, Inbound, Receipt, Session, StoredMessage

CLOSED = "rpc_close"


class Conversations:
    """The conversations of one client. Every method can be called at any time."""

    def __init__(self, runtime: Runtime, outgoing: SendBuffer, handles: Handles) -> None:
        self._runtime = runtime
        self._outgoing = outgoing
        self._handles = handles
        self._resuming = trio.Lock()
        self.hearing = Notifier(handles, outgoing, runtime.running_turns())
        self.epoch = secrets.token_hex(8)

    # Beginning and end

    async def create(self, params: v.Create) -> v.Created:
        """Begin a conversation; nothing is stored before its first message."""
        handle = self._handles.new()
        pending = None
        if params.title is not None:
            try:
                pending = (await self._set_title(handle, params.title)).title
            except BaseException:
                self._handles.forget(handle)
                raise
        else:
            await trio.lowlevel.checkpoint()
        return v.Created(handle.id, handle.stored_id, pending)

    async def resume(self, params: v.Resume) -> v.Resumed:
        """Go on with a stored conversation, at its tip; one that is live keeps its handle."""
        target = params.session_id or params.title or ""
        if not target:
            raise Refused(NO_ID)
        handle = self._handles.get(params.session_id) or await self._bind(target)
        if handle.closing:
            raise Refused(NOT_NOW, "The session is being closed.")
        while True:  # until no answer ended meanwhile: it would be in none of the two
            answers = handle.answers
            rows = await self._runtime.history(handle.session_key)
            title = await self._runtime.title(handle.session_key)
            if answers == handle.answers:
                break
        running = self.hearing.running.get(handle.session_key)
        return v.Resumed(
            session_id=handle.id,
            stored_session_id=handle.stored_id,
            title=title.text,
            message_count=len(rows),
            messages=_rows(rows, params.limit),
            running=running is not None or bool(handle.open),
            inflight=None if running is None else v.Inflight(running.turn_id, running.text),
        )

    async def _bind(self, target: str) -> Handle:
        """A handle for a stored conversation: that of the key which leads there, or a new one."""
        async with self._resuming:  # or two would lead two keys to one conversation
            found = await self._runtime.find(target)
            if found is None:
                raise Refused(NOT_FOUND)
            key = next(filter(is_ours, found.session_keys), None)
            handle = None if key is None else self._handles.of_key(key)
            if handle is not None:
                return handle
            handle = self._handles.new(key)
            handle.stored_id = found.session_id
            ended = found.session is not None and found.session.ended_at is not None
            if key is None or ended:
                try:
                    await self._runtime.switch(handle.session_key, found.session_id)
                except BaseException:
                    self._handles.forget(handle)
                    raise
            return handle

    async def close(self, params: v.Session) -> v.Closed:
        """Finalize and end the session that the handle leads to now; the handle is gone then.

        What was submitted before is answered first. A session of another platform is only left.
        """
        handle = self._handles.require(params.session_id)
        handle.closing = True
        try:
            ended = None
            if await self._is_its_own(handle):
                ended = await self._runtime.close(handle.session_key, reason=CLOSED)
        except BaseException:
            handle.closing = False
            raise
        self._handles.forget(handle)
        return v.Closed(closed=True, stored_session_id=ended)

    async def _is_its_own(self, handle: Handle) -> bool:
        session = await self._session(handle)
        return session is None or session.source == PLATFORM

    async def _session(self, handle: Handle) -> Session | None:
        """The stored session that the handle leads to; None where nothing was said yet."""
        found = None if handle.stored_id is None else await self._runtime.find(handle.stored_id)
        return None if found is None else found.session

    async def delete(self, params: v.Delete) -> v.Deleted:
        """Delete a stored conversation for good, with all that compressions had summed up."""
        if not params.session_id:
            raise Refused(NO_ID)
        found = await self._runtime.find(params.session_id)
        if found is None or found.session is None or params.session_id not in found.lineage:
            raise Refused(NOT_FOUND)
        live = {handle.stored_id for handle in self._handles}
        if live.intersection(found.lineage):
            raise Refused(IN_USE)
        return v.Deleted(deleted=True, messages=await self._runtime.delete(params.session_id))

    async def list(self, params: v.List) -> v.Sessions:
        """The stored conversations of all platforms, latest activity first."""
        found = await self._runtime.sessions(None, limit=params.limit, offset=params.offset)
        live = {handle.stored_id: handle.id for handle in self._handles}
        return v.Sessions(
            [
                v.Listed(
                    session_id=each.session.id,
                    title=each.session.title,
                    preview=each.preview,
                    started_at=each.started_at,
                    last_active=each.session.last_active,
                    message_count=each.session.message_count,
                    source=each.session.source,
                    live=live.get(each.session.id),
                )
                for each in found
            ]
        )

    # Messages

    async def submit(self, params: v.Prompt) -> v.Submitted:
        """Say something; it is on disk when this is answered, and runs once."""
        handle = self._handles.require(params.session_id)
        if not params.text.strip():
            raise Refused(NO_TEXT)
        busy = self._busy(handle)
        if busy and params.busy == "reject":
            raise Refused(BUSY)
        receipt = await self._take(handle, params.text, params.busy, params.event_id)
        if params.event_id is not None and await self._runtime.answered(receipt):
            handle.open.discard(receipt.inbox_id)
            return v.Submitted("answered", receipt.inbox_id, handle.stored_id)
        status: v.Taken = "queued" if busy else "streaming"
        if busy and params.busy == "steer":
            status = "steered"
        return v.Submitted(status, receipt.inbox_id, handle.stored_id)

    async def steer(self, params: v.Steer) -> v.Submitted:
        """Say something into the running answer."""
        handle = self._handles.require(params.session_id)
        if not params.text.strip():
            raise Refused(NO_TEXT)
        if not self._busy(handle):
            raise Refused(NO_STEER)
        receipt = await self._take(handle, params.text, "steer", None)
        return v.Submitted("steered", receipt.inbox_id, handle.stored_id)

    async def _take(
        self, handle: Handle, text: str, busy: Busy | None, event_id: str | None
    ) -> Receipt:
        name = uuid4().hex if event_id is None else f"{handle.source.chat_id}:{event_id}"
        inbound = Inbound(
            handle.session_key, name, text, handle.source,
            command=parse(text) is not None, busy=busy,
        )  # fmt: skip
        with _submitting(handle):
            try:
                receipt = await self._runtime.submit(inbound)
            except ValueError as error:
                raise Refused(BAD_PARAMS, f"{error}.") from None
            if receipt.inbox_id not in handle.ended:
                handle.open.add(receipt.inbox_id)
        if handle.stored_id is None:
            self.hearing.led_to(handle, receipt.session_id, "created")
        return receipt

    async def interrupt(self, params: v.Session) -> v.Interrupted:
        """Stop the running answer; what it has said is kept."""
        handle = self._handles.require(params.session_id)
        if await self._runtime.interrupt(handle.session_key):
            return v.Interrupted("interrupted")
        if not handle.open:
            return v.Interrupted("idle")
        await self._take(handle, "/stop", None, None)  # it was taken, and has not begun yet
        return v.Interrupted("interrupted")

    def _busy(self, handle: Handle) -> bool:
        return bool(handle.open) or handle.session_key in self.hearing.running

    def _idle(self, name: str) -> Handle:
        handle = self._handles.require(name)
        if self._busy(handle):
            raise Refused(BUSY, "An answer is running; interrupt it, or wait for its end.")
        return handle

    # The conversation as a whole

    async def title(self, params: v.Title) -> v.Titled:
        """Tell the title, or set it; it waits where nothing was said yet."""
        handle = self._handles.require(params.session_id)
        if params.title is not None:
            return await self._set_title(handle, params.title)
        title = await self._runtime.title(handle.session_key)
        return v.Titled(title.text, title.pending, handle.stored_id)

    async def _set_title(self, handle: Handle, title: str) -> v.Titled:
        if not title.strip():
            raise Refused(NO_TITLE)
        try:
            given = await self._runtime.title(handle.session_key, title)
        except ValueError as error:
            raise Refused(TITLE_REFUSED, f"{error}.") from None
        return v.Titled(given.text, given.pending, handle.stored_id)

    async def history(self, params: v.History) -> v.Transcript:
        """The last messages of a session, as they are stored."""
        if params.stored_session_id is not None:
            found = await self._runtime.find(params.stored_session_id)
            if found is None or params.stored_session_id not in found.lineage:
                raise Refused(NOT_FOUND)
            rows = await self._runtime.transcript(params.stored_session_id)
            place = found.lineage.index(params.stored_session_id)
            parent = found.lineage[place - 1] if place else None
            shown = _rows(rows, params.limit)
            return v.Transcript(params.stored_session_id, parent, len(rows), shown)
        handle = self._handles.require(params.session_id)
        rows = await self._runtime.history(handle.session_key)
        found = None if handle.stored_id is None else await self._runtime.find(handle.stored_id)
        line = () if found is None else found.lineage
        parent = line[-2] if len(line) > 1 else None
        return v.Transcript(handle.stored_id, parent, len(rows), _rows(rows, params.limit))

    async def branch(self, params: v.Branch) -> v.Branched:
        """Copy the conversation; the copy has a handle of its own."""
        handle = self._idle(params.session_id)
        parent = await self._session(handle)
        if parent is None or not parent.message_count:
            raise Refused(NOTHING_TO_BRANCH)
        other = self._handles.new()
        try:
            child = await self._runtime.branch_off(
                handle.session_key, other.session_key, params.name
            )
            title = await self._runtime.title(other.session_key)
        except ValueError as error:
            self._handles.forget(other)
            raise Refused(TITLE_REFUSED, f"{error}.") from None
        except BaseException:
            self._handles.forget(other)
            raise
        other.stored_id = child
        return v.Branched(other.id, child, title.text, parent.id)

    async def undo(self, params: v.Undo) -> v.Undone:
        """Take back the last messages and their answers; they are hidden, and not deleted."""
        handle = self._idle(params.session_id)
        removed = 0
        if await self._session(handle) is not None:
            removed = await self._runtime.rewind(handle.session_key, params.exchanges)
        if not removed:
            raise Refused(OUT_OF_RANGE)
        return v.Undone(removed)

    async def compress(self, params: v.Compress) -> v.Compressed:
        """Sum up the older part now, and go on in a child session."""
        handle = self._idle(params.session_id)
        if await self._session(handle) is None:
            return v.Compressed("skipped", "Not compressed: nothing was said yet.", None)
        self._outgoing.tell(
            "status.update", handle.id, StatusUpdate("compressing", "Summing up the older part.")
        )
        try:
            done = await self._runtime.compress(handle.session_key, params.focus_topic)
        finally:
            self._outgoing.tell("status.update", handle.id, StatusUpdate("ready", "Ready."))
        match done:
            case Compressed(rotated, before, after):
                stored = rotated.session_id
                return v.Compressed("compressed", done.text, stored, before, after)
            case CompressionFailed(text):
                return v.Compressed("failed", text, handle.stored_id)
            case skipped:
                text = f"Not compressed: {skipped.reason}."
                return v.Compressed("skipped", text, handle.stored_id)

    async def replay(self, params: v.Replay) -> v.Replayed:
        """Frames once more, for a client that was away; how far back is bounded."""
        await trio.lowlevel.checkpoint()
        ours = params.epoch in {None, self.epoch}
        found = self._outgoing.replay(params.after if ours else 0)
        return v.Replayed(found.frames, ours and found.complete, found.last, self.epoch)

    async def wait_answered(self) -> None:
        """Wait until every message that was taken has its answer."""
        while any(handle.open for handle in self._handles):
            await self.hearing.wait_answer()


@contextmanager
def _submitting(handle: Handle) -> Iterator[None]:
    """Note what is answered meanwhile: an answer may be told of before its receipt is here."""
    handle.submitting += 1
    try:
        yield
    finally:
        handle.submitting -= 1
        if not handle.submitting:
            handle.ended.clear()


def _rows(rows: Sequence[StoredMessage], limit: int) -> list[v.Row]:
    return [
        v.Row(
            id=row.id,
            role=row.role,
            text=row.content,
            timestamp=row.timestamp,
            tool_calls=[
                {"id": call.id, "name": call.name, "arguments": call.arguments}
                for call in row.tool_calls
            ],
            tool_call_id=row.tool_call_id,
            tool_name=row.tool_name,
            reasoning=row.reasoning,
        )
        for row in rows[-limit:]
    ]
