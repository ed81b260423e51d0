"""The verbs of a conversation as data, so that any node can have its owner run them.

`run` gets the actor. `waits` says that it runs between two turns, in the actor's task. A verb that
is `repeatable` has the same effect if it is run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import msgspec
import trio
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from hermes.actors.context import RuntimeContext
from hermes.actors.session import operations
from hermes.actors.session.actor import SessionActor
from hermes.messages import (
    ConversationSettings,
    JsonObject,
    Message,
    SessionChange,
    Snapshot,
    Source,
    Status,
    StoredMessage,
)

R = TypeVar("R")

STEPS_TO_BEGIN = 10
"""How many steps of the scheduler the turn of a message takes to begin, if nothing else waits."""
FETCH_SECONDS = 0.5
"""Seconds for which a message is looked for that another node has accepted."""


class Verb(msgspec.Struct, Generic[R], frozen=True, tag=True, omit_defaults=True):
    """Base class of all verbs; `R` is what they return, and `returns` is the same."""

    returns: ClassVar[Any]
    waits: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    """Whether it can only run on the node on which it was called."""

    async def run(self, actor: SessionActor) -> R:
        """Run the verb for the conversation of an actor."""
        raise NotImplementedError

    def asked(self, context: RuntimeContext) -> Self:
        """Return the verb with what counts when the owner is asked for it."""
        del context
        return self


class New(Verb[SessionChange], frozen=True):
    """End the current session and start a new one."""

    returns = SessionChange
    title: str | None = None

    async def run(self, actor: SessionActor) -> SessionChange:
        return await operations.new_session(actor.state, self.title)


class Switch(Verb[SessionChange], frozen=True):
    """Continue with another session, with `any_key` of any key."""

    returns = SessionChange
    repeatable = True
    target: str
    any_key: bool = False

    async def run(self, actor: SessionActor) -> SessionChange:
        return await operations.switch(actor.state, self.target, any_key=self.any_key)


class Branch(Verb[SessionChange], frozen=True):
    """Copy the conversation, and continue in the copy or point another key at it."""

    returns = SessionChange
    title: str | None = None
    to: str | None = None
    before: int | None = None

    async def run(self, actor: SessionActor) -> SessionChange:
        title, before = self.title, self.before
        if self.to is None:
            return await operations.branch(actor.state, title, before=before)
        return await operations.branch_to(actor.state, self.to, title, before=before)


class Undo(Verb[SessionChange], frozen=True):
    """Take back the last messages of the user and their replies."""

    returns = SessionChange
    exchanges: int = 1

    async def run(self, actor: SessionActor) -> SessionChange:
        return await operations.undo(actor.state, self.exchanges)


class Compress(Verb[SessionChange], frozen=True):
    """Summarize the older part of the conversation.

    `attempts` is how many attempts the owner had made when it was asked.
    """

    returns = SessionChange
    repeatable = True
    focus: str | None = None
    keep_exchanges: int | None = None
    attempts: int = 0

    def asked(self, context: RuntimeContext) -> Self:
        return replace(self, attempts=context.compressor.attempts)

    async def run(self, actor: SessionActor) -> SessionChange:
        options = (self.focus, self.keep_exchanges, self.attempts)
        return await operations.compress(actor.state, *options)


class Close(Verb[SessionChange], frozen=True):
    """End the current session."""

    returns = SessionChange
    reason: str

    async def run(self, actor: SessionActor) -> SessionChange:
        return await operations.close(actor.state, self.reason)


class Post(Verb[StoredMessage], frozen=True):
    """Append a message of the agent, and deliver it."""

    returns = StoredMessage
    text: str
    source: Source | None = None
    parts: Sequence[JsonObject] = ()

    async def run(self, actor: SessionActor) -> StoredMessage:
        return await operations.post(actor.state, self.text, self.source, self.parts)


class SetAgent(Verb[None], frozen=True):
    """Use an agent that the host has built."""

    returns = None
    is_local = True
    snapshot: Snapshot

    async def run(self, actor: SessionActor) -> None:
        actor.state.cache.set_agent(self.snapshot)


class AddMessages(Verb[list[StoredMessage]], frozen=True):
    """Append messages of a history; no turn answers them."""

    returns = list[StoredMessage]
    messages: Sequence[Message]
    source: Source

    async def run(self, actor: SessionActor) -> list[StoredMessage]:
        return await operations.add_messages(actor.state, self.messages, self.source)


# What does not wait for a running turn


class SetTitle(Verb[None], frozen=True):
    """Set the title."""

    returns = None
    waits = False
    repeatable = True
    title: str

    async def run(self, actor: SessionActor) -> None:
        await operations.set_title(actor.state, self.title)


class Configure(Verb[ConversationSettings], frozen=True):
    """Change the settings of the conversation."""

    returns = ConversationSettings
    waits = False
    repeatable = True
    agent: str | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    metadata: Mapping[str, Any] | UnsetType | None = UNSET

    async def run(self, actor: SessionActor) -> ConversationSettings:
        settings = await actor.state.store.configure(
            actor.key, agent=self.agent, model=self.model, metadata=self.metadata
        )
        changed = settings != ConversationSettings()
        actor.state.settings = settings.to_json() if changed else None
        return settings


class ReadStatus(Verb[Status], frozen=True):
    """Return the state of the conversation."""

    returns = Status
    waits = False
    repeatable = True

    async def run(self, actor: SessionActor) -> Status:
        return await actor.status()


class Withdraw(Verb[bool], frozen=True):
    """Take back a message whose turn has not begun."""

    returns = bool
    waits = False
    inbox_id: int

    async def run(self, actor: SessionActor) -> bool:
        return await actor.withdraw(self.inbox_id)


class Interrupt(Verb[bool], frozen=True):
    """Interrupt the running turn; False if none is running."""

    returns = bool
    waits = False

    async def run(self, actor: SessionActor) -> bool:
        await trio.lowlevel.checkpoint()
        return actor.runner.interrupt()


class InterruptTurnOf(Verb[bool], frozen=True):
    """Interrupt the turn that answers a message, if it runs or is about to begin.

    A turn that waits for another one is left alone.
    """

    returns = bool
    waits = False
    inbox_id: int

    async def run(self, actor: SessionActor) -> bool:
        if actor.claim is not None:
            await self._fetch(actor)
        for _ in range(STEPS_TO_BEGIN):
            await trio.lowlevel.checkpoint()
            turn = actor.runner.turn
            if turn is not None:
                answers = any(row.inbox_id == self.inbox_id for row in turn.rows)
                return answers and actor.runner.interrupt()
        return False

    async def _fetch(self, actor: SessionActor) -> None:
        """Wait until the actor knows the message, which another node may have accepted just now."""
        with trio.move_on_after(FETCH_SECONDS):
            while not (actor.inbox.knows(self.inbox_id) or actor.lost):
                actor.wake()
                await trio.sleep(FETCH_SECONDS / 50)


AnyVerb: TypeAlias = (
    New
    | Switch
    | Branch
    | Undo
    | Compress
    | Close
    | Post
    | AddMessages
    | SetTitle
    | Configure
    | ReadStatus
    | Withdraw
    | Interrupt
    | InterruptTurnOf
)
encode_verb: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode_verb: Callable[[bytes | str], AnyVerb] = msgspec.json.Decoder(AnyVerb).decode
