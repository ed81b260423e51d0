"""A FastAPI app with a runtime inside. Run it with: uvicorn fastapi_app:app

POST /chats/{name} with {"text": "..."} answers; GET /chats/{name} shows the conversation.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from hermes import HermesError
from hermes.embed import open_runtime_asyncio


class Said(BaseModel):
    text: str


async def reply(turn):
    return f"You said: {turn.text}"


@asynccontextmanager
async def lifespan(app):
    async with open_runtime_asyncio(os.environ.get("CHATS", "chats.db"), agent=reply) as runtime:
        app.state.runtime = runtime
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chats/{name}")
async def say(name: str, said: Said):
    try:
        reply = await app.state.runtime.ask(f"web:{name}", said.text)
    except (HermesError, ValueError) as error:
        raise HTTPException(503, str(error)) from error
    return {"text": reply.text, "session_id": reply.session_id}


@app.get("/chats/{name}")
async def show(name: str):
    history = await app.state.runtime.history(f"web:{name}")
    return [{"role": message.role, "text": message.content} for message in history]
