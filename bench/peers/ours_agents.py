"""Our agent with a model over HTTP: whole turns, and what streaming costs."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time

import httpx2
import trio

from bench import texts
from bench.peers.loopback import LONG
from bench.peers.ours_runtime import WARM_UP, fill, latency_figures
from bench.peers.wire import Figures, serve
from hermes import open_runtime
from hermes.agents import Endpoint, chat_agents
from hermes.agents.providers.base import Piece
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.messages import Message


def turns(path: str, url: str, history: int, count: int) -> Figures:
    """One chat, turn after turn."""
    fill(Path(path), history, 1)
    return trio.run(_turns, path, url, history, count)


async def _turns(path: str, url: str, history: int, count: int) -> Figures:
    latencies = []
    async with (
        chat_agents(Endpoint(base_url=url, model="m"), system="Be kind.") as agents,
        open_runtime(Path(path), agent=agents.build, describe=agents.describe) as runtime,
    ):
        cpu = process_time()
        for number in range(WARM_UP + count):
            if number == WARM_UP:
                cpu = process_time()
            started = perf_counter()
            reply = await runtime.ask("key 0", texts.text(0, number))
            latencies.append(perf_counter() - started)
            if reply.text != texts.text(0, 0):
                raise AssertionError(f"the answer was {reply.text!r}")
        cpu = process_time() - cpu
        rows = len(await runtime.history("key 0"))
        if rows != history + 2 * (WARM_UP + count):
            raise AssertionError(f"{rows} rows were stored")
    return {**latency_figures(latencies[WARM_UP:]), "cpu_ms": cpu / count * 1e3}


def streaming(url: str, times: int) -> Figures:
    """A long answer: until its first piece, and for each of the others."""
    return trio.run(_streaming, url, times)


async def _streaming(url: str, times: int) -> Figures:
    async with httpx2.AsyncClient() as client:
        provider = OpenAIChat(client, Endpoint(base_url=url, model="m"))
        body = provider.body(b"", provider.encode([Message("user", LONG)]), ())
        runs = []
        for _ in range(times):
            heard: list[float] = []

            def hear(_: Piece, heard: list[float] = heard) -> None:
                heard.append(perf_counter())

            started = perf_counter()
            await provider.ask(body, hear)
            runs.append((heard[0] - started, (heard[-1] - heard[0]) / len(heard)))
    return _best(runs)


def bare(url: str, times: int) -> Figures:
    """The same by httpx2 alone: its own events, and their JSON."""
    return trio.run(_bare, url, times)


async def _bare(url: str, times: int) -> Figures:
    request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": LONG}]}
    runs = []
    async with httpx2.AsyncClient() as client:
        for _ in range(times):
            heard: list[float] = []
            started = perf_counter()
            async with client.sse(f"{url}/chat/completions", method="POST", json=request) as events:
                async for event in events:
                    if event.data != "[DONE]":
                        event.json()
                        heard.append(perf_counter())
            runs.append((heard[0] - started, (heard[-1] - heard[0]) / len(heard)))
    return _best(runs)


def _best(runs: list[tuple[float, float]]) -> Figures:
    """The median of what a loaded machine gives."""
    firsts, pieces = (sorted(values) for values in zip(*runs, strict=True))
    middle = len(runs) // 2
    return {"first_ms": firsts[middle] * 1e3, "piece_us": pieces[middle] * 1e6}


if __name__ == "__main__":
    serve(
        {"hermes": version("hermes-runtime"), "httpx2": version("httpx2")},
        {"turns": turns, "streaming": streaming, "bare": bare},
    )
