"""The runtime: conversations, each with a separate actor."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, Unpack

import trio

from hermes.actors.admin import AdapterState, Admin, ApiRecords
from hermes.actors.admission.access import AccessPolicy
from hermes.actors.admission.gate import admission_of
from hermes.actors.admission.options import (
    MessageOptions,
    require_attachments,
    require_valid,
    takes_options,
)
from hermes.actors.auto_title import auto_titler
from hermes.actors.cluster.routing import peers_of
from hermes.actors.compression.compressor import SessionCompressor
from hermes.actors.context import RuntimeContext
from hermes.actors.conversation import Conversation
from hermes.actors.delivery.dispatcher import Dispatcher
from hermes.actors.delivery.questions import Questions
from hermes.actors.event_bus import EventBus, EventCallback, Subscription
from hermes.actors.intake import Intake
from hermes.actors.metrics import RuntimeMetrics
from hermes.actors.rebuild import RebuildPolicy, rebuild_reason
from hermes.actors.stream import Stream
from hermes.actors.supervisor import Supervisor
from hermes.actors.turn_runtime import runtime_of_turn
from hermes.background import open_background, protected, start_soon, until_memory
from hermes.config import Config
from hermes.context import current_turn, inside_hook
from hermes.errors import HermesError
from hermes.events import MessageAccepted
from hermes.messages import Approval, Attachment, Inbound, Receipt, Reply, Source, StoredMessage
from hermes.protocols import Adapter, AgentCatalog, Build, Compressor, Describe, Store, Titler
from hermes.protocols.agent import RebuildRequest, Transcriber
from hermes.redaction import Redact, as_redactor
from hermes.session_keys import require_encodable
from hermes.texts import ENGLISH, Texts
from hermes.validation import require_instance

R = TypeVar("R")


class Runtime:
    """Runs conversations. All verbs can be called concurrently, from any task.

    `ask`, `stream` and `submit` send messages. `conversation` gives a handle with all verbs of one
    conversation. `admin` has the verbs of an operator, who sees all conversations.

    After the end all verbs raise `ActorStopped`, or `StoreFailed` if the store has failed; `drain`
    says which verbs do so before. In a forked process they raise `ActorStopped` at once.
    """

    def __init__(self, context: RuntimeContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor
        self._intake = Intake(context, supervisor)
        self.admin: Admin = Admin(context, supervisor, self._intake)
        """Operator verbs."""
        self.adapter_state: AdapterState = AdapterState(supervisor)
        """Values that adapters keep in the store."""
        self.api: ApiRecords = ApiRecords(context, supervisor, self._intake)
        """Responses and tokens of API clients."""
        self.texts: Texts = context.texts
        """What users are told."""

    def conversation(self, session_key: str, *, source: Source | None = None) -> Conversation:
        """Return a handle to a conversation. Nothing is stored before its first message.

        `source` is the default source of messages sent through this handle.
        """
        require_encodable(session_key)
        if source is not None:
            require_instance("source", source, Source)
        return Conversation(session_key, source, self._context, self._intake, self._supervisor)

    async def submit(
        self, inbound: Inbound, *, attachments: Sequence[Attachment] | None = None
    ) -> Receipt:
        """Accept a message, with its attachments; it is on disk when this returns.

        The same event (platform, account and event_id) gets the same receipt again. Raises
        `NotAdmitted` if the access policy refuses the sender, `Overloaded` if too many messages of
        this key are open, `Draining` while the runtime ends, `StoreBusy` or `StoreFull` if it could
        not be stored for now, `AttachmentRefused` if an attachment cannot be stored, and
        `TypeError` or `ValueError` if a field is not valid. Then the message is not accepted.
        """
        require_valid(inbound)
        require_attachments(attachments)
        return (await self._intake.submit(inbound, files=attachments)).receipt

    @takes_options
    async def ask(
        self, session_key: str, text: str = "", **options: Unpack[MessageOptions]
    ) -> Reply:
        """Send a message and wait for the reply.

        Cancelling the call cancels the wait only: an accepted message is answered in any case.

        - `attachments` are files to send with the message.
        - `parts` is a structured form of the message, for agents that understand it.
        - `source` says where the message comes from; by default the platform is "embedded".
        - `event_id` identifies the message within its conversation; a repeated call is not answered
          twice.
        - `when_busy` says what to do if a turn is running; by default the configuration does.
        - `commands=False`: a text that starts with a command is an ordinary text.
        - `metadata` is a small dict of JSON values. It reaches the turn, its events and the reply.
        - `timeout` limits the wait for the reply, in seconds.

        Raises what `submit` raises, `ValueError` if there is no text, attachment or part,
        `AlreadyAnswered` if this event was answered before, `EventConflict` if its id was used for
        another text, `ReplyTimeout` if the reply takes longer than `timeout`, `WaitCircle` inside a
        turn of that conversation or one for which it waits, and `ActorStopped` if the runtime ends
        before the reply.
        """
        return await self._intake.ask(session_key, text, options)

    @takes_options
    def stream(
        self,
        session_key: str,
        text: str = "",
        *,
        interrupt_on_exit: bool = False,
        **options: Unpack[MessageOptions],
    ) -> Stream:
        """Send a message and iterate over the events until the reply, which is the last one.

        The arguments are those of `ask`. Use it with `async with`. Leaving the block early detaches
        from the turn, or interrupts it with `interrupt_on_exit`.

        The message is sent when the block is entered, which raises what `ask` raises. Iterating
        raises `ReplyTimeout` if the reply takes longer than `timeout`, `ActorStopped` if the
        runtime ends before it, and `AlreadyAnswered` if another process closes the message.
        """
        return self._intake.stream(session_key, text, options, interrupt_on_exit=interrupt_on_exit)

    async def wait(
        self,
        receipt: Receipt,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - blocking hosts cannot cancel it
    ) -> Reply:
        """Return the reply to an accepted message, now or when there is one, also after a restart.

        A message that was cancelled or set aside has a reply, too; its status is "refused".
        Raises `ReplyNotFound` if the message is unknown or was answered more than 30 days ago,
        `ReplyTimeout` if the reply takes longer than `timeout` seconds, `WaitCircle` inside a turn
        of that conversation, and `Draining` or `ActorStopped` if the runtime ends before the reply.
        """
        return await self._intake.wait(receipt, math.inf if timeout is None else timeout)

    async def reply_of(
        self, session_key: str, event_id: str, *, source: Source | None = None
    ) -> Reply | None:
        """Return the reply to the message with this event id; None if there is none, or not yet.

        `source` is that of the message. Raises `ReplyNotFound` if its reply was not stored.
        """
        return await self._intake.reply_of(session_key, event_id, source or Source())

    async def receipt_of(
        self, session_key: str, event_id: str, *, source: Source | None = None
    ) -> Receipt | None:
        """Return the receipt of the message with this event id; None if it was not accepted.

        `source` is that of the message, as in `reply_of`.
        """
        return await self._intake.receipt_of(session_key, event_id, source or Source())

    async def withdraw(self, receipt: Receipt) -> bool:
        """Take back a message whose turn has not begun. Returns False if it has begun or ended.

        It is not answered, and its text is not kept. Calls that wait for its reply get one with the
        status "withdrawn". Raises `Draining` while the runtime ends.
        """
        return await self._intake.withdraw(receipt)

    async def post(
        self,
        session_key: str,
        text: str = "",
        *,
        attachments: Sequence[Attachment] | None = None,
        source: Source | None = None,
    ) -> StoredMessage:
        """Send a message of the agent that nobody asked for, with files if there are any.

        It is stored in the transcript and delivered like a reply, to `source`; by default to where
        the last reply was sent. It waits for a running turn. Raises `ValueError` if there is
        neither a text nor an attachment, `AttachmentRefused` if a file cannot be stored, and what
        the verbs of a conversation raise.
        """
        return await self._intake.post(session_key, text, source, attachments)

    async def is_answered(self, receipt: Receipt) -> bool:
        """Return whether a message had its turn or was refused."""
        return await self._intake.is_answered(receipt)

    def subscribe(
        self,
        session_key: str | None = None,
        *,
        callback: EventCallback | None = None,
        deltas: bool = True,
        messages: bool = False,
    ) -> Subscription:
        """Receive events from now on, of one conversation or of all.

        Use it in a `with` block; in an asyncio program, in an `async with` block.

        Iterate over the subscription with `async for`, or pass a `callback`: it is called with each
        event as it happens, so that none is buffered or lost; it must be quick and must not raise.
        With `deltas=False`, pieces of answers are left out. With `messages=True`, there is a
        `MessageAccepted` for each message and command, before the events of its turn.
        """
        self._supervisor.require_running()
        if session_key is not None:
            require_encodable(session_key)
        bus, announced = self._context.bus, MessageAccepted if messages else None
        return bus.add(Subscription(bus, session_key, callback, deltas=deltas, announced=announced))

    def follow(self, session_key: str) -> Subscription:
        """Receive the events of a conversation, beginning with what is going on. Use it in a block.

        The first events are a `MessageWaiting` for each message without an answer and, if a turn is
        running, its `TurnStarted`, the text that it has published so far and a `ToolStarted` for
        each tool that runs. Then the events go on as in `subscribe`, without a gap, together with a
        `MessageWaiting` for each new message.
        """
        return self.conversation(session_key).follow()

    def mark_shown(self, approval: Approval, *, shown: bool = True) -> None:
        """Say that the user of a conversation is shown a question now (event `ApprovalAsked`).

        A command decides only about calls that its user was shown before. Adapters, `ask`, `wait`,
        `stream` and subscriptions to one conversation take care of that. Call this in a host that
        passes on the events of all conversations, right before it sends the question; with
        `shown=False`, if the question could not be sent after all.
        """
        self._supervisor.require_running()
        require_instance("approval", approval, Approval)
        note = self._context.questions.shown if shown else self._context.questions.not_shown
        note(approval)

    async def run_on_trio(self, function: Callable[[Runtime], Awaitable[R]]) -> R:
        """Await `function(runtime)` on the runtime's own loop, and return its result.

        This is how hosts on asyncio or without an event loop run what is written for Trio, such as
        `telegram.run`. There it is cancelled when the call is cancelled, and after the runtime has
        ended: then the call raises `ActorStopped`, or why the runtime failed.
        """
        self._supervisor.require_running()
        return await function(self)

    async def wait_hooks(self) -> None:
        """Wait until the hooks have run for every boundary so far.

        Raises `HermesError` inside a hook, which would wait for itself, and `ActorStopped` if the
        runtime ends before that. Hooks that have not run are called after the next start.
        """
        if inside_hook():
            raise HermesError("a hook cannot wait for the hooks: it would wait for itself")
        await self._supervisor.store.wait_hooks()

    async def drain(self, seconds: float | None = None) -> None:
        """Accept nothing new, wait for accepted work, stop the rest, and run the hooks.

        Waits at most `seconds` for turns and replies; by default `Config.drain_timeout`. What is
        not finished then stays in the store for the next start: calls that wait for its reply raise
        `ActorStopped`, and subscriptions end. Active sessions are finalized; hooks then get
        `Config.hook_drain_timeout`. Leaving `open_runtime` does the same.

        Verbs that send messages or change a conversation raise `Draining` while this runs. Once it
        has returned, they and `status` raise `ActorStopped`. The other verbs, which use the store
        only, such as `history`, work until the block of the runtime is left.

        Drains at the same time are one: the `seconds` of the first one count for all. If the call
        is cancelled while others wait, they wait on; if it is the only one, turns are stopped at
        once, the runtime accepts nothing more, and the next drain, or leaving the block, does the
        rest. A block that fails or is cancelled ends the wait for turns in any case.

        Raises `HermesError` inside a turn or a hook, which would wait for itself, and `ValueError`
        if `seconds` is not a number or negative.
        """
        if current_turn() is not None or inside_hook():
            raise HermesError("a turn or a hook cannot drain the runtime: it would wait for itself")
        self._supervisor.require_running()
        await self._supervisor.drain(seconds)

    async def wait_stopped(self) -> None:
        """Wait until the runtime is drained or has ended; also if it has ended already.

        Raises `StoreFailed`, or `ActorStopped` for any other failure; and `HermesError` inside a
        turn or a hook, for which the end of the runtime waits.
        """
        if current_turn() is not None or inside_hook():
            raise HermesError("a turn or a hook cannot wait for the end: it would wait for itself")
        await self._supervisor.wait_stopped()


@protected
async def open_actors(  # noqa: PLR0913 - the parts of a runtime
    store: Store,
    *,
    build: Build,
    agent_spec: Describe,
    config: Config,
    compressor: Compressor | None = None,
    titler: Titler | None = None,
    transcriber: Transcriber | None = None,
    adapters: Iterable[Adapter] = (),
    access: AccessPolicy | None = None,
    redact: Redact | None = None,
    texts: Texts = ENGLISH,
    catalog: AgentCatalog | None = None,
    wall: Callable[[], float] = time.time,
    rebuild_policy: RebuildPolicy = rebuild_reason,
    rebuild_request: RebuildRequest | None = None,
) -> AsyncIterator[Runtime]:
    """Run actors on an open store during a block. Leaving the block drains the runtime."""
    async with _ending() as started, open_background() as nursery:
        dispatcher, clean = Dispatcher(nursery, adapters, store, redact), redact or str
        questions, metrics = Questions(store, dispatcher, wall), RuntimeMetrics(wall)
        bus = EventBus(metrics.count_reply, questions.received)
        peers = peers_of(store, bus, nursery, wall, lambda: supervisor)
        context = RuntimeContext(
            store=store, config=config, build=build, agent_spec=agent_spec,
            compressor=SessionCompressor(store, compressor, config.compression, wall, clean, texts),
            nursery=nursery,
            metrics=metrics,
            bus=bus,
            auto_titler=auto_titler(titler, nursery, store, bus.publish, clean),
            transcriber=transcriber,
            admission=admission_of(store, access, texts, dispatcher.serves),
            redact=None if redact is None else as_redactor(redact),
            texts=texts,
            catalog=catalog,
            turn_runtime=lambda key: runtime_of_turn(key, context, supervisor),
            questions=questions,
            rebuild_policy=rebuild_policy, rebuild_request=rebuild_request, wall=wall, peers=peers,
        )  # fmt: skip
        runtime = Runtime(context, supervisor := Supervisor(context, dispatcher))
        tasks = (dispatcher.run, questions.run, supervisor.run_maintenance)
        for task in (*tasks, *([] if peers is None else [peers.run])):
            start_soon(nursery, task)
        try:
            with store.subscribe(on_accepted=supervisor.deliver, on_outbox=dispatcher.offer):
                async with _started(supervisor, nursery, started):
                    yield runtime
        finally:
            until_memory(lambda: bus.close(context.stop_error()))


@asynccontextmanager
async def _ending() -> AsyncIterator[list[Supervisor]]:
    """Yield a list; tell the supervisors in it, after the block, how the runtime ended."""
    started: list[Supervisor] = []
    left_by: BaseException | None = None
    try:
        yield started
    except BaseException as error:
        left_by = error
        raise
    finally:
        for supervisor in started:
            supervisor.end(left_by)


@asynccontextmanager
async def _started(
    supervisor: Supervisor, nursery: trio.Nursery, started: list[Supervisor]
) -> AsyncIterator[None]:
    """Start a supervisor, and drain it after the block.

    If the block failed or was cancelled, wait for the hooks only.
    """
    await nursery.start(supervisor.run)
    started.append(supervisor)
    try:
        yield
    except BaseException as error:
        supervisor.block_error = error
        supervisor.hurry()
        raise
    finally:
        try:
            await supervisor.drain()
        finally:  # it may have been cancelled
            supervisor.hurry()
            with trio.CancelScope(shield=True):
                await supervisor.drain()
