"""Driver processes: started once, kept through the repetitions, asked one thing at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from bench import peers_env

ROOT = Path(__file__).parents[1]
MODULES: Mapping[str, str] = {
    "ours": "bench.peers.ours",
    "floors": "bench.peers.floors",
    "hermes-agent": "bench.peers.hermes_agent",
    "openai-agents": "bench.peers.openai_agents",
    "langgraph": "bench.peers.langgraph_sqlite",
}
START_LIMIT = 60.0
ANSWER_LIMIT = 900.0
STOP_LIMIT = 10.0


class DriverFailed(Exception):
    """A driver ended, took too long, or answered with an error."""


@attrs.define
class Driver:
    """One driver process. `about` is what it said of itself when it started."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    about: dict[str, str] = attrs.Factory(dict)

    def ask(self, do: str, **arguments: str | float) -> dict[str, float]:
        """Have one thing done, and wait for its figures."""
        figures: dict[str, float] = self.request(do, **arguments)
        return figures

    def request(self, do: str, **arguments: str | float) -> dict[str, Any]:
        """Have one thing done, and wait for what it tells."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.read_line(ANSWER_LIMIT))
        if "error" in reply:
            raise DriverFailed(f"{self.name} {do}: {reply['error']}\n{self._last_words()}")
        told: dict[str, Any] = reply["figures"]
        return told

    def read_line(self, limit: float) -> str:
        assert self.process.stdout is not None
        timer = threading.Timer(limit, _kill, [self.process])
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:  # or its thread keeps an interrupted benchmark from ending
            timer.cancel()
        if not line:
            raise DriverFailed(f"{self.name} ended without an answer\n{self._last_words()}")
        return line

    def _last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def _popen(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        raise DriverFailed(f"{command[0]} cannot be started: {error.strerror}") from error


@contextmanager
def driver(name: str, python: Path, folder: Path, module: str | None = None) -> Iterator[Driver]:
    """Start a driver in a folder of its own; it ends with the block."""
    home = folder / f"home-{name}"
    home.mkdir()
    log = folder / f"{name}.log"
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": os.fspath(home),
        "HERMES_HOME": os.fspath(home),
        "PYTHONPATH": os.fspath(ROOT),
    }
    with log.open("w") as errors:
        process = _popen(
            [python, "-m", module or MODULES[name]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=home,
            process_group=0,  # with what it starts itself, so that all of it can be ended
        )
    with process:
        started = Driver(name, process, log)
        try:
            started.about = json.loads(started.read_line(START_LIMIT))
            yield started
        except BaseException:
            _kill(process)  # it may be at work for minutes on what nobody waits for any more
            raise
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Closing its input ends a driver; one that does not listen is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """It is not waited for yet, so its number is nobody else's."""
    os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def fleet(folder: Path) -> Iterator[dict[str, Driver]]:
    """Every driver that can be had; a peer that cannot be installed is missing."""
    pythons = {"ours": Path(sys.executable), "floors": Path(sys.executable)}
    for peer in peers_env.PEERS:
        python = peers_env.interpreter(peer)
        if python is not None:
            pythons[peer] = python
    with together(folder, pythons, MODULES) as drivers:
        yield drivers


@contextmanager
def together(
    folder: Path, pythons: Mapping[str, Path], modules: Mapping[str, str]
) -> Iterator[dict[str, Driver]]:
    """A driver for each of these interpreters; they start at once, which is mostly imports."""

    def start(name: str) -> Driver:
        return stack.enter_context(driver(name, pythons[name], folder, modules[name]))

    with ExitStack() as stack:
        with ThreadPoolExecutor() as pool:
            drivers = dict(zip(pythons, pool.map(start, pythons), strict=True))
        yield drivers
