"""From what happens in a runtime to what one client is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import attrs
import trio

from hermes.adapters.jsonrpc import events as e
from hermes.adapters.jsonrpc.handles import Handle, Handles
from hermes.adapters.jsonrpc.send_buffer import SendBuffer
from hermes.events import (
    ApprovalAsked,
    Envelope,
    Notice,
    ReasoningDelta,
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
from hermes.messages import Reply, ReplyStatus, RunningTurnInfo, Usage

log = logging.getLogger(__name__)

STATUS: dict[ReplyStatus, e.Status] = {
    "complete": "complete",
    "command": "complete",
    "interrupted": "interrupted",
    "failed": "error",
    "refused": "error",
}


@attrs.define
class RunningAnswer:
    """An answer that is running, and its text so far."""

    turn_id: int
    texts: list[str] = attrs.Factory(list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Notifier:
    """Tells a client of its conversations, and knows what every running answer has said so far."""

    def __init__(
        self, handles: Handles, outgoing: SendBuffer, running: Mapping[str, RunningTurnInfo]
    ) -> None:
        self._handles = handles
        self._outgoing = outgoing
        self._answer = trio.Event()
        self.running = {
            key: RunningAnswer(turn.turn_id, [turn.text]) for key, turn in running.items()
        }

    async def wait_answer(self) -> None:
        """Wait until a message has its answer."""
        await self._answer.wait()

    def hear(self, envelope: Envelope) -> None:
        """Something happened, to one of the client's conversations or to another."""
        try:
            self._follow(envelope)
            handle = self._handles.of_key(envelope.session_key)
            if handle is not None:
                self._tell(handle, envelope.turn_id, envelope.event)
        except Exception:  # an agent may emit anything: it must not end the connection
            log.exception("an event of %s could not be told", envelope.session_key)

    def _follow(self, envelope: Envelope) -> None:
        key = envelope.session_key
        match envelope.event:
            case TurnStarted(turn_id):
                self.running[key] = RunningAnswer(turn_id)
            case TextDelta(text) if key in self.running:
                self.running[key].texts.append(f"{text}")
            case TurnEnded(reply) if key in self.running:
                if self.running[key].turn_id == reply.turn_id:
                    del self.running[key]

    def led_to(self, handle: Handle, stored_id: str, reason: str) -> None:
        """The handle leads to this session now; says so where that is news."""
        if stored_id and stored_id != handle.stored_id:
            old, handle.stored_id = handle.stored_id, stored_id
            self._outgoing.tell("session.info", handle.id, e.SessionInfo(stored_id, old, reason))

    def _tell(self, handle: Handle, turn_id: int | None, event: RuntimeEvent) -> None:
        match event:
            case TextDelta(text):
                self._outgoing.piece("message.delta", handle.id, turn_id, f"{text}")
            case ReasoningDelta(text):
                self._outgoing.piece("reasoning.delta", handle.id, turn_id, f"{text}")
            case TurnStarted(started, session_id, _, inbox_ids):
                self.led_to(handle, session_id, "created")
                start = e.MessageStart(started, [*inbox_ids], session_id)
                self._outgoing.tell("message.start", handle.id, start)
            case TurnEnded(reply, inbox_ids):
                self._ended(handle, reply, inbox_ids)
            case SessionMoved(_, new, reason):
                self.led_to(handle, new, reason)
            case _:
                self._tell_more(handle, event)

    def _tell_more(self, handle: Handle, event: RuntimeEvent) -> None:
        told = self._outgoing.tell
        match event:
            case ToolStarted(call):
                told("tool.start", handle.id, e.ToolStart(call.id, call.name, call.arguments))
            case ToolFinished(call_id, content, failed):
                told("tool.complete", handle.id, e.ToolComplete(call_id, content, failed))
            case Steered():
                told("status.update", handle.id, e.StatusUpdate("steered", "It was heard."))
            case Notice(text):
                told("status.update", handle.id, e.StatusUpdate("notice", text))
            case TitleChanged(session_id, title):
                told("session.title", handle.id, e.SessionTitle(session_id, title))
            case ApprovalAsked(asked):
                request = e.ApprovalRequest(
                    asked.approval_id, asked.tool, asked.arguments, asked.expires_at
                )
                told("approval.request", handle.id, request)

    def _ended(self, handle: Handle, reply: Reply, inbox_ids: Sequence[int]) -> None:
        # Where the agent itself has gone on in another session, nobody has said so yet.
        self.led_to(handle, reply.session_id, "compression")
        handle.answers += 1
        handle.open.difference_update(inbox_ids)
        if handle.submitting:
            handle.ended.update(inbox_ids)
        self._answer.set()
        self._answer = trio.Event()
        complete = e.MessageComplete(
            turn_id=reply.turn_id,
            message_ids=[*inbox_ids],
            text=reply.text,
            status=STATUS[reply.status],
            usage=_spent(reply.usage),
            stored_session_id=reply.session_id,
            error=reply.error,
        )
        self._outgoing.tell("message.complete", handle.id, complete)


def _spent(usage: Sequence[Usage]) -> e.Spent:
    costs = [call.cost for call in usage if call.cost is not None]
    return e.Spent(
        input_tokens=sum(call.input_tokens for call in usage),
        output_tokens=sum(call.output_tokens for call in usage),
        cache_read_tokens=sum(call.cache_read_tokens for call in usage),
        cache_write_tokens=sum(call.cache_write_tokens for call in usage),
        reasoning_tokens=sum(call.reasoning_tokens for call in usage),
        cost=sum(costs) if costs else None,
    )
