"""Our store, with both its faces: `open_store` (the actor) and `SessionStore` (blocking)."""

from __future__ import annotations

import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import apsw
import trio

from bench import texts
from bench.peers import timing
from bench.peers.trio_timing import with_trio
from bench.peers.wire import Figures, serve
from hermes.store import SessionStore, open_store

FILLERS = 200


def durability(path: str) -> Figures:
    """What the connections really have, whatever the source says; the weaker of the two faces."""
    connections: list[apsw.Connection] = []
    apsw.connection_hooks.append(connections.append)
    with SessionStore(Path(path)):
        blocking = settings(connections[-1])  # those before it only looked the file over
    apsw.connection_hooks.remove(connections.append)
    actor = trio.run(_durability, path)
    return {name: min(blocking[name], actor[name]) for name in blocking}


def settings(connection: apsw.Connection) -> Figures:
    return {
        "wal": float(connection.pragma("journal_mode") == "wal"),
        "synchronous": float(str(connection.pragma("synchronous"))),
    }


async def _durability(path: str) -> Figures:
    async with open_store(Path(path)) as store:
        return await store.run_alone(settings)


def append_blocking(path: str, seconds: float) -> Figures:
    with SessionStore(Path(path)) as store:
        store.create_session(texts.session_id(0), source="bench")

        def append(turn: int) -> None:
            store.append_message(texts.session_id(0), texts.role(turn), texts.text(0, turn))

        return timing.blocking(append, seconds).figures()


def append_awaited(path: str, callers: int, seconds: float, count: int = 0) -> Figures:
    return trio.run(_append_awaited, path, callers, seconds, count)


async def _append_awaited(path: str, callers: int, seconds: float, count: int) -> Figures:
    async with open_store(Path(path)) as store:

        async def append(caller: int, turn: int) -> None:
            words = texts.text(caller, turn)
            await store.append_message(texts.session_id(caller), texts.role(turn), words)

        for caller in range(callers):
            await store.create_session(texts.session_id(caller), source="bench")
        run = await with_trio(append, callers, seconds, count)
        marker = f"marker{time.time_ns()}"
        await store.append_message(texts.session_id(0), "user", marker)
        started = perf_counter()
        hits = len(await store.search_messages(marker))
        return run.searched(perf_counter() - started, hits)


def fill(path: str, sessions: int, turns: int) -> Figures:
    """Many callers at once, so that the sessions' rows interleave; then the index catches up."""
    started = perf_counter()
    trio.run(_fill, path, sessions, turns)
    with SessionStore(Path(path)) as store:
        store.index_pending()
    return {"seconds": perf_counter() - started}


async def _fill(path: str, sessions: int, turns: int) -> None:
    async with open_store(Path(path)) as store:

        async def add(first: int) -> None:
            numbers = range(first, sessions, FILLERS)
            for number in numbers:
                await store.create_session(texts.session_id(number), source="bench")
            for turn in range(turns):
                for number in numbers:
                    words = texts.text(number, turn)
                    await store.append_message(texts.session_id(number), texts.role(turn), words)

        async with trio.open_nursery() as nursery:
            for first in range(min(FILLERS, sessions)):
                nursery.start_soon(add, first)


def load(path: str, session: int, turns: int, times: int) -> Figures:
    """A whole transcript, and in turn with it `json.loads` of the same data."""
    with SessionStore(Path(path)) as store:
        messages = store.load(texts.session_id(session)).messages
        expected = [texts.text(session, turn) for turn in range(turns)]
        if [message.content for message in messages] != expected:
            raise AssertionError("the transcript is not what was stored")
        document = json.dumps(
            [
                {"id": m.id, "role": m.role, "content": m.content, "timestamp": m.timestamp}
                for m in messages
            ]
        )
        del messages
        loaded, parsed = [], []
        for _ in range(times):
            started = perf_counter()
            transcript = store.load(texts.session_id(session))
            loaded.append(perf_counter() - started)
            del transcript
            started = perf_counter()
            objects = json.loads(document)
            parsed.append(perf_counter() - started)
            del objects
    return {"ms": statistics.median(loaded) * 1e3, "json_ms": statistics.median(parsed) * 1e3}


def open_file(path: str, times: int) -> Figures:
    """From nothing to the first answer."""
    opened, answered = [], []
    for _ in range(times + 1):
        started = perf_counter()
        with SessionStore(Path(path)) as store:
            opened.append(perf_counter() - started)
            if store.get_session(texts.session_id(7)) is None:
                raise AssertionError("a stored session was not found")
            answered.append(perf_counter() - started)
    return {
        "ms": statistics.median(answered[1:]) * 1e3,
        "open_ms": statistics.median(opened[1:]) * 1e3,
    }


def cost(path: str, sessions: int, appends: int) -> Figures:
    """What one more append takes in this file: wall and CPU, and its share of indexing."""
    with SessionStore(Path(path)) as store:

        def append(turn: int) -> None:
            number = turn * 7 % sessions
            store.append_message(texts.session_id(number), texts.role(turn), texts.text(0, turn))

        for turn in range(timing.WARM_UP):
            append(turn)
        store.index_pending()
        took = []
        cpu = time.process_time()
        for turn in range(appends):
            started = perf_counter()
            append(turn)
            took.append(perf_counter() - started)
        cpu = time.process_time() - cpu
        started = perf_counter()
        store.index_pending()
        indexing = perf_counter() - started
    return {
        "median_us": statistics.median(took) * 1e6,
        "cpu_us": cpu / appends * 1e6,
        "index_us": indexing / appends * 1e6,
    }


if __name__ == "__main__":
    serve(
        {
            "trio": version("trio"),
            "apsw": apsw.apsw_version(),
            "sqlite": apsw.sqlite_lib_version(),
        },
        {
            "durability": durability,
            "append_blocking": append_blocking,
            "append_awaited": append_awaited,
            "fill": fill,
            "load": load,
            "open_file": open_file,
            "cost": cost,
        },
    )
