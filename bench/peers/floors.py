"""The limits: the disk's flush rate, and a bare loop of the statements that our append runs."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from bench import texts
from bench.peers import timing
from bench.peers.wire import Figures, serve
from hermes.store import SessionStore
from hermes.store.conversations.sessions import SELECT

BLOCK = 4096
BLOCKS = 1024

Value = None | int | float | str | bytes
Statement = tuple[str, tuple[Value, ...]]
Make = Callable[[int], Value]


def fdatasync(path: str, seconds: float) -> Figures:
    """Overwrite a block of a file that has its full size already, and flush; again and again."""
    block = os.urandom(BLOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for place in range(BLOCKS):
            os.pwrite(descriptor, block, place * BLOCK)
        os.fsync(descriptor)

        def write(turn: int) -> None:
            os.pwrite(descriptor, block, turn % BLOCKS * BLOCK)
            os.fdatasync(descriptor)

        return timing.blocking(write, seconds).figures()
    finally:
        os.close(descriptor)


def record(path: str) -> tuple[list[Statement], list[Statement]]:
    """The statements of two appends, one after the other, as our store really ran them."""
    statements: list[Statement] = []

    def trace(_: apsw.Cursor, sql: str, bindings: tuple[Value, ...] | None) -> bool:
        statements.append((sql, tuple(bindings or ())))
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = trace  # type: ignore[assignment]  # named bindings are not used

    apsw.connection_hooks.append(watch)
    try:
        with SessionStore(Path(path)) as store:
            store.create_session(texts.session_id(0), source="bench")
            appends = []
            for turn in (0, 2, 4):  # the first may prepare something: only the others are kept
                statements.clear()
                store.append_message(texts.session_id(0), texts.role(turn), texts.text(0, turn))
                appends.append(list(statements))
    finally:
        apsw.connection_hooks.remove(watch)
    return appends[1], appends[2]


def maker(before: Value, after: Value) -> Make:
    """How a parameter goes on, seen from two appends: a constant, a text, the time, a count."""
    if before == after:
        return lambda _: after
    if isinstance(after, str) and after == texts.text(0, 4):
        return lambda turn: texts.text(0, turn)
    if isinstance(after, float):
        return lambda _: time.time()
    if isinstance(after, int) and isinstance(before, int):
        step = after - before
        return lambda turn: after + step * (turn + 1)
    raise AssertionError(f"a parameter went from {before!r} to {after!r}: how would it go on?")


def bare(path: str, seconds: float) -> Figures:
    """The same statements with the next values, on a plain connection, with nothing around them."""
    first, second = record(path)
    if [sql for sql, _ in first] != [sql for sql, _ in second]:
        raise AssertionError("two appends did not run the same statements")
    steps = [
        (sql, tuple(maker(a, b) for a, b in zip(before, after, strict=True)))
        for (sql, before), (_, after) in zip(first, second, strict=True)
    ]
    connection = apsw.Connection(path)
    connection.pragma("synchronous", "FULL")
    connection.pragma("foreign_keys", True)

    def append(turn: int) -> None:
        for sql, makers in steps:
            connection.execute(sql, tuple([make(turn) for make in makers])).fetchall()

    try:
        run = timing.blocking(append, seconds)
        expected = 3 + timing.WARM_UP + len(run.latencies)
        if connection.execute("SELECT count(*) FROM all_messages").get != expected:
            raise AssertionError("the bare loop did not store what it counted")
        return {**run.figures(), "statements": float(len(steps))}
    finally:
        connection.close()


def open_file(path: str, times: int) -> Figures:
    """What SQLite takes for itself: open our file, read its schema, run the query, unguarded."""
    opened, answered = [], []
    for _ in range(times + 1):
        started = time.perf_counter()
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        connection.execute("PRAGMA synchronous = FULL")
        opened.append(time.perf_counter() - started)
        if not connection.execute(SELECT + "WHERE s.id = ?", (texts.session_id(7),)).fetchall():
            raise AssertionError("a stored session was not found")
        answered.append(time.perf_counter() - started)
        connection.close()
    return {
        "ms": statistics.median(answered[1:]) * 1e3,
        "open_ms": statistics.median(opened[1:]) * 1e3,
    }


if __name__ == "__main__":
    serve(
        {"system": platform.platform()},
        {"fdatasync": fdatasync, "bare": bare, "open_file": open_file},
    )
