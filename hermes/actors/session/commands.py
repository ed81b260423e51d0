"""Runs the commands of users: `/new`, `/resume`, `/compress` and the others.

A command is accepted like a message. Its reply is written in the transaction of the change it
makes. Commands see the conversations of their own session_key only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from hermes.actors.admission import pairing
from hermes.actors.commands import COMMANDS, parse
from hermes.actors.compression.types import result_text
from hermes.actors.session import approvals, compression, operations
from hermes.actors.session.failures import command_failure
from hermes.actors.session.listing import (
    MAX_LISTED,
    find_session,
    is_number,
    own_sessions,
    session_line,
    status_text,
    usage_text,
)
from hermes.actors.session.state import SessionState
from hermes.errors import StoreFailed
from hermes.messages import (
    Approval,
    Inbound,
    InboxReply,
    InboxRow,
    Role,
    Status,
    StoredMessage,
    Transcript,
    may,
)
from hermes.outbound import inbox_reply
from hermes.session_keys import background_key
from hermes.texts import Texts, help_line
from hermes.transcript.compaction import is_question
from hermes.user_code import contained

MAX_KEPT = 100
MAX_LINE = 80
_HERE = re.compile(r"(?:up to )?here(?:\s+(\d{1,9}))?|(?:--keep[= ]|-k )(\d{1,9})", re.IGNORECASE)


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
_HANDLERS: dict[str, Handler] = {}


def _handles(name: str) -> Callable[[H], H]:
    def register(handler: H) -> H:
        _HANDLERS[name] = handler
        return handler

    return register


async def run_command(state: SessionState, call: CommandCall) -> str | None:
    """Run a command and store its reply. Returns the reply; None if the command needs a turn."""
    parsed = parse(call.row.inbound.text)
    if parsed is None:
        word = (call.row.inbound.text.split() or ["/"])[0][:50]
        return await _reply(state, call, _texts(state).unknown_command.format(command=word))
    with contained(StoreFailed) as caught:
        return await _HANDLERS[parsed.name](state, call, parsed.argument)
    assert caught.error is not None
    text = command_failure(call.row, caught.error, _texts(state))
    return await _reply(state, call, text + _cancelled(_texts(state), call))


def _texts(state: SessionState) -> Texts:
    return state.context.texts


async def _reply(state: SessionState, call: CommandCall, text: str) -> str:
    await state.context.store.answer(_reply_to(state, call, text))
    return text


def _reply_to(state: SessionState, call: CommandCall, text: str) -> InboxReply:
    return inbox_reply(call.rows, state.session_id or "", text, "command")


async def _usage(state: SessionState, call: CommandCall, name: str) -> str:
    usage, _ = help_line(_texts(state), name)
    return await _reply(state, call, _texts(state).usage.format(usage=usage))


# Conversations


@_handles("new")
async def _new(state: SessionState, call: CommandCall, title: str) -> str:
    texts = _texts(state)
    text = texts.new_titled_session.format(title=title) if title else texts.new_session
    text += _cancelled(texts, call)
    await operations.new_session(
        state,
        title or None,
        platform=call.row.inbound.source.platform,
        answer=_reply_to(state, call, text),
    )
    return text


@_handles("stop")
async def _stop(state: SessionState, call: CommandCall, _: str) -> str:
    texts = _texts(state)
    text = texts.stopped if call.stopped_turn or call.cancelled else texts.nothing_running
    return await _reply(state, call, text + _cancelled(texts, call))


@_handles("sessions")
async def _sessions(state: SessionState, call: CommandCall, _: str) -> str:
    own, texts = await own_sessions(state), _texts(state)
    if not own:
        return await _reply(state, call, texts.no_sessions)
    lines = [session_line(number, each, texts) for number, each in enumerate(own[:MAX_LISTED], 1)]
    if len(own) > MAX_LISTED:
        lines.append(texts.more_sessions.format(number=len(own) - MAX_LISTED))
    return await _reply(state, call, "\n".join([*lines, texts.how_to_resume]))


@_handles("resume")
async def _resume(state: SessionState, call: CommandCall, wanted: str) -> str:
    if not wanted:
        return await _sessions(state, call, "")
    found = await find_session(state, wanted)
    if isinstance(found, str):
        return await _reply(state, call, found)
    text = _texts(state).resumed.format(name=found.title or found.id)
    await operations.switch(state, found.id, answer=_reply_to(state, call, text))
    return text


@_handles("branch")
async def _branch(state: SessionState, call: CommandCall, title: str) -> str:
    head = await state.locate(refresh=True)
    if not head.message_count:
        return await _reply(state, call, _texts(state).nothing_to_branch)
    text = _texts(state).branched
    await operations.branch(state, title or None, answer=_reply_to(state, call, text))
    return text


@_handles("title")
async def _title(state: SessionState, call: CommandCall, title: str) -> str:
    texts = _texts(state)
    if not title:
        current = (await state.context.store.get_title(state.key)).text
        text = texts.title.format(title=current) if current else texts.no_title
        return await _reply(state, call, text)
    stored = await operations.set_title(state, title)
    return await _reply(state, call, texts.title_set.format(title=stored.text))


# The transcript


@_handles("undo")
async def _undo(state: SessionState, call: CommandCall, argument: str) -> str:
    if argument and not is_number(argument):
        return await _usage(state, call, "undo")  # a typo must not take anything back
    number, texts = int(argument[:9] or 1), _texts(state)
    transcript = await _load(state)
    questions = _questions(transcript)[-number:] if number else []
    if not questions:
        return await _reply(state, call, texts.nothing_to_undo)
    first, more = _shorten(questions[0].content), len(questions) - 1
    text = (texts.undone_many if more else texts.undone).format(text=first, number=more)
    await operations.rewind(
        state, transcript.head, questions[0].id, answer=_reply_to(state, call, text)
    )
    return text


@_handles("retry")
async def _retry(state: SessionState, call: CommandCall, _: str) -> str | None:
    if _questions(await _load(state)):
        return None  # the actor runs the turn again
    return await _reply(state, call, _texts(state).nothing_to_retry)


async def _load(state: SessionState) -> Transcript:
    head = await state.locate(refresh=True)
    return await state.context.store.load(head.session_id)


@_handles("compress")
async def _compress(state: SessionState, call: CommandCall, argument: str) -> str:
    here = _HERE.fullmatch(argument)
    keep = None
    if here is not None:
        keep = min(int(here.group(1) or here.group(2) or 2), MAX_KEPT)
    result = await compression.on_request(
        state,
        f"{call.row.inbox_id}:command",
        lambda past: call.row.inbox_id <= past.latest_command,
        focus=None if here is not None else argument or None,
        keep_exchanges=keep,
        answer=functools.partial(_reply_to, state, call),
    )
    return await _reply(state, call, result_text(result, _texts(state)))


# Tools and background tasks


@_handles("background")
async def _background(state: SessionState, call: CommandCall, text: str) -> str:
    if not text:
        return await _usage(state, call, "background")
    config, source = state.context.config, call.row.inbound.source
    await state.context.store.accept(
        background_message(call.row, text),
        policy=config.expiry_of(source.platform, source.chat_type),
        max_queued=config.max_queued,
    )
    return await _reply(state, call, _texts(state).in_background)


@_handles("approve")
async def _approve(state: SessionState, call: CommandCall, argument: str) -> str:
    return await _decide(state, call, "approve", argument)


@_handles("deny")
async def _deny(state: SessionState, call: CommandCall, argument: str) -> str:
    return await _decide(state, call, "deny", argument)


async def _decide(state: SessionState, call: CommandCall, name: str, argument: str) -> str:
    reply = functools.partial(_reply_to, state, call)
    answer = await approvals.run(state.context, call.row, name, argument, reply)
    if answer is None:
        return await _usage(state, call, name)
    call.shows.extend(answer.shows)
    return answer.text if answer.stored else await _reply(state, call, answer.text)


@_handles("queue")
async def _queue(state: SessionState, call: CommandCall, _: str) -> str:
    return await _usage(state, call, "queue")


@_handles("steer")
async def _steer(state: SessionState, call: CommandCall, _: str) -> str:
    return await _usage(state, call, "steer")


# Information


@_handles("status")
async def _status(state: SessionState, call: CommandCall, _: str) -> str:
    return await _reply(state, call, status_text(await call.status(), _texts(state)))


@_handles("usage")
async def _usage_totals(state: SessionState, call: CommandCall, _: str) -> str:
    head = await state.locate(refresh=True)
    calls = await state.context.store.get_usage(head.session_id)
    return await _reply(state, call, usage_text(calls, _texts(state)))


@_handles("help")
async def _help(state: SessionState, call: CommandCall, _: str) -> str:
    role, texts = await _role(state, call), _texts(state)
    allowed = [name for name, command in COMMANDS.items() if may(role, command.role)]
    lines = [": ".join(help_line(texts, name)) for name in allowed]
    return await _reply(state, call, "\n".join(lines))


@_handles("whoami")
async def _whoami(state: SessionState, call: CommandCall, _: str) -> str:
    source, texts = call.row.inbound.source, _texts(state)
    text = (texts.whoami if state.context.admission is None else texts.whoami_role).format(
        user=source.user_id or texts.no_user,
        platform=source.platform,
        role=await _role(state, call),
        session_key=state.key,
    )
    return await _reply(state, call, text)


# Access


async def _role(state: SessionState, call: CommandCall) -> Role:
    """Return the sender's current role; it may have changed since the command was accepted."""
    admission = state.context.admission
    if admission is None:
        return "user"
    return await admission.role_of(call.row.inbound.source) or "guest"


@_handles("pair")
async def _pair(state: SessionState, call: CommandCall, argument: str) -> str:
    if (refusal := await _not_operator(state, call)) is not None:
        return await _reply(state, call, refusal)
    store, texts = state.context.store, _texts(state)
    if not argument:
        return await _reply(state, call, await pairing.listing(store, call.row.accepted_at, texts))
    reply = functools.partial(_reply_to, state, call)
    text = await pairing.pair(store, call.row.inbound.source, argument, reply, texts)
    return await _usage(state, call, "pair") if text is None else text


@_handles("unpair")
async def _unpair(state: SessionState, call: CommandCall, argument: str) -> str:
    if (refusal := await _not_operator(state, call)) is not None:
        return await _reply(state, call, refusal)
    reply = functools.partial(_reply_to, state, call)
    text = await pairing.unpair(state.context.store, argument, reply, _texts(state))
    return await _usage(state, call, "unpair") if text is None else text


async def _not_operator(state: SessionState, call: CommandCall) -> str | None:
    if state.context.admission is None:
        return _texts(state).no_access_control
    return None if await _role(state, call) == "operator" else _texts(state).not_operator


assert _HANDLERS.keys() == COMMANDS.keys(), "every command has exactly one handler"


def background_message(row: InboxRow, text: str) -> Inbound:
    """Return the message of `/background`: a separate conversation that answers in this chat."""
    inbound = row.inbound
    return replace(
        inbound,
        session_key=background_key(inbound.session_key, row.inbox_id),
        event_id=f"background:{row.inbox_id}",
        text=text,
        command=False,
        when_busy=None,
    )


def _questions(transcript: Transcript) -> list[StoredMessage]:
    return [row for row in transcript.messages if is_question(row)]


def _shorten(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


def _cancelled(texts: Texts, call: CommandCall) -> str:
    number = len(call.cancelled)
    if not number:
        return ""
    return " " + (texts.cancelled_many.format(number=number) if number > 1 else texts.cancelled_one)
