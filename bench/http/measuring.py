"""Measures servers, each in a new process, with clients in other processes.

A driver calls `main`. Its commands start servers by running the driver's module again with the
name of a server, which announces its address when it listens. So all servers, ours and those of
peers, are measured by the same code. It uses the standard library only.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from time import process_time
from typing import Any, Self

from bench.harness.driver import Figures, serve
from bench.http.client import Address, Asked

WARM_UP = 30
FIRST_STREAMS = 50
PAGE = os.sysconf("SC_PAGE_SIZE")
CPU, MEMORY = "cpu", "memory"

Work = Callable[[int], Asked]
Serve = Callable[[str, str, "Announce"], None]
"""Serves with a database at this path and a model at this URL, until the process is killed."""
Home = Callable[[str, str], AbstractContextManager[object]]
Stored = Callable[[str], int]


class Announce:
    """What a server calls when it listens. The driver then learns its address, and how much it has
    used whenever it asks. A server without an address does the `work` itself."""

    def __init__(self) -> None:
        self._responses = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print goes to standard error

    def __call__(self, address: Address | None, work: Work | None = None) -> None:
        self._respond(None if address is None else asdict(address))
        threading.Thread(target=self._report, args=(work,), daemon=True).start()

    def _report(self, work: Work | None) -> None:
        for line in sys.stdin:
            if line.strip() == CPU:
                self._respond(process_time())
            elif line.strip() == MEMORY:
                self._respond(_resident())
            elif work is not None:
                self._respond(asdict(work(int(line))))
        os._exit(0)  # the driver has ended

    def _respond(self, content: object) -> None:
        print(json.dumps(content), file=self._responses)


def _resident() -> int:
    """The memory of this process in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Process:
    """A process that answers every line of its input by one line of JSON."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"this process has ended: {self._process.args!r}")
        return json.loads(line)

    def ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        print(question, file=self._process.stdin, flush=True)
        return self.read()


def start_server(server: str, path: str, url: str) -> Process:
    """Start a server of the driver's module."""
    module = sys.modules["__main__"].__spec__
    assert module is not None
    return Process([sys.executable, "-m", module.name, server, path, url])


def start_client(do: str, address: object, number: int) -> Process:
    client = [sys.executable, "-m", "bench.http.client", do, json.dumps(address), str(number)]
    return Process(client)


class Measurement:
    """A server and its client, and what they have measured since the warm-up."""

    def __init__(self, home: Home, *, path: str, server: str, what: str, count: int,
                 clients: int = 1, url: str = "") -> None:  # fmt: skip
        self._path, self._count = path, max(1, count // clients) * clients
        self._cpu, self._total = 0.0, Asked(0.0, [])
        with ExitStack() as stack:
            stack.enter_context(home(path, url))
            self._server = stack.enter_context(start_server(server, path, url))
            address = self._server.read()
            self._client = self._server
            if address is not None:
                self._client = stack.enter_context(start_client(what, address, clients))
            self._warm_up = max(1, min(WARM_UP, count) // clients) * clients
            self._client.ask(str(self._warm_up))
            self._stack = stack.pop_all()

    def go_on(self) -> None:
        """Send as many requests as a round has."""
        begun = self._server.ask(CPU)
        asked = Asked(**self._client.ask(str(self._count)))
        self._cpu += self._server.ask(CPU) - begun
        taken, elapsed = self._total.taken + asked.taken, self._total.elapsed + asked.elapsed
        self._total = Asked(elapsed, taken, asked.size)

    def end(self, stored: Stored | None) -> Figures:
        """Return the figures, once what is stored has been counted."""
        count = len(self._total.taken)
        with self._stack:
            found = count + self._warm_up if stored is None else stored(self._path)
            if found != count + self._warm_up:
                raise AssertionError(f"{found} answers are stored, not {count + self._warm_up}")
        return {**self._total.figures(), "cpu_us": self._cpu / count * 1e6}


def streams(path: str, server: str, count: int) -> Figures:
    """Open event streams from another process, and see how much memory each takes."""
    with start_server(server, path, "") as process:
        address = process.read()
        with start_client("idle", address, FIRST_STREAMS) as first:
            first.read()  # they have also loaded code
            before = process.ask(MEMORY)
            with start_client("idle", address, count) as more:
                more.read()
                after = process.ask(MEMORY)
    return {"kib": (after - before) / count / 1024, "mib": after / 2**20}


def main(
    about: Mapping[str, str],
    servers: Mapping[str, Serve],
    home: Home = lambda _path, _url: nullcontext(),
    stored: Stored | None = None,
) -> None:
    """Run a driver, or one of its servers if the command line names it.

    A server runs inside `home`. `stored` returns how many answers a server has stored.
    """
    if len(sys.argv) > 1:
        server, path, url = sys.argv[1:]
        servers[server](path, url, Announce())
        return
    begun: dict[str, Measurement] = {}

    def begin(who: str, **arguments: Any) -> None:
        begun[who] = Measurement(home, **arguments)

    def go_on(who: str) -> None:
        begun[who].go_on()

    def end(who: str) -> Figures:
        return begun.pop(who).end(stored)

    serve(about, begin, go_on, end, streams)
