"""Driver of bare apps: what HTTP costs without an agent, on plain hypercorn and on our server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import apsw
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.harness.driver import check_durability
from bench.http.client import Address
from bench.http.measuring import Announce, main

TEXT = "The capital of France is Paris. " * 4
EXAMPLE: dict[str, object] = {
    "id": f"resp_{0:032}", "object": "response", "created_at": 1_794_954_977,
    "completed_at": 1_794_954_977, "status": "completed", "error": None,
    "incomplete_details": None,
    "output": [{
        "id": f"msg_{0:032}_0", "type": "message", "role": "assistant",
        "content": [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}],
        "status": "completed",
    }],
    "usage": {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0,
    },
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "temperature": 1.0,
    "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_logprobs": 0,
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    "text": {"format": {"type": "text"}}, "reasoning": None, "truncation": "auto",
    "previous_response_id": None, "background": False, "service_tier": "default", "metadata": {},
    "user": None, "safety_identifier": None, "prompt_cache_key": None, "model": "hermes",
    "conversation": {"id": f"conv_{0:032}"}, "store": True,
}  # fmt: skip
"""A response of our server, so that those of bare apps have its size."""


async def respond(request: Request) -> Response:
    """Decode the request, and respond with JSON or with events."""
    body = await request.json()
    if (store := getattr(request.app.state, "store", None)) is not None:
        await trio.to_thread.run_sync(store, body["input"])
    if body["stream"]:
        return StreamingResponse(_events(), media_type="text/event-stream")
    return JSONResponse(EXAMPLE)


async def _events() -> AsyncIterator[str]:
    for kind in ("response.created", "response.output_text.delta", "response.completed"):
        await trio.lowlevel.checkpoint()
        yield f"event: {kind}\ndata: {json.dumps({'type': kind, 'response': EXAMPLE})}\n\n"


async def wait(_: Request) -> Response:
    """Respond with a stream in which nothing happens."""
    return StreamingResponse(_silence(), media_type="text/event-stream")


async def _silence() -> AsyncIterator[str]:
    yield ": hello\n\n"
    await trio.sleep_forever()


APP: Any = Starlette(
    routes=[Route("/v1/responses", respond, methods=["POST"]), Route("/api/events", wait)]
)


def open_table(path: str) -> Callable[[str], None]:
    """Create a table in a new database. Returns a function that commits a text to it."""
    connection = apsw.Connection(path)
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, text TEXT)")
    check_durability(connection.execute)

    def store(text: str) -> None:
        connection.execute("INSERT INTO messages (text) VALUES (?)", (text,))

    return store


@asynccontextmanager
async def _plain() -> AsyncIterator[str]:
    """Serve the app with hypercorn's defaults, but without logs."""
    config = Config()
    config.bind, config.accesslog, config.errorlog = ["127.0.0.1:0"], None, None
    config.backlog = 1000
    async with trio.open_nursery() as nursery:
        [url] = await nursery.start(
            partial(serve, APP, config, shutdown_trigger=trio.sleep_forever)
        )
        yield url


def _ours() -> AbstractAsyncContextManager[str]:
    """Serve the app with the server that Hermes uses."""
    # Plain hypercorn must not pay for these imports.
    from bench.http.ours import CONFIG  # noqa: PLC0415
    from hermes.adapters.http.server import serve_app  # noqa: PLC0415

    return serve_app(APP, CONFIG)


async def _serve(open_server: Any, announce: Announce) -> None:
    async with open_server() as url:
        announce(Address(int(url.rpartition(":")[2]), answer=TEXT))
        await trio.sleep_forever()


def hypercorn(_path: str, _url: str, announce: Announce) -> None:
    trio.run(_serve, _plain, announce)


def storing(path: str, _url: str, announce: Announce) -> None:
    """On plain hypercorn, after the text of the request was stored."""
    APP.state.store = open_table(path)
    trio.run(_serve, _plain, announce)


def same_server(_path: str, _url: str, announce: Announce) -> None:
    trio.run(_serve, _ours, announce)


if __name__ == "__main__":
    about = {name: version(name) for name in ("hypercorn", "starlette", "trio")}
    main(about, {"hypercorn": hypercorn, "storing": storing, "ours": same_server})
