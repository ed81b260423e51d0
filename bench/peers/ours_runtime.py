"""Our runtime: its mailbox, its idle actors, and durable turns with everything included."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import trio
import trio.testing

from bench import texts
from bench.peers import messaging
from bench.peers.timing import percentile
from bench.peers.trio_floors import Call, handle, race
from bench.peers.wire import Figures, serve
from hermes import open_runtime
from hermes.actors.mailbox import Mailbox, Request, serve as serve_mail
from hermes.actors.runtime import Runtime
from hermes.messages import Message
from hermes.store import SessionStore

WARM_UP = 20
HISTORY = 10


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
    """What an idle actor takes, in a fresh process: this one has memory to spare by now."""
    program = (
        "import trio\nfrom bench.peers.ours_runtime import _idle\n"
        f"print(trio.run(_idle, {path!r}, {count}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return {"kib": float(done.stdout)}


async def _idle(path: str, count: int) -> float:
    async with open_runtime(Path(path), agent=_echo) as runtime:
        await runtime.new_session("warm up")
        before = _resident()
        # Few at a time: the memory that a thousand requests take at once is not that of actors.
        for first in range(0, count, 100):
            async with trio.open_nursery() as nursery:
                for number in range(first, min(first + 100, count)):
                    nursery.start_soon(runtime.new_session, f"key {number}")
        actors = runtime.statistics().actors - 1
        if actors != count:
            raise AssertionError(f"there are {actors} actors instead of {count}")
        return (_resident() - before) / count / 1024


def _resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _echo(_: object) -> str:
    return texts.text(0, 0)


def turns(path: str, history: int, sessions: int, count: int) -> Figures:
    """One chat, turn after turn, in a file that knows so many sessions."""
    fill(Path(path), history, sessions)
    return trio.run(_turns, path, history, count)


def fill(path: Path, history: int, sessions: int) -> None:
    rows = [Message(texts.role(turn), texts.text(0, turn)) for turn in range(history)]
    with SessionStore(path) as store:
        for number in range(sessions):
            name = texts.session_id(number)
            store.create_session(name, "bench", session_key=f"key {number}")
            store.append_messages(name, rows if number == 0 else rows[:2])
            store.switch(f"key {number}", name)


async def _turns(path: str, history: int, count: int) -> Figures:
    latencies = []
    async with open_runtime(Path(path), agent=_echo) as runtime:
        for _ in range(WARM_UP):
            await runtime.ask("key 0", texts.text(0, 1))
        for number in range(count):
            started = perf_counter()
            await runtime.ask("key 0", texts.text(0, number))
            latencies.append(perf_counter() - started)
        rows = len(await runtime.history("key 0"))
        if rows != history + 2 * (WARM_UP + count):
            raise AssertionError(f"{rows} rows were stored")
    return latency_figures(latencies)


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
    fill(Path(path), history, callers)
    return trio.run(_turns_at_once, path, callers, seconds)


async def _turns_at_once(path: str, callers: int, seconds: float) -> Figures:
    latencies: list[float] = []

    async def call(runtime: Runtime, number: int, until: float) -> None:
        while perf_counter() < until:
            started = perf_counter()
            await runtime.ask(f"key {number}", texts.text(number, 0))
            latencies.append(perf_counter() - started)

    async with open_runtime(Path(path), agent=_echo) as runtime:
        for until in (perf_counter() + 0.2, None):
            begun = perf_counter()
            latencies.clear()
            async with trio.open_nursery() as nursery:
                for number in range(callers):
                    nursery.start_soon(call, runtime, number, until or begun + seconds)
        elapsed = perf_counter() - begun
    return latency_figures(latencies, elapsed)


if __name__ == "__main__":
    serve(
        {"hermes": version("hermes-runtime"), "trio": version("trio")},
        {
            "ask": ask,
            "tell": tell,
            "idle": idle,
            "turns": turns,
            "turns_at_once": turns_at_once,
        },
    )
