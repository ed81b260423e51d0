"""Driver of the three hosts: streams, read as they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import trio

from bench.harness.driver import Figures, Run, serve, time_blocking, time_calls
from bench.harness.trio_timing import time_trio
from hermes import TextDelta, Turn, open_runtime
from hermes.embed import ReplyFunction, open_runtime_asyncio, start_runtime


def speaker(pieces: int, pause: Callable[[], Awaitable[object]] | None) -> ReplyFunction:
    """Return an agent that emits this many pieces, with a pause after each."""

    async def speak(turn: Turn) -> str:
        for number in range(pieces):
            turn.emit(TextDelta(f"{number} "))
            if pause is not None:
                await pause()
        return "done"

    return speak


def check(texts: list[str], pieces: int) -> None:
    """All pieces must have been read, in order; pieces may be joined."""
    if "".join(texts) != "".join(f"{number} " for number in range(pieces)):
        raise AssertionError("pieces were lost or read in another order")


def on_trio(path: str, pieces: int, count: int, *, pause: bool) -> Figures:
    async def main() -> Run:
        agent = speaker(pieces, trio.lowlevel.checkpoint if pause else None)
        async with open_runtime(Path(path), agent=agent) as runtime:

            async def read(_: int, __: int) -> None:
                async with runtime.stream("key", "hello") as stream:
                    texts = [each.text async for each in stream if isinstance(each, TextDelta)]
                check(texts, pieces)

            return await time_trio(read, 1, 0.0, count)

    return trio.run(main).figures_with_cpu()


def on_asyncio(path: str, pieces: int, count: int, *, pause: bool) -> Figures:
    async def main() -> Run:
        agent = speaker(pieces, (lambda: asyncio.sleep(0)) if pause else None)
        async with open_runtime_asyncio(Path(path), agent=agent) as runtime:

            async def read(_: int, __: int) -> None:
                async with runtime.stream("key", "hello") as stream:
                    texts = [each.text async for each in stream if isinstance(each, TextDelta)]
                check(texts, pieces)

            return await time_calls(read, 1, 0.0, count)

    return asyncio.run(main()).figures_with_cpu()


def in_threads(path: str, pieces: int, count: int, *, pause: bool) -> Figures:
    agent = speaker(pieces, trio.lowlevel.checkpoint if pause else None)
    with start_runtime(Path(path), agent=agent) as runtime:

        def read(_: int) -> None:
            with runtime.stream("key", "hello") as stream:
                texts = [each.text for each in stream if isinstance(each, TextDelta)]
            check(texts, pieces)

        return time_blocking(read, 0.0, count).figures_with_cpu()


if __name__ == "__main__":
    about = {"hermes": version("hermes-runtime"), "trio": version("trio")}
    serve(about, on_trio, on_asyncio, in_threads)
