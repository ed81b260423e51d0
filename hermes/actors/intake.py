"""The entry point of a runtime: every message is admitted and stored here."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias, TypeVar

import attrs
import trio
from msgspec.structs import replace

from hermes.actors.admission.options import (
    MessageOptions,
    make_inbound,
    require_attachments,
    require_event_id,
)
from hermes.actors.cluster.routing import run_anywhere, run_here
from hermes.actors.cluster.verbs import Interrupt, InterruptTurnOf, Post, Verb, Withdraw
from hermes.actors.context import RuntimeContext
from hermes.actors.kernel.mailbox import Request
from hermes.actors.session.files import discard_files, principal_of, put_attachments
from hermes.actors.stream import Stream
from hermes.actors.supervisor import Supervisor
from hermes.context import TurnContext, current_turn, refuse_circle
from hermes.errors import (
    AlreadyAnswered,
    AttachmentUnavailable,
    Overloaded,
    ReplyNotFound,
    ReplyTimeout,
    RequestRefused,
)
from hermes.messages import (
    Accepted,
    ApiRequest,
    Attachment,
    ConversationSettings,
    Inbound,
    MessageOutcome,
    Receipt,
    Reply,
    Source,
    StoredMessage,
)
from hermes.session_keys import require_encodable
from hermes.validation import require_instance, require_string, require_timeout

R = TypeVar("R")
Files: TypeAlias = Sequence[Attachment]


class Intake:
    """Accepts messages, and runs requests between the turns of a conversation.

    `shows`: its replies are for the host. An agent that asks another conversation shows no user
    what it receives.
    """

    def __init__(
        self, context: RuntimeContext, supervisor: Supervisor, *, shows: bool = True
    ) -> None:
        self._context = context
        self._shows = shows
        self._supervisor = supervisor

    async def submit(
        self, inbound: Inbound, request: Request[Reply] | None = None, files: Files | None = None
    ) -> Accepted:
        """Admit and store a message, with its attachments.

        `request` waits for its reply; then `AlreadyAnswered` is raised if it had its turn before.
        """
        store, config, source = self._context.store, self._context.config, inbound.source
        if self._context.admission is not None:
            await self._context.admission.admit(inbound)
        if self._supervisor.draining:
            raise self._supervisor.refusal()
        if inbound.command and self._context.peers is not None:  # another node may run it
            await self._context.questions.try_flush()
        policy = config.expiry_of(source.platform, source.chat_type)
        if files or inbound.request is not None:
            return await self._submit_more(inbound, request, files)
        accepted = await store.accept(inbound, policy=policy, max_queued=config.max_queued)
        if accepted.duplicate and request is not None:
            await self._refuse_answered(accepted, request)
        return accepted

    async def _submit_more(
        self, inbound: Inbound, request: Request[Reply] | None, files: Files | None
    ) -> Accepted:
        """Store a message that was admitted and has files, or is the request of an API client."""
        if files:
            return await self._submit_files(inbound, request, files)
        context, source = self._context, inbound.source
        await _check_tools(inbound, context)
        policy = context.config.expiry_of(source.platform, source.chat_type)
        most = context.config.max_queued
        accepted = await context.store.accept_request(inbound, policy=policy, max_queued=most)
        if accepted.duplicate and request is not None:
            await self._refuse_answered(accepted, request)
        return accepted

    async def _submit_files(
        self, inbound: Inbound, request: Request[Reply] | None, files: Files
    ) -> Accepted:
        """Store the files of a message that was admitted, then the message."""
        context, key = self._context, inbound.session_key
        limits, plain = context.config.attachments, attrs.evolve(context, admission=None)
        principal = principal_of(inbound.source)
        try:
            new = await put_attachments(context.store, key, principal, files, limits)
        except AttachmentUnavailable as missing:
            new, inbound = [], replace(inbound, text=f"{inbound.text} {missing}".strip())
        complete, accepted = replace(inbound, parts=(*(inbound.parts or ()), *new) or None), None
        try:
            accepted = await Intake(plain, self._supervisor).submit(complete, request)
            return accepted
        finally:
            if accepted is None or accepted.duplicate:
                await discard_files(context.store, key, new)

    async def _refuse_answered(self, accepted: Accepted, request: Request[Reply]) -> None:
        if await self.is_answered(accepted.receipt) and not request.answered:
            text = f"event {accepted.inbound.event_id!r} was already answered"
            raise AlreadyAnswered(text, accepted.receipt)

    async def ask(self, session_key: str, text: str, options: MessageOptions) -> Reply:
        """Submit a message and wait for its reply."""
        inbound, timeout = make_inbound(session_key, text, options), options.get("timeout")
        bus = self._context.bus
        with self._waiting_for(session_key):
            request = bus.expect(inbound.identity)
            try:
                accepted = await self.submit(inbound, request, options.get("attachments"))
                receipt = accepted.receipt
                bus.await_reply(receipt, inbound.identity, request, accepted.claim)
                waiting = request.wait() if timeout is None else _within(timeout, request, receipt)
                reply = await waiting
                return self._returned(reply) if reply.approvals else reply
            finally:
                if not request.answered:
                    bus.forget(inbound.identity, request)

    def _returned(self, reply: Reply) -> Reply:
        """Note that the host receives a reply, and the questions in it."""
        return self._context.questions.returned(reply) if self._shows else reply

    def _waiting_for(self, session_key: str) -> AbstractContextManager[None]:
        return self._noted(caller, session_key) if (caller := current_turn()) else nullcontext()

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

    def stream(
        self, session_key: str, text: str, options: MessageOptions, *, interrupt_on_exit: bool
    ) -> Stream:
        """Return a stream that submits the message when it is entered."""
        inbound = make_inbound(session_key, text, options)
        interrupt = self._interrupt_turn_of if interrupt_on_exit else None
        waiting, timeout = self._waiting_for(session_key), options.get("timeout")
        submit = functools.partial(self.submit, files=options.get("attachments"))
        return Stream(inbound, submit, self._context.bus, interrupt, waiting, timeout)

    async def wait(self, receipt: Receipt, seconds: float) -> Reply:
        """Return the reply to an accepted message, as soon as there is one."""
        require_instance("receipt", receipt, Receipt)
        require_timeout(seconds)
        outcome = await self._outcome_of(receipt)
        if outcome.state != "open":
            return self._returned(_reply_in(outcome))
        self.require_running()
        with self._waiting_for(receipt.session_key):
            request = self._context.bus.expect(outcome.identity)
            self._context.bus.await_reply(outcome.receipt, outcome.identity, request, None)
            try:
                outcome = await self._outcome_of(receipt)  # it may have been closed meanwhile
                if outcome.state != "open":
                    return self._returned(_reply_in(outcome))
                return self._returned(await _within(seconds, request, receipt))
            finally:
                self._context.bus.forget(outcome.identity, request)

    async def _outcome_of(self, receipt: Receipt) -> MessageOutcome:
        outcome = await self._supervisor.store.get_outcome(receipt.inbox_id)
        if outcome is None:
            raise ReplyNotFound(f"message {receipt.inbox_id} is unknown, or was answered long ago")
        return outcome

    async def reply_of(self, session_key: str, event_id: str, source: Source) -> Reply | None:
        """Return the reply to an event; None if there is none, or not yet."""
        outcome = await self._find_event(session_key, event_id, source)
        if outcome is None or outcome.state == "open":
            return None
        return self._returned(_reply_in(outcome))

    async def receipt_of(self, session_key: str, event_id: str, source: Source) -> Receipt | None:
        """Return the receipt of an event; None if it is unknown."""
        outcome = await self._find_event(session_key, event_id, source)
        return None if outcome is None else outcome.receipt

    async def _find_event(
        self, session_key: str, event_id: str, source: Source
    ) -> MessageOutcome | None:
        require_encodable(session_key)
        require_event_id(event_id)
        require_instance("source", source, Source)
        found = (session_key, event_id, source.platform, source.account)
        return await self._supervisor.store.find_event(*found)

    async def withdraw(self, receipt: Receipt) -> bool:
        """Take back a message whose turn has not begun."""
        require_instance("receipt", receipt, Receipt)
        self.require_running()
        return await self.run(receipt.session_key, Withdraw(receipt.inbox_id))

    async def post(
        self, session_key: str, text: str, source: Source | None, files: Files | None
    ) -> StoredMessage:
        """Send a message of the agent, between two turns."""
        require_encodable(session_key)
        require_string("text", text)
        require_attachments(files)
        if not text.strip() and not files:
            raise ValueError("a post needs a text that is not blank, or an attachment")
        if source is not None:
            require_instance("source", source, Source)
        self.require_running()
        store, limits = self._context.store, self._context.config.attachments
        parts = await put_attachments(store, session_key, None, files or (), limits)
        try:
            return await self.request(session_key, Post(text, source, parts))
        except BaseException:
            await discard_files(store, session_key, parts)
            raise

    async def is_answered(self, receipt: Receipt) -> bool:
        """Whether a message had its turn or was refused."""
        require_instance("receipt", receipt, Receipt)
        rows = await self._supervisor.store.open_inbox(
            receipt.session_key, after=receipt.inbox_id - 1, limit=1
        )
        return not rows or rows[0].inbox_id != receipt.inbox_id

    async def interrupt(self, session_key: str) -> bool:
        """Interrupt the running turn; False if none is running."""
        actor = self._supervisor.find(session_key)
        if actor is None and self._context.peers is None:
            await trio.lowlevel.checkpoint()
            return False
        return await self.run(session_key, Interrupt())

    async def _interrupt_turn_of(self, session_key: str, inbox_id: int) -> bool:
        """Interrupt the turn that answers this message, if it runs or is about to begin."""
        return await self.run(session_key, InterruptTurnOf(inbox_id))

    async def cancel_turn(self, receipt: Receipt) -> bool:
        """Take back a message whose turn has not begun, or interrupt its turn."""
        if await self.withdraw(receipt):
            return True
        return await self._interrupt_turn_of(receipt.session_key, receipt.inbox_id)

    async def require_access(self, source: Source | None) -> None:
        """Raise `NotAdmitted` if the access policy refuses the source."""
        if self._context.admission is not None:
            await self._context.admission.require(source or Source())

    def require_running(self) -> None:
        """Raise `Draining` while the runtime drains, and afterwards why it has ended."""
        if self._supervisor.draining:
            raise self._supervisor.refusal()

    async def run(self, session_key: str, verb: Verb[R]) -> R:
        """Run a verb on the node that serves a conversation."""
        if self._context.peers is None:
            return await run_here(self._supervisor.actor(session_key), verb)
        return await run_anywhere(session_key, verb, self._context, self._supervisor)

    async def request(self, session_key: str, verb: Verb[R]) -> R:
        """Run a verb between two turns of a conversation."""
        self.require_running()
        if session_key in self._supervisor.quarantined:
            raise Overloaded(f"{session_key} is paused after repeated failures; try again later")
        with self._waiting_for(session_key):
            return await self.run(session_key, verb)


async def _check_tools(inbound: Inbound, context: RuntimeContext) -> None:
    """Raise `RequestRefused` if a client has a tool with the name of one of the agent's.

    Another agent may answer in the end. It checks that again.
    """
    request = inbound.request
    if request is None or not request.options.tools:
        return
    own = await _tools_of_agent(inbound, request, context)
    for tool in request.options.tools:
        if (name := tool["name"]) in own:
            raise RequestRefused(f"the agent has a tool {name!r} itself; name yours otherwise")


async def _tools_of_agent(
    inbound: Inbound, request: ApiRequest, context: RuntimeContext
) -> Sequence[str]:
    """Return the names of the tools of the agent that would answer now."""
    source = inbound.source
    if context.catalog is None:
        return context.agent_spec(inbound.session_key, source).toolset
    settings = ConversationSettings(agent=request.agent)
    if request.stored:
        route = await context.store.get_route(inbound.session_key)
        settings = ConversationSettings.from_json(None if route is None else route.settings)
        settings = (request.opening and request.opening.settings) or settings
    choice = context.catalog.current(settings, source)
    return () if choice is None else [tool.name for tool in choice.tools]


def _reply_in(outcome: MessageOutcome) -> Reply:
    """Return the reply to a closed message."""
    if outcome.reply is not None:
        return outcome.reply
    inbox_id, note = outcome.receipt.inbox_id, f" ({outcome.note})" if outcome.note else ""
    raise ReplyNotFound(f"message {inbox_id} was closed without a stored reply{note}")


async def _within(seconds: float, request: Request[Reply], receipt: Receipt) -> Reply:
    with trio.move_on_after(max(0.0, seconds)):
        return await request.wait()
    raise ReplyTimeout(f"there was no reply within {seconds:g} seconds", receipt)
