"""OpenAI's APIs for an agent of yours, inside a FastAPI app. Run it: uvicorn http_asyncio:app

Any client of OpenAI can use it, with the base URL http://127.0.0.1:8000/hermes/v1 and a token as
its key:

    hermes tokens create laptop --db chats.db

On SIGTERM, uvicorn finishes the requests that are running, and leaving the lifespan drains the
runtime.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import hermes


async def reply(turn: hermes.Turn) -> str:
    answer = ["You ", "said: ", turn.text]
    for piece in answer:
        turn.emit(hermes.TextDelta(piece))
        await asyncio.sleep(0.02)
    return "".join(answer)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    path = os.environ.get("CHATS", "chats.db")
    async with (
        hermes.embed.open_runtime_asyncio(path, agent=reply) as runtime,
        hermes.embed.open_http_app(runtime) as http,
    ):
        app.mount("/hermes", http)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/")
async def index() -> dict[str, str]:
    return {"openai": "/hermes/v1"}
