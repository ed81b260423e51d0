"""Translates runtime events into JSON-RPC events for one client."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import attrs
import trio
from msgspec import UNSET
from msgspec.structs import replace

from hermes.adapters.jsonrpc import events as e
from hermes.adapters.jsonrpc.handles import Handle, Handles
from hermes.adapters.jsonrpc.send_buffer import SendBuffer
from hermes.background import set_event
from hermes.events import (
    ApprovalAsked,
    Envelope,
    MessageAccepted,
    Notice,
    ReasoningDelta,
    Retrying,
    RuntimeEvent,
    SessionMoved,
    Steered,
    TextDelta,
    TitleChanged,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Reply, ReplyStatus, RunningTurnInfo, TurnProgress, Usage
from hermes.sanitize import visible
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

STATUS: dict[ReplyStatus, e.Status] = {
    "complete": "complete",
    "command": "complete",
    "partial": "complete",
    "interrupted": "interrupted",
    "withdrawn": "interrupted",
    "failed": "error",
    "refused": "error",
}


@attrs.define
class RunningAnswer:
    """A running answer, and its text so far."""

    turn_id: int
    texts: list[str] = attrs.Factory(list)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


class Notifier:
    """Sends the events of a client's conversations, and tracks the text of all running answers."""

    def __init__(
        self, handles: Handles, buffer: SendBuffer, running: Mapping[str, RunningTurnInfo]
    ) -> None:
        self._handles = handles
        self._buffer = buffer
        self._answered = trio.Event()
        self.running: dict[str, RunningAnswer] = {
            key: RunningAnswer(turn.turn_id, [turn.text]) for key, turn in running.items()
        }

    async def wait_answer(self) -> None:
        """Wait until the next message is answered."""
        await self._answered.wait()

    def learn(self, session_key: str, turn: TurnProgress | None) -> RunningAnswer | None:
        """Note a turn whose start was not received; another node runs it."""
        if turn is None:
            return None
        answer = self.running[session_key] = RunningAnswer(turn.turn_id, [turn.text])
        return answer

    def handle(self, envelope: Envelope) -> None:
        """Handle an event of any conversation."""
        with contained() as caught:  # an agent may emit anything, even invalid values
            event = self._track(envelope)
            handle = self._handles.find(envelope.session_key)
            if handle is not None and isinstance(event, MessageAccepted):
                self._send_accepted(handle, event)
            elif handle is not None:
                self._send(handle, envelope.turn_id, event)
        if caught.error is not None:
            log.error(
                "an event of %s could not be sent", envelope.session_key, exc_info=caught.error
            )

    def _track(self, envelope: Envelope) -> RuntimeEvent:
        """Track the running answer. Returns the event; that of an interrupted turn has its text."""
        key, event = envelope.session_key, envelope.event
        match event:
            case TurnStarted(turn_id):
                self.running[key] = RunningAnswer(turn_id)
            case TextDelta(_, restart) if restart and key in self.running:
                self.running[key].texts.clear()  # another attempt starts from the beginning
            case TextDelta(text) if key in self.running:
                self.running[key].texts.append(f"{text}")
            case TurnEnded(reply) if key in self.running:
                if self.running[key].turn_id == reply.turn_id:
                    answer = self.running.pop(key)
                    if reply.status == "interrupted" and not reply.text:
                        return replace(event, reply=replace(reply, text=answer.text))
        return event

    def moved_to(self, handle: Handle, stored_id: str, reason: str) -> None:
        """Set the stored session of a handle, and send `session.info` if it has changed."""
        if stored_id and stored_id != handle.stored_id:
            old, handle.stored_id = handle.stored_id, stored_id
            self._buffer.send_event(
                "session.info", handle.id, e.SessionInfo(stored_id, old, reason)
            )

    def _send(self, handle: Handle, turn_id: int | None, event: RuntimeEvent) -> None:
        match event:
            case TextDelta(text):
                self._buffer.send_delta("message.delta", handle.id, turn_id, f"{text}")
            case ReasoningDelta(text):
                self._buffer.send_delta("reasoning.delta", handle.id, turn_id, f"{text}")
            case TurnStarted(started_id, session_id, _, inbox_ids):
                self.moved_to(handle, session_id, "created")
                start = e.MessageStart(started_id, [*inbox_ids], session_id)
                self._buffer.send_event("message.start", handle.id, start)
            case TurnEnded(reply, inbox_ids, _, dropped_by):
                self._end_turn(handle, reply, inbox_ids, dropped_by)
            case SessionMoved(_, new, reason) if not handle.closing:
                self.moved_to(handle, new, reason)
            case _:
                self._send_other(handle, event)

    def _send_accepted(self, handle: Handle, event: MessageAccepted) -> None:
        """Report a message of somebody else, or about a decision."""
        parts = e.file_parts(event.parts)
        new = (event.text or parts) and event.event_id not in handle.sent
        if event.decided_call is not None or new:
            accepted = e.MessageAccepted(
                event.inbox_id, event.text, event.platform, event.decided_call, parts
            )
            self._buffer.send_event("message.accepted", handle.id, accepted)

    def _send_other(self, handle: Handle, event: RuntimeEvent) -> None:
        send = self._buffer.send_event
        match event:
            case ToolStarted(call):
                send("tool.start", handle.id, e.ToolStart(call.id, call.name, call.arguments))
            case ToolFinished(call_id, content, failed):
                send("tool.complete", handle.id, e.ToolComplete(call_id, content, failed))
            case Steered(_, inbox_ids):
                text = "The agent has received your message."
                update = e.StatusUpdate("steered", text, [*inbox_ids])
                send("status.update", handle.id, update)
            case Retrying(_, text):
                send("status.update", handle.id, e.StatusUpdate("retrying", text))
            case Notice(text):
                send("status.update", handle.id, e.StatusUpdate("notice", text))
            case TitleChanged(session_id, title):
                send("session.title", handle.id, e.SessionTitle(session_id, title))
            case ApprovalAsked(approval):
                arguments = visible(approval.arguments)
                request = e.ApprovalRequest(
                    approval.approval_id, approval.tool, arguments, approval.expires_at
                )
                send("approval.request", handle.id, request, [approval])

    def _end_turn(
        self, handle: Handle, reply: Reply, inbox_ids: Sequence[int], dropped_by: int | None
    ) -> None:
        # No other event reports it if the agent itself has continued in another session.
        self.moved_to(handle, reply.session_id, "compression")
        handle.answer_count += 1
        handle.pending.difference_update(inbox_ids)
        if handle.submitting:
            handle.answered.update(inbox_ids)
        set_event(self._answered)
        self._answered = trio.Event()
        # The text of a turn does not show its questions; that of `/approve show` does.
        shows = reply.approvals if reply.status == "command" else ()
        ended = completion(reply, inbox_ids, dropped_by)
        self._buffer.send_event("message.complete", handle.id, ended, shows)


def completion(
    reply: Reply, inbox_ids: Sequence[int], dropped_by: int | None = None
) -> e.MessageComplete:
    """Return a reply in the form of the event `message.complete`."""
    return e.MessageComplete(
        turn_id=reply.turn_id,
        message_ids=[*inbox_ids],
        text=reply.text,
        status=STATUS[reply.status],
        usage=_total(reply.usage),
        stored_session_id=reply.session_id,
        error=reply.error,
        reply_status=UNSET if reply.status == STATUS[reply.status] else reply.status,
        dropped_by=UNSET if dropped_by is None else dropped_by,
        files=e.file_parts([file.part for file in reply.files]) or UNSET,
    )


def _total(usage: Sequence[Usage]) -> e.TokenUsage:
    costs = [call.cost for call in usage if call.cost is not None]
    return e.TokenUsage(
        input_tokens=sum(call.input_tokens for call in usage),
        output_tokens=sum(call.output_tokens for call in usage),
        cache_read_tokens=sum(call.cache_read_tokens for call in usage),
        cache_write_tokens=sum(call.cache_write_tokens for call in usage),
        reasoning_tokens=sum(call.reasoning_tokens for call in usage),
        cost=sum(costs) if costs else None,
    )
