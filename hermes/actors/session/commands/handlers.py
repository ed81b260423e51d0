"""Runs the commands of users: `/new`, `/resume`, `/compress` and the others.

A command is accepted like a message. Its reply is written in the transaction of the change it
makes. Commands see the conversations of their own session_key only.
"""

from __future__ import annotations

import functools
import re

from msgspec.structs import replace

import hermes.actors.session.commands.agents
import hermes.actors.session.commands.sessions  # noqa: F401 - they register their handlers
from hermes.actors.admission import pairing
from hermes.actors.commands import COMMANDS, parse, unknown
from hermes.actors.compression.types import result_text
from hermes.actors.session import approvals, compression, operations
from hermes.actors.session.commands.calls import (
    HANDLERS,
    CommandCall,
    cancelled,
    handles,
    reply,
    reply_to,
    shorten,
    texts_of,
    usage,
)
from hermes.actors.session.commands.failures import command_failure
from hermes.actors.session.commands.listing import is_number, status_text, usage_text
from hermes.actors.session.state import SessionState
from hermes.errors import NotOwner, StoreFailed
from hermes.messages import (
    Inbound,
    InboxRow,
    Role,
    StoredMessage,
    Transcript,
    may,
)
from hermes.session_keys import background_key
from hermes.texts import help_line
from hermes.transcript.compaction import is_question
from hermes.transcript.decisions import decision_in
from hermes.user_code import contained

MAX_KEPT = 100
_HERE = re.compile(r"(?:up to )?here(?:\s+(\d{1,9}))?|(?:--keep[= ]|-k )(\d{1,9})", re.IGNORECASE)


async def run_command(state: SessionState, call: CommandCall) -> str | None:
    """Run a command and store its reply. Returns the reply; None if the command needs a turn."""
    inbound = call.row.inbound
    parsed = parse(inbound.text, inbound.source.platform)
    if parsed is None:
        return await reply(
            state, call, unknown(inbound.text, inbound.source.platform, texts_of(state))
        )
    with contained(StoreFailed, NotOwner) as caught:
        return await HANDLERS[parsed.name](state, call, parsed.argument)
    assert caught.error is not None
    text = command_failure(call.row, caught.error, texts_of(state))
    return await reply(state, call, text + cancelled(texts_of(state), call))


@handles("stop")
async def _stop(state: SessionState, call: CommandCall, _: str) -> str:
    texts = texts_of(state)
    text = texts.stopped if call.stopped_turn or call.cancelled else texts.nothing_running
    return await reply(state, call, text + cancelled(texts, call))


# The transcript


@handles("undo")
async def _undo(state: SessionState, call: CommandCall, argument: str) -> str:
    if argument and not is_number(argument):
        return await usage(state, call, "undo")  # a typo must not take anything back
    number, texts = int(argument[:9] or 1), texts_of(state)
    transcript = await _load(state)
    questions = _questions(transcript)[-number:] if number else []
    if not questions:
        return await reply(state, call, texts.nothing_to_undo)
    asked, more = questions[0].content, len(questions) - 1
    first = shorten(decision_in(asked) or asked)
    text = (texts.undone_many if more else texts.undone).format(text=first, number=more)
    await operations.rewind(
        state, transcript.head, questions[0].id, answer=reply_to(state, call, text)
    )
    return text


@handles("retry")
async def _retry(state: SessionState, call: CommandCall, _: str) -> str | None:
    if _questions(await _load(state)):
        return None  # the actor runs the turn again
    return await reply(state, call, texts_of(state).nothing_to_retry)


async def _load(state: SessionState) -> Transcript:
    head = await state.locate(refresh=True)
    return await state.store.load(head.session_id)


@handles("compress")
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
        answer=functools.partial(reply_to, state, call),
    )
    return await reply(state, call, result_text(result, texts_of(state)))


# Tools and background tasks


@handles("background")
async def _background(state: SessionState, call: CommandCall, text: str) -> str:
    if not text:
        return await usage(state, call, "background")
    config, source = state.context.config, call.row.inbound.source
    await state.context.store.accept(
        background_message(call.row, text),
        policy=config.expiry_of(source.platform, source.chat_type),
        max_queued=config.max_queued,
    )
    return await reply(state, call, texts_of(state).in_background)


@handles("approve")
async def _approve(state: SessionState, call: CommandCall, argument: str) -> str:
    return await _decide(state, call, "approve", argument)


@handles("deny")
async def _deny(state: SessionState, call: CommandCall, argument: str) -> str:
    return await _decide(state, call, "deny", argument)


async def _decide(state: SessionState, call: CommandCall, name: str, argument: str) -> str:
    stored = functools.partial(reply_to, state, call)
    answer = await approvals.run(state, call.row, name, argument, stored)
    if answer is None:
        return await usage(state, call, name)
    call.shows.extend(answer.shows)
    return answer.text if answer.stored else await reply(state, call, answer.text)


@handles("queue")
async def _queue(state: SessionState, call: CommandCall, _: str) -> str:
    return await usage(state, call, "queue")


@handles("steer")
async def _steer(state: SessionState, call: CommandCall, _: str) -> str:
    return await usage(state, call, "steer")


# Information


@handles("status")
async def _status(state: SessionState, call: CommandCall, _: str) -> str:
    return await reply(state, call, status_text(await call.status(), texts_of(state)))


@handles("usage")
async def _usage_totals(state: SessionState, call: CommandCall, _: str) -> str:
    head = await state.locate(refresh=True)
    calls = await state.store.get_usage(head.session_id)
    return await reply(state, call, usage_text(calls, texts_of(state)))


@handles("help")
async def _help(state: SessionState, call: CommandCall, _: str) -> str:
    role, texts = await _role(state, call), texts_of(state)
    platform = call.row.inbound.source.platform
    allowed = [
        name
        for name, command in COMMANDS.items()
        if may(role, command.role) and command.platform in {None, platform}
    ]
    lines = [": ".join(help_line(texts, name)) for name in allowed]
    return await reply(state, call, "\n".join(lines))


@handles("quit")
async def _quit(state: SessionState, call: CommandCall, _: str) -> str:
    return await reply(state, call, texts_of(state).goodbye)


@handles("attach")
async def _attach(state: SessionState, call: CommandCall, _: str) -> str:
    return await usage(state, call, "attach")  # the console itself runs it, and reads the files


@handles("detach")
async def _detach(state: SessionState, call: CommandCall, _: str) -> str:
    return await usage(state, call, "detach")


@handles("save")
async def _save(state: SessionState, call: CommandCall, _: str) -> str:
    return await usage(state, call, "save")


@handles("start")
async def _start(state: SessionState, call: CommandCall, _: str) -> str:
    return await reply(state, call, texts_of(state).start)


@handles("whoami")
async def _whoami(state: SessionState, call: CommandCall, _: str) -> str:
    source, texts = call.row.inbound.source, texts_of(state)
    text = (texts.whoami if state.context.admission is None else texts.whoami_role).format(
        user=source.user_id or texts.no_user,
        platform=source.platform,
        role=await _role(state, call),
        session_key=state.key,
    )
    return await reply(state, call, text)


# Access


async def _role(state: SessionState, call: CommandCall) -> Role:
    """Return the sender's current role; it may have changed since the command was accepted."""
    admission = state.context.admission
    if admission is None:
        return "user"
    return await admission.role_of(call.row.inbound.source) or "guest"


@handles("pair")
async def _pair(state: SessionState, call: CommandCall, argument: str) -> str:
    if (refusal := await _not_operator(state, call)) is not None:
        return await reply(state, call, refusal)
    store, texts = state.store, texts_of(state)
    if not argument:
        return await reply(state, call, await pairing.listing(store, call.row.accepted_at, texts))
    stored = functools.partial(reply_to, state, call)
    text = await pairing.pair(store, call.row.inbound.source, argument, stored, texts)
    return await usage(state, call, "pair") if text is None else text


@handles("unpair")
async def _unpair(state: SessionState, call: CommandCall, argument: str) -> str:
    if (refusal := await _not_operator(state, call)) is not None:
        return await reply(state, call, refusal)
    stored = functools.partial(reply_to, state, call)
    text = await pairing.unpair(state.store, argument, stored, texts_of(state))
    return await usage(state, call, "unpair") if text is None else text


async def _not_operator(state: SessionState, call: CommandCall) -> str | None:
    if state.context.admission is None:
        return texts_of(state).no_access_control
    return None if await _role(state, call) == "operator" else texts_of(state).not_operator


assert HANDLERS.keys() == COMMANDS.keys(), "every command has exactly one handler"


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
