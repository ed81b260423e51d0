"""Driver of agno's durable queue: an AgentOS in this process, asked without a network."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version

os.environ["AGNO_TELEMETRY"] = "false"

import httpx
from agno.agent import Agent
from agno.db.postgres import PostgresDb
from agno.job_queue import QueueConfig
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.os import AgentOS

from bench.harness.driver import Figures, serve
from bench.harness.postgres import Database, Timing, new_database
from bench.harness.sample_text import text

POLL = 0.05
ENDED = {"COMPLETED", "ERROR", "CANCELLED"}
AGENT = "/agents/echo/runs"


class Echo(Model):
    """A model that answers at once."""

    def invoke(self, *_: object, **__: object) -> ModelResponse:
        return ModelResponse(role="assistant", content=text(0, 0))

    async def ainvoke(self, *_: object, **__: object) -> ModelResponse:
        return self.invoke()

    def invoke_stream(self, *_: object, **__: object) -> Iterator[ModelResponse]:
        yield self.invoke()

    async def ainvoke_stream(self, *_: object, **__: object) -> AsyncIterator[ModelResponse]:
        yield self.invoke()

    def _parse_provider_response(self, response: ModelResponse, **_: object) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response: ModelResponse) -> ModelResponse:
        return response


async def turns(url: str, callers: int, seconds: float) -> Figures:
    """Concurrent callers, each with a session, who look for the end of their run every 50 ms."""
    with new_database(url) as database:
        engine = database.url.replace("postgresql://", "postgresql+psycopg://")
        db = PostgresDb(db_url=engine)
        agent = Agent(id="echo", model=Echo(id="echo"), db=db, telemetry=False)
        queue = QueueConfig(durable=True, poll_interval=POLL)
        app = AgentOS(agents=[agent], db=db, queue=queue, telemetry=False).get_app()
        for name in ("agno", "httpx"):
            logging.getLogger(name).setLevel(logging.ERROR)
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://agno", timeout=60) as client,
        ):
            return await _time(client, callers, seconds, database)


async def _ask(client: httpx.AsyncClient, caller: int) -> None:
    session = {"session_id": f"session {caller}"}
    asked = {"message": text(caller, 0), "background": "true", "stream": "false", **session}
    run = (await client.post(AGENT, data=asked)).json()
    while run.get("status") not in ENDED:
        await asyncio.sleep(POLL)
        run = (await client.get(f"{AGENT}/{run['run_id']}", params=session)).json()
    if run.get("content") != text(0, 0):
        raise AssertionError(f"the run ended so: {run}")


async def _time(
    client: httpx.AsyncClient, callers: int, seconds: float, database: Database
) -> Figures:
    await asyncio.gather(*(_ask(client, caller) for caller in range(callers)))
    done = 0
    timing = Timing(database)

    async def work(caller: int) -> None:
        nonlocal done
        while timing.seconds < seconds:
            await _ask(client, caller)
            done += 1

    await asyncio.gather(*(work(caller) for caller in range(callers)))
    return timing.figures(done)


if __name__ == "__main__":
    serve({"agno": version("agno")}, turns)
