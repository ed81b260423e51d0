"""Driver of our HTTP server, with a model or without, and of the same turns without a server."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import trio

from bench.harness.sample_text import text
from bench.http.client import QUESTION, Address, Asked
from bench.http.measuring import Announce, main
from bench.store.ours import check_connection
from hermes import Runtime, TextDelta, Turn, open_runtime
from hermes.adapters.http import HttpConfig, serve_http
from hermes.adapters.http.credentials import digest_of, new_id, new_secret
from hermes.agents import Endpoint, chat_agents
from hermes.config import RateLimit
from hermes.messages import Token
from hermes.store import open_store

ANSWER = "The capital of France is Paris. " * 4
LIMIT = 10_000_000
CONFIG = HttpConfig(
    port=0,
    max_connections=2000,
    max_streams=2000,
    rates=RateLimit(per_minute=LIMIT, burst=LIMIT),
)


async def speak(turn: Turn) -> str:
    """Answer at once, in two pieces."""
    turn.emit(TextDelta(ANSWER[:20]))
    await trio.lowlevel.checkpoint()
    return ANSWER


@asynccontextmanager
async def _open(path: Path, url: str) -> AsyncIterator[Runtime]:
    """Open a runtime whose agent has a model, or answers at once."""
    if not url:
        async with open_runtime(path, agent=speak) as runtime:
            yield runtime
        return
    async with (
        chat_agents(Endpoint(base_url=url, model="m"), system="Be kind.") as agents,
        open_runtime(path, build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
    ):
        yield runtime


async def _serve(path: str, url: str, announce: Announce) -> None:
    async with open_store(Path(path)) as store:  # as the runtime opens it
        await store.run_alone(check_connection)
    async with _open(Path(path), url) as runtime:
        secret = new_secret()
        token = Token(
            id=new_id("tok"), name="bench", namespace="bench", roles=("user",), created_at=0.0
        )
        await runtime.api.add_token(token, digest_of(secret))
        async with serve_http(runtime, CONFIG) as address:
            port = int(address.rpartition(":")[2])
            announce(Address(port, secret, answer=text(0, 0) if url else ANSWER))
            await trio.sleep_forever()


def server(path: str, url: str, announce: Announce) -> None:
    trio.run(_serve, path, url, announce)


async def _work(path: str, announce: Announce) -> None:
    async with open_runtime(Path(path), agent=speak) as runtime:

        async def ask(count: int) -> Asked:
            taken = []
            for _ in range(count):
                started = perf_counter()
                reply = await runtime.ask(f"agent:main:http:dm:bench:{uuid4().hex}", QUESTION)
                taken.append(perf_counter() - started)
                if reply.text != ANSWER:
                    raise AssertionError(reply)
            return Asked(sum(taken), taken)

        run = trio.lowlevel.current_trio_token()
        announce(None, lambda count: trio.from_thread.run(ask, count, trio_token=run))
        await trio.sleep_forever()


def embedded(path: str, _url: str, announce: Announce) -> None:
    """The same turns without a server, each in a new conversation."""
    trio.run(_work, path, announce)


def stored(path: str) -> int:
    """How many replies are stored."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT count(*) FROM all_messages WHERE role = 'assistant'")
        return int(rows.fetchone()[0])


if __name__ == "__main__":
    about = {name: version(name) for name in ("hypercorn", "starlette", "trio")}
    about["hermes"] = version("hermes-runtime")
    main(about, {"server": server, "embedded": embedded}, stored=stored)
