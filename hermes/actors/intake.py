"""The entry point of a runtime: every message is admitted and stored here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import uuid4

import trio

from hermes.actors.commands import parse
from hermes.actors.context import RuntimeContext
from hermes.actors.kernel.mailbox import Request
from hermes.actors.session.actor import SessionActor
from hermes.actors.stream import Stream
from hermes.actors.supervisor import Supervisor
from hermes.context import inside_turn_of
from hermes.errors import AlreadyAnswered, Draining, HermesError, Overloaded
from hermes.messages import Accepted, Inbound, JsonObject, Receipt, Reply, Source, WhenBusy

R = TypeVar("R")


class Intake:
    """Accepts messages, and runs requests between the turns of a conversation."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor

    async def submit(self, inbound: Inbound) -> Accepted:
        """Admit and store a message."""
        context = self._context
        if context.admission is not None:
            await context.admission.admit(inbound)
        if self._supervisor.draining:
            raise Draining("the runtime is ending and accepts no new messages")
        source, config = inbound.source, context.config
        return await context.store.accept(
            inbound,
            policy=config.expiry_of(source.platform, source.chat_type),
            max_queued=config.max_queued,
        )

    async def ask(self, inbound: Inbound) -> Reply:
        """Submit a message and wait for its reply."""
        _refuse_own_turn(inbound.session_key)
        identity, bus = inbound.identity, self._context.bus
        request = bus.expect(identity)
        try:
            await self._submit_new(inbound, request)
            return await request.wait()
        finally:
            bus.forget(identity, request)

    def stream(self, inbound: Inbound, *, interrupt_on_exit: bool) -> Stream:
        """Return a stream that submits the message when it is iterated."""
        _refuse_own_turn(inbound.session_key)
        interrupt = self._interrupt_turn_of if interrupt_on_exit else None
        return Stream(inbound, self._submit_new, self._context.bus, interrupt)

    async def _submit_new(self, inbound: Inbound, request: Request[Reply]) -> Accepted:
        """Submit a message whose reply is awaited; raises if it already had its turn."""
        accepted = await self.submit(inbound)
        if accepted.duplicate and await self.is_answered(accepted.receipt) and not request.answered:
            raise AlreadyAnswered(f"event {inbound.event_id!r} was already answered")
        return accepted

    async def is_answered(self, receipt: Receipt) -> bool:
        """Whether a message had its turn or was refused."""
        rows = await self._context.store.open_inbox(
            receipt.session_key, after=receipt.inbox_id - 1, limit=1
        )
        return not rows or rows[0].inbox_id != receipt.inbox_id

    async def interrupt(self, session_key: str) -> bool:
        """Interrupt the running turn; False if none is running."""
        await trio.lowlevel.checkpoint()
        actor = self._supervisor.find(session_key)
        return actor is not None and actor.runner.interrupt()

    async def _interrupt_turn_of(self, session_key: str, inbox_id: int) -> bool:
        """Interrupt the running turn if it answers this message."""
        actor = self._supervisor.find(session_key)
        turn = None if actor is None else actor.runner.turn
        answers = turn is not None and any(row.inbox_id == inbox_id for row in turn.rows)
        return answers and await self.interrupt(session_key)

    def actor(self, session_key: str) -> SessionActor:
        """Return the actor of a conversation, for what does not wait for a running turn."""
        if self._supervisor.draining:
            raise Draining("the runtime is ending")
        return self._supervisor.actor(session_key)

    async def request(
        self, session_key: str, operation: Callable[[SessionActor], Awaitable[R]]
    ) -> R:
        """Run an operation between two turns of a conversation."""
        if self._supervisor.draining:
            raise Draining("the runtime is ending")
        _refuse_own_turn(session_key)
        if self._supervisor.is_quarantined(session_key):
            raise Overloaded(f"{session_key} is paused after repeated failures; try again later")
        actor = self._supervisor.actor(session_key)
        return await actor.request(lambda: operation(actor))


def _refuse_own_turn(session_key: str) -> None:
    if inside_turn_of(session_key):
        raise HermesError("a turn cannot wait for its own conversation: it would wait for itself")


def make_inbound(
    session_key: str,
    text: str,
    source: Source | None,
    parts: Sequence[JsonObject] | None,
    when_busy: WhenBusy | None,
    event_id: str | None,
) -> Inbound:
    """Return the message of a host; a text that starts like a known command is a command."""
    for name, value in (("session_key", session_key), ("text", text), ("event_id", event_id or "")):
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a string, not {type(value).__name__}")  # noqa: TRY004
    return Inbound(
        session_key,
        event_id or uuid4().hex,
        text,
        source or Source(),
        command=parse(text) is not None,
        parts=None if parts is None else tuple(parts),
        when_busy=when_busy,
    )
