"""The entry point of a runtime: every message is admitted and stored here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar
from uuid import uuid4

import trio
from msgspec.structs import replace

from hermes.actors.commands import parse
from hermes.actors.context import RuntimeContext
from hermes.actors.kernel.mailbox import Request
from hermes.actors.session.actor import SessionActor
from hermes.actors.stream import Stream
from hermes.actors.supervisor import Supervisor
from hermes.context import TurnContext, current_turn, refuse_circle
from hermes.errors import AlreadyAnswered, Draining, Overloaded
from hermes.messages import Accepted, Inbound, JsonObject, Receipt, Reply, Source, WhenBusy

R = TypeVar("R")


class Intake:
    """Accepts messages, and runs requests between the turns of a conversation."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor

    async def submit(self, inbound: Inbound, request: Request[Reply] | None = None) -> Accepted:
        """Admit and store a message.

        `request` waits for its reply; then `AlreadyAnswered` is raised if it had its turn before.
        """
        store, config, source = self._context.store, self._context.config, inbound.source
        if self._context.admission is not None:
            await self._context.admission.admit(inbound)
        if self._supervisor.draining:
            raise Draining("the runtime is ending and accepts no new messages")
        policy = config.expiry_of(source.platform, source.chat_type)
        accepted = await store.accept(inbound, policy=policy, max_queued=config.max_queued)
        if accepted.duplicate and request is not None:
            await self._refuse_answered(accepted, request)
        return accepted

    async def _refuse_answered(self, accepted: Accepted, request: Request[Reply]) -> None:
        if await self.is_answered(accepted.receipt) and not request.answered:
            raise AlreadyAnswered(f"event {accepted.inbound.event_id!r} was already answered")

    async def ask(self, inbound: Inbound) -> Reply:
        """Submit a message and wait for its reply."""
        with self._waiting_for(inbound.session_key):
            request = self._context.bus.expect(inbound.identity)
            try:
                await self.submit(inbound, request)
                return await request.wait()
            finally:
                if not request.answered:
                    self._context.bus.forget(inbound.identity, request)

    def _waiting_for(self, session_key: str) -> AbstractContextManager[None]:
        caller = current_turn()
        return nullcontext() if caller is None else self._noted(caller, session_key)

    @contextmanager
    def _noted(self, caller: TurnContext, session_key: str) -> Iterator[None]:
        """Note what a turn waits for. Raises `WaitCircle` if that waits for the turn."""
        refuse_circle(session_key, self._turn_of)
        caller.waits_for.append(session_key)
        try:
            yield
        finally:
            caller.waits_for.remove(session_key)

    def _turn_of(self, session_key: str) -> TurnContext | None:
        actor = self._supervisor.find(session_key)
        turn = None if actor is None else actor.runner.turn
        return None if turn is None else turn.context

    def stream(self, inbound: Inbound, *, interrupt_on_exit: bool) -> Stream:
        """Return a stream that submits the message when it is entered."""
        interrupt = self._interrupt_turn_of if interrupt_on_exit else None
        waiting = self._waiting_for(inbound.session_key)
        return Stream(inbound, self.submit, self._context.bus, interrupt, waiting)

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

    def require_running(self) -> None:
        """Raise `Draining` while the runtime ends."""
        if self._supervisor.draining:
            raise Draining("the runtime is ending")

    def actor(self, session_key: str) -> SessionActor:
        """Return the actor of a conversation, for what does not wait for a running turn."""
        self.require_running()
        return self._supervisor.actor(session_key)

    async def request(
        self, session_key: str, operation: Callable[[SessionActor], Awaitable[R]]
    ) -> R:
        """Run an operation between two turns of a conversation."""
        self.require_running()
        if session_key in self._supervisor.quarantined:
            raise Overloaded(f"{session_key} is paused after repeated failures; try again later")
        with self._waiting_for(session_key):
            actor = self._supervisor.actor(session_key)
            return await actor.request(lambda: operation(actor))


def make_inbound(
    session_key: str,
    text: str,
    source: Source | None,
    parts: Sequence[JsonObject] | None,
    when_busy: WhenBusy | None,
    event_id: str | None,
) -> Inbound:
    """Return the message of a host; a text that starts like a known command is a command."""
    parts = None if parts is None else tuple(parts)
    event_id = event_id or uuid4().hex
    source = source or Source()
    inbound = Inbound(
        session_key, event_id, text, source,
        parts=parts, when_busy=when_busy, per_conversation=True,
    )  # fmt: skip
    require_strings(inbound)
    return inbound if parse(text) is None else replace(inbound, command=True)


def require_strings(inbound: Inbound) -> None:
    """Raise `ValueError` if a name or id is not a string: 42 and "42" would be two users."""
    source = inbound.source
    names = (inbound.session_key, inbound.event_id, inbound.text, source.platform, source.account)
    ids = (source.chat_id or "", source.user_id or "")
    if not all(isinstance(value, str) for value in names + ids):
        raise ValueError("session_key, event_id, text and the ids of a source must be strings")
