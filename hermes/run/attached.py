"""Chats with a bot in another process, and single questions (`-p`).

A question is always sent over JSON-RPC: to the running bot, or else to a runtime in this process.
"""

from __future__ import annotations

import argparse
import os
import sys

import attrs
import msgspec
import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.console import Console
from hermes.adapters.console.adapter import SESSION_KEY
from hermes.adapters.console.plain_screen import PlainScreen
from hermes.adapters.console.remote import RemoteChat, RemoteEvents, open_remote_chat
from hermes.adapters.console.view import ConversationView
from hermes.adapters.jsonrpc import serve
from hermes.adapters.jsonrpc.client import RequestFailed, connect
from hermes.adapters.jsonrpc.events import MessageComplete
from hermes.adapters.jsonrpc.socket_server import socket_path
from hermes.background import open_background, start_soon
from hermes.errors import ActorStopped, actionable
from hermes.events import TurnEnded, TurnStarted
from hermes.session_keys import MAX_LENGTH, require_encodable
from hermes.store.files.file_lock import resolve
from hermes.texts import Texts

CONNECT_TIMEOUT = 1.0
RETRY_INTERVAL = 0.05
INTERRUPT_TIMEOUT = 2.0
FROM_INPUT = "-"
INTERRUPTED = "The answer was interrupted."
FAILED = "The question was not answered."


@attrs.frozen(kw_only=True)
class Question:
    """One question; `new` starts a new session first, `json` prints a JSON object."""

    text: str
    session_key: str = SESSION_KEY
    new: bool = False
    json: bool = False


@attrs.frozen(kw_only=True)
class ChatOptions:
    """The conversation of the chat, or the question that is asked instead of a chat."""

    session_key: str = SESSION_KEY
    question: Question | None = None


def chat_options(options: argparse.Namespace) -> ChatOptions:
    """Return the options of the chat; reads standard input. Raises `ValueError`."""
    key = SESSION_KEY if options.session is None else options.session
    require_encodable(key)
    if not key or len(key) > MAX_LENGTH:
        raise ValueError(f"--session must have 1 to {MAX_LENGTH} characters")
    if options.prompt is None:
        return ChatOptions(session_key=key)
    text = _question_text(options.prompt)
    if not text.strip():
        raise ValueError("-p: the question is empty")
    question = Question(text=text, session_key=key, new=options.new, json=options.json)
    return ChatOptions(session_key=key, question=question)


def _question_text(given: str) -> str:
    """Return the question, followed by the standard input unless that is a terminal."""
    alone = given == FROM_INPUT
    if sys.stdin is None or (sys.stdin.isatty() and not alone):
        return given
    text = sys.stdin.buffer.read().decode(errors="replace")
    return text if alone else "\n\n".join(filter(str.strip, (given, text)))


async def connect_to_bot(path: str | os.PathLike[str]) -> trio.SocketStream | None:
    """Connect to the bot that owns a database; None if it does not accept chats.

    A bot that has just started gets a moment to open its socket.
    """
    address = socket_path(resolve(path))
    with trio.move_on_after(CONNECT_TIMEOUT):
        while True:
            try:
                return await connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                await trio.sleep(RETRY_INTERVAL)
            except OSError:
                return None
    return None


async def chat_with_bot(stream: trio.abc.Stream, console: Console, texts: Texts) -> bool:
    """Run a console on a conversation of a bot. Returns False if the bot has ended.

    Raises `RequestFailed` if the bot refuses the chat.
    """
    try:
        async with open_remote_chat(stream, console.session_key, texts) as chat:
            await console.run_chat(chat)
            return not chat.ended
    except ActorStopped:
        return False
    except BaseExceptionGroup as group:
        error = actionable(group)
        if isinstance(error, ActorStopped):
            return False
        raise error from group


async def ask_bot(stream: trio.abc.Stream, question: Question, texts: Texts) -> bool | None:
    """Ask a bot a question and print the answer.

    Returns whether it was answered; None if the bot has ended before that.
    """
    try:
        async with open_remote_chat(stream, question.session_key, texts) as chat:
            return await _ask(chat, question)
    except RequestFailed as error:
        sys.stderr.write(f"{error}\n")
        return False
    except ActorStopped:
        return None


async def ask_runtime(runtime: Runtime, question: Question) -> bool:
    """Ask a runtime in this process a question and print the answer; returns whether it had one."""
    ours, theirs = map(trio.SocketStream, trio.socket.socketpair())
    async with open_background() as background, theirs:
        start_soon(background, serve, runtime, theirs, theirs)
        return await ask_bot(ours, question, runtime.texts) or False


async def _ask(chat: RemoteChat, question: Question) -> bool:
    try:
        if question.new:
            await chat.ask("/new")
        inbox_id = await chat.submit(question.text)
        shown = question.json or await _show(chat.subscribe(), inbox_id, question.session_key)
        return _report(await chat.answer_to(inbox_id), json=question.json) and shown
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return False
    except trio.Cancelled:
        with trio.move_on_after(INTERRUPT_TIMEOUT, shield=True):
            await chat.interrupt()
        raise


async def _show(events: RemoteEvents, inbox_id: int, session_key: str) -> bool:
    """Show the answer to one message as it arrives; not those to others, and no failure.

    Returns False if the output cannot be written.
    """
    screen = PlainScreen(1, notes=False)
    view = ConversationView(session_key, screen)
    turn_id = None
    async for envelope in events:
        event = envelope.event
        if isinstance(event, TurnStarted | TurnEnded) and inbox_id in event.inbox_ids:
            turn_id = envelope.turn_id
            if isinstance(event, TurnEnded):
                if event.reply.status not in {"failed", "refused"}:
                    await view.show_event(envelope)
                await screen.finish()
                break
        if turn_id is not None and envelope.turn_id == turn_id:
            await view.show_event(envelope)
    return not screen.failed


def _report(answer: MessageComplete, *, json: bool) -> bool:
    """Print the answer as JSON, or why there is none; returns whether there is one."""
    if json:
        values = {
            "text": answer.text,
            "session_id": answer.stored_session_id,
            "usage": answer.usage,
            "status": answer.status,
        }
        sys.stdout.write(f"{msgspec.json.encode(values).decode()}\n")
        sys.stdout.flush()
    if answer.status == "error":
        sentence = " ".join(answer.text.split()) or answer.error or FAILED
        sys.stderr.write(f"{sentence}\n")
    elif answer.status == "interrupted":
        sys.stderr.write(f"{INTERRUPTED}\n")
    return answer.status == "complete"
