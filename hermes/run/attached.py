"""Chats with a bot in another process, and single questions (`-p`).

A question is always sent over JSON-RPC: to the running bot, or else to a runtime in this process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import msgspec
import trio

from hermes.actors.commands import parse, recognize, unknown
from hermes.actors.runtime import Runtime
from hermes.adapters.console import Console
from hermes.adapters.console.adapter import SESSION_KEY, SOURCE
from hermes.adapters.console.chat import ChatFile
from hermes.adapters.console.files.commands import NOT_SAVED, SAVED, carries_files, open_files
from hermes.adapters.console.files.local import NotSaved, open_local, save, shown, target_of
from hermes.adapters.console.plain_screen import PlainScreen
from hermes.adapters.console.remote import RemoteChat, open_remote_chat
from hermes.adapters.console.view import ConversationView
from hermes.adapters.jsonrpc import serve
from hermes.adapters.jsonrpc.client import RequestFailed, connect
from hermes.adapters.jsonrpc.events import ApprovalRequest, MessageComplete
from hermes.adapters.jsonrpc.socket_server import socket_path
from hermes.background import cancel, open_background, start_soon
from hermes.errors import ActorStopped, AttachmentRefused, UnknownFile, actionable
from hermes.events import TurnEnded, TurnStarted
from hermes.messages import JsonObject
from hermes.session_keys import CLIENT_PLATFORM, MAX_LENGTH, require_encodable
from hermes.store.sqlite.file_lock import resolve
from hermes.texts import ENGLISH, Texts

CONNECT_TIMEOUT = 1.0
RETRY_INTERVAL = 0.05
INTERRUPT_TIMEOUT = 2.0
FROM_INPUT = "-"
INTERRUPTED = "The answer was interrupted."
FAILED = "The question was not answered."
PIPED = "Attached to the running bot ({owner})."
KEPT = "Interrupted; the question is kept, and will be answered."
QUIT = "/quit ends a chat; after -p Hermes exits by itself"
NOT_AFTER_P = "/{} is a command of a chat; -p has the options --attach FILE and --save DIR"
NO_MESSAGE = "--attach requires a message; {} is a command"


@attrs.frozen(kw_only=True)
class Question:
    """One question; `new` starts a new session first, `json` prints a JSON object.

    `attach` are files to send with it, and `save` is a folder for the files of the answer.
    """

    text: str
    session_key: str = SESSION_KEY
    new: bool = False
    json: bool = False
    attach: tuple[Path, ...] = ()
    save: str | None = None


@attrs.frozen(kw_only=True)
class ChatOptions:
    """The conversation of the chat, or the question that is asked instead of a chat."""

    session_key: str = SESSION_KEY
    question: Question | None = None


def chat_options(options: argparse.Namespace) -> ChatOptions:
    """Return the options of the chat; reads standard input. Raises `ValueError`.

    Files to attach are checked here, and read when the question is sent.
    """
    key = SESSION_KEY if options.session is None else options.session
    require_encodable(key)
    if not key or len(key) > MAX_LENGTH:
        raise ValueError(f"--session must have 1 to {MAX_LENGTH} characters")
    if options.prompt is None:
        return ChatOptions(session_key=key)
    text = _question_text(options.prompt)
    if not text.strip():
        raise ValueError("-p: the question is empty")
    _check_command(text)
    _check_files(text, options)
    question = Question(
        text=text, session_key=key, new=options.new, json=options.json,
        attach=tuple(map(Path, options.attach)), save=options.save,
    )  # fmt: skip
    return ChatOptions(session_key=key, question=question)


def _question_text(given: str) -> str:
    """Return the question, followed by the standard input unless that is a terminal."""
    alone = given == FROM_INPUT
    if sys.stdin is None or (sys.stdin.isatty() and not alone):
        return given
    text = sys.stdin.buffer.read().decode(errors="replace")
    return text if alone else "\n\n".join(filter(str.strip, (given, text)))


def _check_command(text: str) -> None:
    """Raise `ValueError` if the text is a command that does not exist, or ends a chat."""
    text, is_command = recognize(text)
    if not is_command or parse(text, CLIENT_PLATFORM) is not None:
        return
    parsed = parse(text, SOURCE.platform)
    if parsed is None:
        raise ValueError(f"-p: {unknown(text, CLIENT_PLATFORM, ENGLISH)}")
    raise ValueError(f"-p: {QUIT if parsed.name == 'quit' else NOT_AFTER_P.format(parsed.name)}")


def _check_files(text: str, options: argparse.Namespace) -> None:
    """Raise `ValueError` if a file cannot be attached, or there is no folder for the others."""
    if options.attach and not carries_files(text):
        raise ValueError(NO_MESSAGE.format(text.split(maxsplit=1)[0]))
    try:
        for path in options.attach:
            open_local(Path(path)).file.close()
    except AttachmentRefused as error:
        raise ValueError(f"--attach: {error}") from None
    if options.save is not None and not Path(options.save).is_dir():
        raise ValueError(f"--save: there is no folder {shown(options.save)}")


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


async def chat_with_bot(
    stream: trio.abc.Stream, console: Console, texts: Texts, owner: str
) -> bool:
    """Run a console on a conversation of a bot. Returns False if the bot has ended.

    `owner` is the process of the bot; a console without a terminal shows no greeting that names it.
    Raises `RequestFailed` if the bot refuses the chat.
    """
    try:
        async with open_remote_chat(stream, console.session_key, texts) as chat:
            if not console.at_terminal:
                sys.stderr.write(f"{PIPED.format(owner=owner)}\n")
            await console.run_chat(chat)
            return not chat.ended
    except ActorStopped:
        return False
    except BaseExceptionGroup as group:
        error = actionable(group)
        if isinstance(error, ActorStopped):
            return False
        raise error from group


async def ask_bot(
    stream: trio.abc.Stream, question: Question, texts: Texts, stop: trio.Event
) -> bool | None:
    """Ask a bot a question and print the answer; `stop` interrupts it.

    Returns whether it was answered; None if the bot has ended before that.
    """
    try:
        async with open_remote_chat(stream, question.session_key, texts) as chat:
            return await _ask(chat, question, stop)
    except (RequestFailed, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return False
    except ActorStopped:
        return None


async def ask_runtime(runtime: Runtime, question: Question, stop: trio.Event) -> bool:
    """Ask a runtime in this process a question and print the answer; `stop` interrupts it.

    Returns whether it was answered.
    """
    ours, theirs = map(trio.SocketStream, trio.socket.socketpair())
    async with open_background() as background, theirs:
        start_soon(background, serve, runtime, theirs, theirs)
        return await ask_bot(ours, question, runtime.texts, stop) or False


async def _ask(chat: RemoteChat, question: Question, stop: trio.Event) -> bool:
    if question.new:
        await chat.ask("/new")
    async with open_files(question.attach) as files:
        inbox_id = await chat.submit(question.text, files)
    with trio.CancelScope() as waiting:
        async with open_background() as background:
            start_soon(background, _interrupt, chat, inbox_id, stop, waiting)
            return await _answer(chat, inbox_id, question)
    sys.stderr.write(f"{KEPT}\n")
    return False


async def _interrupt(
    chat: RemoteChat, inbox_id: int, stop: trio.Event, waiting: trio.CancelScope
) -> None:
    """Interrupt the answer once `stop` is set, but not that to another message.

    Its end is still shown; if it does not come soon, `waiting` is cancelled.
    """
    await stop.wait()
    if chat.is_running(inbox_id):
        waiting.deadline = trio.current_time() + INTERRUPT_TIMEOUT
        await chat.interrupt()
    else:
        cancel(waiting)


async def _answer(chat: RemoteChat, inbox_id: int, question: Question) -> bool:
    """Wait for the answer and print it; returns whether there is one, and it was printed."""
    shown = question.json or await _show(chat, inbox_id, question.session_key)
    answer = await chat.answer_to(inbox_id)
    if _is_decision(question) and (then := chat.decision_after(inbox_id)) is not None:
        shown = question.json or await _show(chat, then, question.session_key)
        answer = await chat.answer_to(then)
    files = await _save_files(chat, answer, question)
    if question.json:
        _print_json(answer, chat.asked_in(answer.turn_id), files)
    saved = question.save is None or all("path" in file for file in files)
    return _report(answer, chat.texts) and shown and saved


async def _save_files(
    chat: RemoteChat, answer: MessageComplete, question: Question
) -> list[JsonObject]:
    """Return the fields of the answer's files; save them if asked to, and add their paths."""
    parts: list[JsonObject] = [msgspec.to_builtins(part) for part in answer.files or ()]
    for part in parts if question.save is not None else ():
        try:
            reader = await chat.open_file(ChatFile(part, question.session_key))
            saved = await save(reader, target_of(question.save or "", reader.file))
        except (RequestFailed, UnknownFile, NotSaved) as error:
            sys.stderr.write(f"{NOT_SAVED.format(problem=str(error).rstrip('.'))}\n")
        else:
            part["path"] = str(saved)
            sys.stderr.write(f"{SAVED.format(path=shown(saved))}\n")
    return parts


def _is_decision(question: Question) -> bool:
    """Whether the question is a command that may decide about a tool call; its agent goes on."""
    parsed = parse(question.text)
    return parsed is not None and parsed.name in {"approve", "deny"}


async def _show(chat: RemoteChat, inbox_id: int, session_key: str) -> bool:
    """Show the answer to one message as it arrives; not those to others, and no failure.

    Returns False if the output cannot be written.
    """
    screen = PlainScreen(1, notes=False)
    view = ConversationView(session_key, screen, chat.texts)
    turn_id = None
    async for envelope in chat.subscribe():
        event = envelope.event
        if isinstance(event, TurnStarted | TurnEnded) and inbox_id in event.inbox_ids:
            turn_id = envelope.turn_id
            if isinstance(event, TurnEnded):
                if event.reply.status not in {"failed", "refused", "interrupted"}:
                    await view.show_event(envelope)
                await screen.finish()
                break
        if turn_id is not None and envelope.turn_id == turn_id:
            await view.show_event(envelope)
    return not screen.failed


def _print_json(
    answer: MessageComplete, asked: Sequence[ApprovalRequest], files: Sequence[JsonObject]
) -> None:
    values = {
        "text": answer.text,
        "session_id": answer.stored_session_id,
        "usage": answer.usage,
        "status": answer.status,
        "approvals": asked,
        "files": files,
    }
    sys.stdout.write(f"{msgspec.json.encode(values).decode()}\n")
    sys.stdout.flush()


def _report(answer: MessageComplete, texts: Texts) -> bool:
    """Print why there is no answer, in one sentence; returns whether there is one."""
    if answer.status == "error":
        sentence = _without_advice(answer.text, texts) or answer.error or FAILED
        end = "" if sentence.endswith((".", "!", "?")) else "."
        sys.stderr.write(f"{sentence}{end}\n")
    elif answer.status == "interrupted":
        sys.stderr.write(f"{INTERRUPTED}\n")
    return answer.status == "complete"


def _without_advice(text: str, texts: Texts) -> str:
    """Return a failure on one line, without the commands that would continue a chat."""
    for template in (texts.failed, texts.unexpected):
        _, newline, advice = template.rpartition("\n")
        if newline:
            text = text.removesuffix(f"\n{advice}")
    return " ".join(text.split())
