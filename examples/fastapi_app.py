"""A chat service with FastAPI, on asyncio. Run it with: uvicorn fastapi_app:app

POST /chats/{name} with {"text": "..."} returns the reply. POST /chats/{name}/stream sends it as
server-sent events while it is written; a client that disconnects stops the answer. With the header
Idempotency-Key a request can be repeated: the same key gets the same answer, and a disconnect does
not stop it, because the client may come back for it. GET /chats/{name} returns the transcript. On
SIGTERM, uvicorn finishes the requests that are running, and leaving the lifespan drains the
runtime.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field

import hermes


async def reply(turn: hermes.Turn) -> str:
    answer = f"You said: {turn.text}"
    for word in answer.split():
        turn.emit(hermes.TextDelta(f"{word} "))
        await asyncio.sleep(0.02)
    return answer


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    path = os.environ.get("CHATS", "chats.db")
    async with hermes.embed.open_runtime_asyncio(path, agent=reply) as runtime:
        app.state.runtime = runtime
        yield


app = FastAPI(lifespan=lifespan)


class Text(BaseModel):
    text: Annotated[str, Field(max_length=10_000)]


class Answer(BaseModel):
    text: str
    status: str


EventId = Annotated[str | None, Header(alias="Idempotency-Key")]


def get_chat(name: str) -> hermes.embed.AsyncioConversation:
    return app.state.runtime.conversation(f"web:{name}")


Chat = Annotated[hermes.embed.AsyncioConversation, Depends(get_chat)]


@app.post("/chats/{name}")
async def ask(chat: Chat, message: Text, event_id: EventId = None) -> Answer:
    try:
        answer = await chat.ask(message.text, event_id=event_id)
    except hermes.AlreadyAnswered as error:
        answer = await app.state.runtime.wait(error.receipt)
    return Answer(text=answer.text, status=answer.status)


async def send(
    chat: Chat, message: Text, event_id: EventId = None
) -> AsyncIterator[hermes.embed.AsyncioStream | Answer]:
    """Send a message. FastAPI leaves the stream after the response, however that ends."""
    events: hermes.embed.AsyncioStream | Answer
    async with AsyncExitStack() as stack:
        stream = chat.stream(message.text, event_id=event_id, interrupt_on_exit=event_id is None)
        try:
            events = await stack.enter_async_context(stream)
        except hermes.AlreadyAnswered as error:
            answer = await app.state.runtime.wait(error.receipt)
            events = Answer(text=answer.text, status=answer.status)
        yield events


@app.post("/chats/{name}/stream", response_class=EventSourceResponse)
async def stream(
    events: Annotated[hermes.embed.AsyncioStream | Answer, Depends(send)],
) -> AsyncIterator[ServerSentEvent]:
    if isinstance(events, Answer):
        yield ServerSentEvent(event="reply", data=events)
        return
    async for event in events:
        match event:
            case hermes.TextDelta(text):
                yield ServerSentEvent(event="delta", data=text)
            case hermes.TurnEnded(answer):
                data = Answer(text=answer.text, status=answer.status)
                yield ServerSentEvent(event="reply", data=data)


@app.get("/chats/{name}")
async def history(chat: Chat) -> list[dict[str, str | None]]:
    return [{"role": row.role, "text": row.content} for row in await chat.history()]


@app.get("/health")
async def health() -> dict[str, int]:
    return {"running": (await app.state.runtime.admin.statistics()).running}


@app.exception_handler(hermes.HermesError)
@app.exception_handler(ValueError)
async def on_error(_: Request, error: Exception) -> JSONResponse:
    status = 503  # overloaded, disk full, shutting down
    if isinstance(error, hermes.EventConflict):  # the key was used for another text
        status = 409
    elif isinstance(error, ValueError):  # for example, an empty text
        status = 422
    return JSONResponse({"detail": str(error)}, status)
