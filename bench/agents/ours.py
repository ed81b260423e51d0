"""Driver of our agent with a model over HTTP: whole turns, and the cost of streaming."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from time import perf_counter

import httpx2
import trio

from bench.agents.model import LONG_REPLY
from bench.harness.driver import Figures, importing, serve
from bench.runtime.ours import turns
from hermes.agents import Endpoint
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.messages import Message


async def streaming(url: str, times: int) -> Figures:
    """A long reply through our provider."""
    async with httpx2.AsyncClient() as client:
        provider = OpenAIChat(client, Endpoint(base_url=url, model="m"))
        body = provider.body(b"", provider.encode([Message("user", LONG_REPLY)]), ())

        async def read(received: list[float]) -> None:
            await provider.complete(body, lambda _: received.append(perf_counter()))

        return await _time_streams(read, times)


async def bare(url: str, times: int) -> Figures:
    """The same with httpx2 alone: its event parser, and the JSON of each event."""
    messages = [{"role": "user", "content": LONG_REPLY}]
    request = {"model": "m", "stream": True, "messages": messages}
    async with httpx2.AsyncClient() as client:

        async def read(received: list[float]) -> None:
            async with client.sse(f"{url}/chat/completions", method="POST", json=request) as events:
                async for event in events:
                    if event.data != "[DONE]":
                        event.json()
                        received.append(perf_counter())

        return await _time_streams(read, times)


async def _time_streams(read: Callable[[list[float]], Awaitable[None]], times: int) -> Figures:
    """Return the median time until the first piece, and from each piece to the next."""
    firsts, pieces = [], []
    for _ in range(times):
        received: list[float] = []
        started = perf_counter()
        await read(received)
        firsts.append(received[0] - started)
        pieces.append((received[-1] - received[0]) / len(received))
    first, piece = statistics.median(firsts), statistics.median(pieces)
    return {"first_ms": first * 1e3, "piece_us": piece * 1e6}


if __name__ == "__main__":
    about = {"hermes": version("hermes-runtime"), "httpx2": version("httpx2")}
    serve(about, turns, streaming, bare, importing, run=trio.run)
