"""Driver of our agent with a model over HTTP: whole turns, and the cost of streaming."""

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter

import httpx2
import trio

from bench.agents.model import LONG_REPLY
from bench.harness.driver import Figures, importing, serve
from bench.runtime.ours import turns
from hermes.agents import Endpoint
from hermes.agents.providers.base import Delta
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.messages import Message


async def streaming(url: str, times: int) -> Figures:
    """A long reply through our provider: the time of the first piece, and of each other."""
    async with httpx2.AsyncClient() as client:
        provider = OpenAIChat(client, Endpoint(base_url=url, model="m"))
        body = provider.body(b"", provider.encode([Message("user", LONG_REPLY)]), ())
        runs = []
        for _ in range(times):
            received: list[float] = []

            def receive(_: Delta, received: list[float] = received) -> None:
                received.append(perf_counter())

            started = perf_counter()
            await provider.complete(body, receive)
            runs.append((started, received))
    return _stream_figures(runs)


async def bare(url: str, times: int) -> Figures:
    """The same with httpx2 alone: its event parser, and the JSON of each event."""
    messages = [{"role": "user", "content": LONG_REPLY}]
    request = {"model": "m", "stream": True, "messages": messages}
    runs = []
    async with httpx2.AsyncClient() as client:
        for _ in range(times):
            received: list[float] = []
            started = perf_counter()
            async with client.sse(f"{url}/chat/completions", method="POST", json=request) as events:
                async for event in events:
                    if event.data != "[DONE]":
                        event.json()
                        received.append(perf_counter())
            runs.append((started, received))
    return _stream_figures(runs)


def _stream_figures(runs: list[tuple[float, list[float]]]) -> Figures:
    """The medians of several replies."""
    firsts = sorted(received[0] - started for started, received in runs)
    pieces = sorted((received[-1] - received[0]) / len(received) for _, received in runs)
    middle = len(runs) // 2
    return {"first_ms": firsts[middle] * 1e3, "piece_us": pieces[middle] * 1e6}


if __name__ == "__main__":
    about = {"hermes": version("hermes-runtime"), "httpx2": version("httpx2")}
    serve(about, turns, streaming, bare, importing, run=trio.run)
