"""New databases on the PostgreSQL server of a run, and the processor time of that server.

Drivers of peers use this, too; it needs psycopg.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from bench.harness.driver import Figures

TICK = os.sysconf("SC_CLK_TCK")


class Database:
    """A database without tables."""

    def __init__(self, url: str, server: int) -> None:
        self.url = url
        self._server = server

    def cpu(self) -> float:
        """The processor time of the server so far, in seconds, of all its processes."""
        total = 0.0
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                _, _, rest = (process / "stat").read_text().rpartition(")")
            except OSError:  # it has ended, which adds its time to that of the server
                continue
            fields = rest.split()
            if process.name == str(self._server):
                total += sum(map(int, fields[11:15]))
            elif fields[1] == str(self._server):
                total += sum(map(int, fields[11:13]))
        return total / TICK


class Timing:
    """The time and the processor time since it was made, of a driver and of the server."""

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._server = 0.0 if database is None else database.cpu()
        self._cpu = time.process_time()
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def figures(
        self, done: float, seconds: float | None = None, cpu: float | None = None
    ) -> Figures:
        """Return the figures of this many turns; the driver may know its own time better."""
        seconds = self.seconds if seconds is None else seconds
        cpu = time.process_time() - self._cpu if cpu is None else cpu
        found = {"count": done, "rate": done / seconds, "cpu_us": cpu / done * 1e6}
        found["node_rate"] = 1e6 / found["cpu_us"]
        if self._database is not None:
            used = max(self._database.cpu() - self._server, 1 / TICK)  # it is counted in ticks
            found["server_us"] = used / done * 1e6
            found["server_rate"] = 1e6 / found["server_us"]
        return found


@contextmanager
def new_database(url: str) -> Iterator[Database]:
    """Create a database on a server that flushes; it is dropped at the end of the block."""
    name = f"bench_{os.getpid()}_{time.monotonic_ns()}"
    with psycopg.connect(url, autocommit=True) as db:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            row = db.execute(f"SHOW {setting}").fetchone()
            if row != ("on",):
                raise AssertionError(f"the server has {setting} = {row}")
        row = db.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        _, _, rest = Path(f"/proc/{row[0]}/stat").read_text().rpartition(")")
        db.execute(f"CREATE DATABASE {name}")
        try:
            yield Database(
                urlunsplit(urlsplit(url)._replace(path=f"/{name}")), int(rest.split()[1])
            )
        finally:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")
