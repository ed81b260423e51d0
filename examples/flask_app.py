"""A chat service with Flask and threads. Run it with one worker process:

    gunicorn --workers 1 --threads 20 'flask_app:create_app()'

POST /chats/{name} with {"text": "..."} returns the reply. POST /chats/{name}/stream sends it as
server-sent events while it is written; a client that disconnects stops the answer. With the header
Idempotency-Key a request can be repeated: the same key gets the same answer, and a disconnect does
not stop it, because the client may come back for it. GET /chats/{name} returns the transcript. On
SIGTERM, Gunicorn finishes the requests that are running, and the runtime is drained when the worker
exits.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack

import trio
from flask import Blueprint, Flask, Response, current_app, request
from werkzeug.exceptions import UnprocessableEntity

import hermes
from hermes.embed import BlockingConversation, BlockingRuntime, BlockingStream

MAX_LENGTH = 10_000


async def reply(turn: hermes.Turn) -> str:  # on Trio, in the runtime's thread
    answer = f"You said: {turn.text}"
    for word in answer.split():
        turn.emit(hermes.TextDelta(f"{word} "))
        await trio.sleep(0.02)
    return answer


chats = Blueprint("chats", __name__)


def create_app() -> Flask:
    until_exit = ExitStack()
    path = os.environ.get("CHATS", "chats.db")
    runtime = until_exit.enter_context(hermes.embed.start_runtime(path, agent=reply))
    atexit.register(until_exit.close)  # drains the runtime
    app = Flask(__name__)
    app.extensions["hermes"] = runtime
    app.register_blueprint(chats)
    return app


def get_runtime() -> BlockingRuntime:
    return current_app.extensions["hermes"]


def get_chat(name: str) -> BlockingConversation:
    return get_runtime().conversation(f"web:{name}")


def get_text() -> str:
    match request.get_json():
        case {"text": str(text)} if len(text) <= MAX_LENGTH:
            return text
    raise UnprocessableEntity(f"send a text of at most {MAX_LENGTH} characters")


@chats.post("/chats/<name>")
def ask(name: str):
    chat, text = get_chat(name), get_text()
    try:
        answer = chat.ask(text, event_id=request.headers.get("Idempotency-Key"))
    except hermes.AlreadyAnswered as error:
        answer = get_runtime().wait(error.receipt)
    return {"text": answer.text, "status": answer.status}


@chats.post("/chats/<name>/stream")
def stream(name: str):
    chat, text, key = get_chat(name), get_text(), request.headers.get("Idempotency-Key")
    with ExitStack() as stack:
        stream = chat.stream(text, event_id=key, interrupt_on_exit=key is None)
        try:
            events = server_sent_events(stack.enter_context(stream))
        except hermes.AlreadyAnswered as error:
            events = iter([reply_event(get_runtime().wait(error.receipt))])
        response = Response(events, mimetype="text/event-stream")
        response.call_on_close(stack.pop_all().close)  # leaves the stream, however this ends
        return response


def server_sent_events(stream: BlockingStream) -> Iterator[str]:
    for event in stream:
        match event:
            case hermes.TextDelta(text):
                yield server_sent_event("delta", text)
            case hermes.TurnEnded(answer):
                yield reply_event(answer)


def reply_event(answer: hermes.Reply) -> str:
    return server_sent_event("reply", {"text": answer.text, "status": answer.status})


def server_sent_event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


@chats.get("/chats/<name>")
def history(name: str):
    return [{"role": row.role, "text": row.content} for row in get_chat(name).history()]


@chats.get("/health")
def health():
    return {"running": get_runtime().admin.statistics().running}


@chats.errorhandler(hermes.HermesError)
@chats.errorhandler(ValueError)
def on_error(error: Exception):
    status = 503  # overloaded, disk full, shutting down
    if isinstance(error, hermes.EventConflict):  # the key was used for another text
        status = 409
    elif isinstance(error, ValueError):  # for example, an empty text
        status = 422
    return {"detail": str(error)}, status
