"""Driver of our store: `open_store` (asynchronous) and `SessionStore` (blocking)."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import apsw
import trio

from bench.harness import driver
from bench.harness.driver import Figures, serve
from bench.harness.sample_text import role, session_id, text
from bench.harness.trio_timing import time_trio
from hermes.messages import (
    Content,
    Inbound,
    Message,
    RecordedCall,
    TurnCommit,
    TurnRecord,
    Usage,
)
from hermes.store import SessionStore, open_store

FILLERS = 200


def check_connection(connection: object) -> None:
    assert isinstance(connection, apsw.Connection)
    driver.check_durability(connection.execute)


def append_blocking(path: str, seconds: float) -> Figures:
    connections: list[apsw.Connection] = []
    apsw.connection_hooks.append(connections.append)
    with SessionStore(Path(path)) as store:
        apsw.connection_hooks.remove(connections.append)
        driver.check_durability(connections[-1].execute)  # those before it only inspected the file
        store.create_session(session_id(0), source="bench")

        def append(turn: int) -> None:
            store.append_message(session_id(0), role(turn), text(0, turn))

        return driver.time_blocking(append, seconds).figures()


async def append_awaited(path: str, callers: int, seconds: float, count: int = 0) -> Figures:
    async with open_store(Path(path)) as store:
        await store.run_alone(check_connection)

        async def append(caller: int, turn: int) -> None:
            await store.append_message(session_id(caller), role(turn), text(caller, turn))

        for caller in range(callers):
            await store.create_session(session_id(caller), source="bench")
        run = await time_trio(append, callers, seconds, count)
        marker = f"marker{time.time_ns()}"
        await store.append_message(session_id(0), "user", marker)
        started = perf_counter()
        hits = len(await store.search_messages(marker))
        return run.figures_with_search(perf_counter() - started, hits)


async def fill(path: str, sessions: int, turns: int) -> None:
    """Fill a file by concurrent callers, so that rows interleave; then complete the index."""
    async with open_store(Path(path)) as store:

        async def add(first: int) -> None:
            numbers = range(first, sessions, FILLERS)
            for number in numbers:
                await store.create_session(session_id(number), source="bench")
            for turn in range(turns):
                for number in numbers:
                    await store.append_message(session_id(number), role(turn), text(number, turn))

        async with trio.open_nursery() as nursery:
            for first in range(min(FILLERS, sessions)):
                nursery.start_soon(add, first)
    with SessionStore(Path(path)) as blocking:
        blocking.index_pending()


async def size(path: str, sessions: int, turns: int) -> Figures:
    await fill(path, sessions, turns)
    return driver.size_figures(Path(path))


def recorded_calls(path: str, turns: int, calls: int) -> Figures:
    """Compare a file with recorded turns with the same file without recordings."""
    sizes = []
    for number, recorded in enumerate((0, calls)):
        file = Path(f"{path}.{number}")
        with SessionStore(file) as store:
            for turn in range(turns):
                _take_turn(store, turn, recorded)
            store.vacuum()
        sizes.append(file.stat().st_size)
    return {"call_bytes": (sizes[1] - sizes[0]) / (turns * calls)}


def _take_turn(store: SessionStore, turn: int, calls: int) -> None:
    accepted = store.accept(Inbound(session_id(turn % 20), f"{turn}", text(0, turn)))
    receipt = accepted.receipt
    usage = Usage(input_tokens=12_345, output_tokens=678, cache_read_tokens=9_012, cost=0.0123)
    made = [
        RecordedCall(
            settings=Content.of("settings"),
            tools=Content.of("tools"),
            system=Content.of("system"),
            session_id=receipt.session_id,
            history=(1, accepted.head.message_count),
            rows=number + 1,
            digest=hashlib.sha256(b"%d %d" % (turn, number)).hexdigest(),
            started=3_456 * number,
            first=3_456 * number + 789,
            duration=3_123,
            usage=usage,
        )
        for number in range(calls)
    ]
    store.commit_turn(
        TurnCommit(
            session_key=receipt.session_key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=accepted.head.revision,
            inbox_ids=[receipt.inbox_id],
            rows=[Message("user", text(0, turn)), Message("assistant", text(1, turn))],
            record=TurnRecord(started_at=time.time(), status="complete", calls=made)
            if made
            else None,
        )
    )


def load(path: str, session: int, turns: int, times: int) -> Figures:
    """Load a transcript, alternating with `json.loads` of the same data."""
    with SessionStore(Path(path)) as store:
        messages = store.load(session_id(session)).messages
        if [message.content for message in messages] != [text(session, n) for n in range(turns)]:
            raise AssertionError("the loaded transcript differs from what was stored")
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
            transcript = store.load(session_id(session))
            loaded.append(perf_counter() - started)
            del transcript
            started = perf_counter()
            objects = json.loads(document)
            parsed.append(perf_counter() - started)
            del objects
    return {"ms": statistics.median(loaded) * 1e3, "json_ms": statistics.median(parsed) * 1e3}


def open_file(path: str, times: int) -> Figures:
    def query(store: SessionStore) -> object:
        return store.get_session(session_id(7))

    return driver.time_opening(lambda: SessionStore(Path(path)), query, times)


def cost(path: str, sessions: int, appends: int) -> Figures:
    """Measure time and processor time of an append to this file, and of indexing it."""
    with SessionStore(Path(path)) as store:

        def append(turn: int) -> None:
            store.append_message(session_id(turn * 7 % sessions), role(turn), text(0, turn))

        run = driver.time_blocking(append, 0.0, appends)
        started = perf_counter()
        store.index_pending()
        indexing = perf_counter() - started
    return {
        "median_us": statistics.median(run.latencies) * 1e6,
        "cpu_us": run.cpu_ms * 1e3,
        "index_us": indexing / (driver.WARM_UP + appends) * 1e6,
    }


if __name__ == "__main__":
    about = {"apsw": apsw.apsw_version(), "sqlite": apsw.sqlite_lib_version()}
    commands = (
        append_blocking, append_awaited, fill, size, recorded_calls, load, open_file, cost,
    )  # fmt: skip
    serve({"trio": version("trio"), **about}, *commands, run=trio.run)
