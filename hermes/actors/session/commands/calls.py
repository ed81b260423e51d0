"""What the handlers of commands share: the call, the table of handlers, and replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from hermes.actors.session.state import SessionState
from hermes.messages import Approval, InboxReply, InboxRow, Status
from hermes.outbound import inbox_reply
from hermes.texts import Texts, help_line

MAX_LINE = 80


class CommandCall(msgspec.Struct, frozen=True):
    """A command to run, and what its actor knows about the moment."""

    row: InboxRow
    cancelled: Sequence[InboxRow]
    """Messages that the command cancelled before their turn."""
    stopped_turn: bool
    """Whether a turn was interrupted for this command."""
    status: Callable[[], Awaitable[Status]]
    shows: list[Approval] = msgspec.field(default_factory=list)
    """The tool calls that the reply shows, for the user to decide about."""

    @property
    def rows(self) -> list[InboxRow]:
        """All inbox rows that the reply closes; the command is the last."""
        return [*self.cancelled, self.row]


Handler: TypeAlias = Callable[[SessionState, CommandCall, str], Awaitable[str | None]]
H = TypeVar("H", bound=Handler)
HANDLERS: dict[str, Handler] = {}
"""The handler of each command. It returns the reply, or None if the command needs a turn."""


def handles(name: str) -> Callable[[H], H]:
    """Register the handler of a command."""

    def register(handler: H) -> H:
        HANDLERS[name] = handler
        return handler

    return register


def texts_of(state: SessionState) -> Texts:
    """Return the sentences for users."""
    return state.context.texts


async def reply(state: SessionState, call: CommandCall, text: str) -> str:
    """Store the reply to a command, and return it."""
    await state.store.answer(reply_to(state, call, text))
    return text


def reply_to(state: SessionState, call: CommandCall, text: str) -> InboxReply:
    """Return the reply to a command, for the transaction of the change that it makes."""
    return inbox_reply(call.rows, state.session_id or "", text, "command")


async def usage(state: SessionState, call: CommandCall, name: str) -> str:
    """Reply how a command is used."""
    line, _ = help_line(texts_of(state), name)
    return await reply(state, call, texts_of(state).usage.format(usage=line))


def cancelled(texts: Texts, call: CommandCall) -> str:
    """Return what is added to a reply if the command cancelled messages."""
    number = len(call.cancelled)
    if not number:
        return ""
    return " " + (texts.cancelled_many.format(number=number) if number > 1 else texts.cancelled_one)


def shorten(text: str | None, limit: int = MAX_LINE) -> str:
    """Return the beginning of a text, as one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
