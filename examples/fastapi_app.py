"""A FastAPI app with a runtime inside. Run it with: uvicorn fastapi_app:app

POST /chats/{name} with {"text": "..."} returns the reply; GET /chats/{name} returns the transcript.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import hermes


class Text(BaseModel):
    text: str


async def reply(turn: hermes.Turn) -> str:
    return f"You said: {turn.text}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    path = os.environ.get("CHATS", "chats.db")
    async with hermes.embed.open_runtime_asyncio(path, agent=reply) as runtime:
        app.state.runtime = runtime
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chats/{name}")
async def ask(name: str, message: Text) -> dict[str, str]:
    try:
        answer = await app.state.runtime.ask(f"web:{name}", message.text)
    except ValueError as error:  # for example, the message is too long
        raise HTTPException(422, str(error)) from error
    except hermes.HermesError as error:  # overloaded, disk full, shutting down
        raise HTTPException(503, str(error)) from error
    return {"text": answer.text, "session_id": answer.session_id}


@app.get("/chats/{name}")
async def history(name: str) -> list[dict[str, str | None]]:
    rows = await app.state.runtime.conversation(f"web:{name}").history()
    return [{"role": row.role, "text": row.content} for row in rows]
