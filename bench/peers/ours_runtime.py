"""Our runtime: its mailbox, its idle actors, and durable turns with everything included."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time

import apsw
import trio
import trio.testing

from bench import texts
from bench.peers import messaging
from bench.peers.ours import settings
from bench.peers.timing import percentile
from bench.peers.trio_floors import Call, handle, race
from bench.peers.wire import Figures, serve
from hermes import open_runtime
from hermes.actors.kernel.mailbox import Mailbox, Request, serve as serve_mail
from hermes.actors.runtime import Runtime
from hermes.messages import Message
from hermes.store import SessionStore, open_store

WARM_UP = 20
WARM_UP_SECONDS = 0.2
HISTORY = 10
FILLERS = 100


class Question(Request[int]):
    """A number that is to be one more."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


async def through_mailbox(go: trio.Event, count: int) -> None:
    """One actor, one caller, one request after the other."""
    mailbox: Mailbox[Question] = Mailbox()

    async def answer(question: Question) -> None:
        question.answer(await handle(question.number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_mail, mailbox, answer)
        await go.wait()
        for number in range(count):
            question = Question(number)
            mailbox.send_nowait(question)
            if await question.wait() != number + 1:
                raise AssertionError(f"a wrong answer to {number}")
        mailbox.close()


def ask(count: int, pairs: int = 1) -> Figures:
    call: Call = through_mailbox
    return trio.run(race, call, count, pairs)


def tell(count: int) -> Figures:
    """Until the last message is processed."""
    return trio.run(told, count)


async def told(count: int) -> Figures:
    processed = 0

    async def process(number: int) -> None:
        nonlocal processed
        await handle(number)
        processed += 1

    mailbox: Mailbox[int] = Mailbox(count)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_mail, mailbox, process)
        await trio.testing.wait_all_tasks_blocked()
        started = perf_counter()
        for number in range(count):
            mailbox.send_nowait(number)
        mailbox.close()
    seconds = perf_counter() - started
    messaging.check(count, processed)
    return messaging.figures(count, seconds)


def idle(path: str, count: int) -> Figures:
    """What an idle actor takes."""
    return {"kib": apart("idle", path, count)}


def warm(path: str, count: int) -> Figures:
    """What an actor takes that has a cached agent and the transcript it was shown."""
    return {"kib": apart("warm", path, count)}


def apart(do: str, path: str, count: int) -> float:
    """Weigh something in a fresh process: this one has memory to spare by now."""
    program = [sys.executable, "-m", "bench.peers.ours_memory", do, path, str(count)]
    return float(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


async def echo(_: object) -> str:
    """An agent that costs nothing."""
    return texts.text(0, 0)


def fill(path: Path, history: int, sessions: int, chats: int = 1) -> None:
    """A file that knows so many sessions; the first `chats` of them have a history."""
    trio.run(_fill, path, history, sessions, chats)
    with SessionStore(path) as store:
        store.index_pending()  # as hermes-agent has it: nobody's past is worked on in timed turns


async def _fill(path: Path, history: int, sessions: int, chats: int) -> None:
    rows = [Message(texts.role(turn), texts.text(0, turn)) for turn in range(history)]
    async with open_store(path) as store:  # as the runtime opens it
        durability = await store.run_alone(settings)
        if durability != {"wal": 1, "synchronous": 2}:
            raise AssertionError(f"our store is opened with {durability}")

        async def add(first: int) -> None:
            for number in range(first, sessions, FILLERS):
                name = texts.session_id(number)
                await store.create_session(name, "bench", session_key=f"key {number}")
                await store.append_messages(name, rows if number < chats else rows[:2])
                await store.switch(f"key {number}", name)

        async with trio.open_nursery() as nursery:
            for first in range(min(FILLERS, sessions)):
                nursery.start_soon(add, first)


def turns(path: str, history: int, sessions: int, count: int) -> Figures:
    """One chat, turn after turn, in a file that knows so many sessions."""
    fill(Path(path), history, sessions)
    before = size(Path(path))
    figures = trio.run(_turns, path, history, count)
    return {**figures, "disk_bytes": (size(Path(path)) - before) / (WARM_UP + count)}


def size(path: Path) -> int:
    """The bytes in use, with the index up to date; pages that a merge of it has freed are not."""
    with SessionStore(path) as store:
        store.index_pending()
    connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
    pages, free, each = (
        int(str(connection.pragma(name))) for name in ("page_count", "freelist_count", "page_size")
    )
    connection.close()
    return (pages - free) * each


async def _turns(path: str, history: int, count: int) -> Figures:
    latencies = []
    async with open_runtime(Path(path), agent=echo) as runtime:
        for _ in range(WARM_UP):
            await runtime.ask("key 0", texts.text(0, 1))
        cpu = process_time()
        for number in range(count):
            started = perf_counter()
            await runtime.ask("key 0", texts.text(0, number))
            latencies.append(perf_counter() - started)
        cpu = process_time() - cpu
        await check(runtime, 0, history + 2 * (WARM_UP + count))
    return {**latency_figures(latencies), "cpu_ms": cpu / count * 1e3}


async def check(runtime: Runtime, number: int, expected: int) -> None:
    """Every question and every answer must be on disk."""
    rows = len(await runtime.history(f"key {number}"))
    if rows != expected:
        raise AssertionError(f"{rows} rows of chat {number} were stored instead of {expected}")


def latency_figures(latencies: list[float], seconds: float | None = None) -> Figures:
    """How long turns took, and how many there were per second."""
    seconds = sum(latencies) if seconds is None else seconds
    return {
        "count": float(len(latencies)),
        "rate": len(latencies) / seconds,
        "p50_ms": statistics.median(latencies) * 1e3,
        "p99_ms": percentile(latencies, 0.99) * 1e3,
        "worst_ms": max(latencies) * 1e3,
    }


def turns_at_once(path: str, callers: int, seconds: float, history: int = HISTORY) -> Figures:
    """Many chats, each awaiting the answer before its next message."""
    fill(Path(path), history, callers, chats=callers)
    before = size(Path(path))
    crowd = Crowd(callers)
    figures = trio.run(crowd.measure, path, seconds, history)
    return {**figures, "disk_bytes": (size(Path(path)) - before) / sum(crowd.turns)}


class Crowd:
    """Callers of a runtime, each with a chat of its own."""

    def __init__(self, callers: int) -> None:
        self.turns = [0] * callers
        self._latencies: list[float] = []

    async def measure(self, path: str, seconds: float, history: int) -> Figures:
        async with open_runtime(Path(path), agent=echo) as runtime:
            await self._talk(runtime, WARM_UP_SECONDS)
            self._latencies.clear()
            cpu = process_time()
            elapsed = await self._talk(runtime, seconds)
            cpu = process_time() - cpu
            for number, count in enumerate(self.turns):
                await check(runtime, number, history + 2 * count)
        figures = latency_figures(self._latencies, elapsed)
        return {**figures, "cpu_ms": cpu / len(self._latencies) * 1e3}

    async def _talk(self, runtime: Runtime, seconds: float) -> float:
        """All at once, for at least so long; how long it was."""
        begun = perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(len(self.turns)):
                nursery.start_soon(self._call, runtime, number, begun + seconds)
        return perf_counter() - begun

    async def _call(self, runtime: Runtime, number: int, until: float) -> None:
        """At least once, however late it is."""
        ended = 0.0
        while ended < until:
            started = perf_counter()
            await runtime.ask(f"key {number}", texts.text(number, 0))
            ended = perf_counter()
            self._latencies.append(ended - started)
            self.turns[number] += 1


if __name__ == "__main__":
    serve(
        {"hermes": version("hermes-runtime"), "trio": version("trio")},
        {
            "ask": ask,
            "tell": tell,
            "idle": idle,
            "warm": warm,
            "turns": turns,
            "turns_at_once": turns_at_once,
        },
    )
