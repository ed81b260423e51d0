"""Driver of the baselines: the disk's flush rate, and SQLite without our code around it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from bench.harness import driver
from bench.harness.driver import Figures, serve
from bench.harness.sample_text import role, session_id, text
from hermes.store import SessionStore
from hermes.store.conversations.sessions import SELECT

BLOCK = 4096
BLOCKS = 1024

Value = None | int | float | str | bytes
Statement = tuple[str, tuple[Value, ...]]


def fdatasync(path: str, seconds: float) -> Figures:
    """Repeatedly overwrite a block of a preallocated file and flush it."""
    block = os.urandom(BLOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for number in range(BLOCKS):
            os.pwrite(descriptor, block, number * BLOCK)
        os.fsync(descriptor)

        def write(turn: int) -> None:
            os.pwrite(descriptor, block, turn % BLOCKS * BLOCK)
            os.fdatasync(descriptor)

        return driver.time_blocking(write, seconds).figures()
    finally:
        os.close(descriptor)


def record(path: str) -> tuple[list[Statement], list[Statement]]:
    """Record the statements of two successive appends of our store."""
    statements: list[Statement] = []

    def trace(_: apsw.Cursor, sql: str, bindings: tuple[Value, ...] | None) -> bool:
        statements.append((sql, tuple(bindings or ())))
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = trace  # type: ignore[assignment]  # named bindings are not used

    apsw.connection_hooks.append(watch)
    try:
        with SessionStore(Path(path)) as store:
            store.create_session(session_id(0), source="bench")
            appends = []
            for turn in (0, 2, 4):  # the first one may do preparations and is not used
                statements.clear()
                store.append_message(session_id(0), role(turn), text(0, turn))
                appends.append(list(statements))
    finally:
        apsw.connection_hooks.remove(watch)
    return appends[1], appends[2]


def parameter(before: Value, after: Value) -> Callable[[int], Value]:
    """Continue a parameter seen in two appends: a constant, a text, the time or a count."""
    if before == after:
        return lambda _: after
    if isinstance(after, str) and after == text(0, 4):
        return lambda turn: text(0, turn)
    if isinstance(after, float):
        return lambda _: time.time()
    if isinstance(after, int) and isinstance(before, int):
        step = after - before
        return lambda turn: after + step * (turn + 1)
    raise AssertionError(f"cannot continue a parameter that went from {before!r} to {after!r}")


def bare(path: str, seconds: float) -> Figures:
    """Replay the statements of our append with new values on a plain connection."""
    first, second = record(path)
    if [sql for sql, _ in first] != [sql for sql, _ in second]:
        raise AssertionError("two appends ran different statements")
    steps = [
        (sql, tuple(parameter(a, b) for a, b in zip(before, after, strict=True)))
        for (sql, before), (_, after) in zip(first, second, strict=True)
    ]
    connection = apsw.Connection(path)
    connection.pragma("synchronous", "FULL")
    connection.pragma("foreign_keys", True)

    def append(turn: int) -> None:
        for sql, parameters in steps:
            connection.execute(sql, tuple([make(turn) for make in parameters])).fetchall()

    try:
        run = driver.time_blocking(append, seconds)
        expected = 3 + driver.WARM_UP + len(run.latencies)
        if connection.execute("SELECT count(*) FROM all_messages").get != expected:
            raise AssertionError("the bare loop did not store what it counted")
        return {**run.figures(), "statements": float(len(steps))}
    finally:
        connection.close()


def open_file(path: str, times: int) -> Figures:
    """Open our file and run the same query, without any checks."""

    def connect() -> apsw.Connection:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def query(connection: apsw.Connection) -> object:
        return connection.execute(SELECT + "WHERE s.id = ?", (session_id(7),)).fetchall()

    return driver.time_opening(connect, query, times)


if __name__ == "__main__":
    serve({"system": platform.platform()}, fdatasync, bare, open_file)
