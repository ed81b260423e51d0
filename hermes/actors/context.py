"""What all session actors share."""

from __future__ import annotations

import inspect
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from hermes import user_code
from hermes.actors.auto_title import AutoTitler
from hermes.actors.budget import InFlightUsage
from hermes.actors.compression.compressor import SessionCompressor
from hermes.actors.delivery.dispatcher import lane_of
from hermes.actors.event_bus import EventBus, ReplyWaiters
from hermes.actors.metrics import RuntimeMetrics
from hermes.actors.session.policy import RebuildPolicy, guard
from hermes.actors.session.running_turn import Mail
from hermes.config import Config
from hermes.errors import ActorStopped
from hermes.events import RuntimeEvent, TurnEnded
from hermes.messages import AgentSpec, BuildReason, Inbound, InboxReply, Outbound, Reply, Source
from hermes.protocols import Agent, Build, Describe, Store
from hermes.redaction.keys import Redact

if TYPE_CHECKING:
    from hermes.actors.admission.access import Admission

Submit = Callable[[Inbound], Awaitable[object]]

log = logging.getLogger(__name__)


@attrs.define(eq=False)
class RuntimeContext:
    """The store, the settings, and who builds, listens and asks."""

    store: Store
    config: Config
    build: Build
    describe: Describe
    compression: SessionCompressor
    nursery: trio.Nursery
    """For what outlives a step of an actor: answers beside a turn, agents that are closed."""
    titling: AutoTitler | None = None
    admission: Admission | None = None
    """Who may speak; without one the host program has seen to it."""
    in_flight: InFlightUsage = attrs.Factory(InFlightUsage)
    bus: EventBus = attrs.Factory(EventBus)
    waiters: ReplyWaiters = attrs.Factory(ReplyWaiters)
    builds: Counter[BuildReason] = attrs.Factory(Counter)
    wall: Callable[[], float] = time.time
    guard: RebuildPolicy = guard
    redact: Redact | None = None
    """Takes secrets out of what agents say, before it is stored or told."""
    counts: RuntimeMetrics = attrs.field(init=False)
    submit: Submit = attrs.field(init=False)
    """Accepts a message that follows from one which was admitted."""

    def __attrs_post_init__(self) -> None:
        self.counts = RuntimeMetrics(self.wall)

    def stop_error(self) -> Exception:
        """Why nobody will be answered any more."""
        return self.store.failure or ActorStopped("the runtime ended before it could answer")

    def end(self) -> None:
        """Nobody will be answered or told any more."""
        self.waiters.fail_all(self.stop_error())
        self.bus.close()

    def publish(self, session_key: str, turn_id: int | None, event: RuntimeEvent) -> None:
        """Tell the listeners."""
        self.bus.publish(session_key, turn_id, event)

    def tell(self, mails: Sequence[Mail], reply: Reply, dropped_by: int | None = None) -> None:
        """Tell the askers of these messages, and the listeners, what became of them."""
        for mail in mails:
            self.waiters.reply(mail.inbound.identity, reply)
        self.counts.told(reply)
        ids = tuple(mail.inbox_id for mail in mails)
        first = mails[0].inbound
        ended = TurnEnded(reply, ids, first.source.platform, dropped_by)
        self.publish(first.session_key, reply.turn_id, ended)

    def waited(self, mails: Sequence[Mail]) -> float:
        """For how long the first of these messages has been accepted."""
        accepted = mails[0].accepted_at
        return 0.0 if accepted is None else max(0.0, self.wall() - accepted)

    async def build_agent(self, spec: AgentSpec) -> Agent:
        """Build an agent; the builder may be a coroutine function or a plain one."""
        built = self.build(spec)
        return await built if inspect.isawaitable(built) else built

    async def close_agent(self, agent: Agent) -> None:
        """Close an agent that nobody uses any more, within its time."""
        aclose = getattr(agent, "aclose", None)  # optional by contract
        if aclose is None:
            return
        with trio.move_on_after(self.config.close_timeout, shield=True) as scope:
            try:
                await aclose()
            except BaseException as error:  # foreign code: its failure is its own
                if (through := user_code.passing(error)) is not None:
                    raise through from None
                log.exception("an agent failed while it was closed")
        if scope.cancelled_caught:
            log.warning("an agent was not closed within %g s", self.config.close_timeout)


def outbound(mail: Mail, session_id: str, text: str, kind: str = "reply") -> list[Outbound]:
    """The outbox rows of a text said to a message; none for an empty one."""
    if not text:
        return []
    inbound = mail.inbound
    reply_to = inbound.platform_message_id
    return said_to(inbound.source, inbound.session_key, session_id, text, kind, reply_to)


def said_to(
    source: Source,
    session_key: str,
    session_id: str,
    text: str,
    kind: str,
    reply_to: str | None = None,
) -> list[Outbound]:
    """The outbox rows of a text said in a chat."""
    body = {
        "kind": kind,
        "text": text,
        "platform": source.platform,
        "account": source.account,
        "chat_id": source.chat_id,
        "thread_id": source.thread_id,
        "user_id": source.user_id,
        "session_id": session_id,
        "reply_to": reply_to,
    }
    return [Outbound(lane_of(source, session_key), body)]


def answer_to(mails: Sequence[Mail], session_id: str, text: str, kind: str = "reply") -> InboxReply:
    """The end of messages that have no turn of their own; of each chat the last is spoken to."""
    key = mails[-1].inbound.session_key
    spoken_to = {lane_of(mail.inbound.source, key): mail for mail in mails}.values()
    return InboxReply(
        session_key=key,
        inbox_ids=[mail.inbox_id for mail in mails],
        outbox=[row for mail in spoken_to for row in outbound(mail, session_id, text, kind)],
    )
