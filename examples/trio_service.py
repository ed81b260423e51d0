"""A chat service with Starlette and Hypercorn, on Trio: python trio_service.py [database] [address]

POST /chats/{name} with {"text": "..."} returns the reply. POST /chats/{name}/stream sends it as
server-sent events while it is written; a client that disconnects stops the answer. With the header
Idempotency-Key a request can be repeated: the same key gets the same answer, and a disconnect does
not stop it, because the client may come back for it. GET /chats/{name} returns the transcript. On
SIGTERM, Hypercorn finishes the requests that are running, and leaving the block drains the runtime.
"""

from __future__ import annotations

import json
import signal
import sys

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import hermes

MAX_LENGTH = 10_000


async def reply(turn: hermes.Turn) -> str:
    answer = f"You said: {turn.text}"
    for word in answer.split():
        turn.emit(hermes.TextDelta(f"{word} "))
        await trio.sleep(0.02)
    return answer


def get_chat(request: Request) -> hermes.Conversation:
    runtime: hermes.Runtime = request.app.state.runtime
    return runtime.conversation(f"web:{request.path_params['name']}")


async def get_text(request: Request) -> str:
    match await request.json():
        case {"text": str(text)} if len(text) <= MAX_LENGTH:
            return text
    raise HTTPException(422, f"send a text of at most {MAX_LENGTH} characters")


async def ask(request: Request) -> Response:
    chat, text = get_chat(request), await get_text(request)
    try:
        answer = await chat.ask(text, event_id=request.headers.get("Idempotency-Key"))
    except hermes.AlreadyAnswered as error:
        answer = await request.app.state.runtime.wait(error.receipt)
    return JSONResponse({"text": answer.text, "status": answer.status})


class StreamEndpoint:
    """Sends the events of one message. Without a key, leaving the block stops the turn."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        chat, text = get_chat(request), await get_text(request)
        key = request.headers.get("Idempotency-Key")
        try:
            async with chat.stream(text, event_id=key, interrupt_on_exit=key is None) as events:
                await send_events(events, receive, send)
        except hermes.AlreadyAnswered as error:
            answer = await request.app.state.runtime.wait(error.receipt)
            body = server_sent_event("reply", {"text": answer.text, "status": answer.status})
            await Response(body, media_type="text/event-stream")(scope, receive, send)


async def send_events(events: hermes.Stream, receive: Receive, send: Send) -> None:
    """Send events until the reply, or until the client disconnects."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_on_disconnect, receive, nursery.cancel_scope)
        async for event in events:
            match event:
                case hermes.TextDelta(text):
                    body = server_sent_event("delta", text)
                case hermes.TurnEnded(answer):
                    data = {"text": answer.text, "status": answer.status}
                    body = server_sent_event("reply", data)
                case _:
                    continue
            await send({"type": "http.response.body", "body": body, "more_body": True})
        nursery.cancel_scope.cancel()
    await send({"type": "http.response.body"})


async def cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def server_sent_event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def history(request: Request) -> Response:
    rows = await get_chat(request).history()
    return JSONResponse([{"role": row.role, "text": row.content} for row in rows])


async def health(request: Request) -> Response:
    statistics = await request.app.state.runtime.admin.statistics()
    return JSONResponse({"running": statistics.running})


async def on_error(_: Request, error: Exception) -> Response:
    status = 503  # overloaded, disk full, shutting down
    if isinstance(error, hermes.EventConflict):  # the key was used for another text
        status = 409
    elif isinstance(error, ValueError):  # for example, an empty text
        status = 422
    return JSONResponse({"detail": str(error)}, status)


async def main(path: str, address: str) -> None:
    routes = [
        Route("/chats/{name}", ask, methods=["POST"]),
        Route("/chats/{name}/stream", StreamEndpoint(), methods=["POST"]),
        Route("/chats/{name}", history),
        Route("/health", health),
    ]
    handlers = {hermes.HermesError: on_error, ValueError: on_error}
    app = Starlette(routes=routes, exception_handlers=handlers)
    config = Config.from_mapping(bind=address, graceful_timeout=30, errorlog="-")
    async with hermes.open_runtime(path, agent=reply) as runtime:
        app.state.runtime = runtime
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            await serve(app, config, shutdown_trigger=signals.__anext__)


if __name__ == "__main__":
    defaults = ["chats.db", "127.0.0.1:8000"]
    trio.run(main, *sys.argv[1:], *defaults[len(sys.argv) - 1 :])
