"""Driver processes: started once, kept for all repetitions, and asked one thing at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from bench import peers_env
from bench.errors import DriverFailed

ROOT = Path(__file__).parents[2]
PEERS = "bench.peers."
START_TIMEOUT = 60.0
RESPONSE_TIMEOUT = 900.0
STOP_TIMEOUT = 10.0


@attrs.define
class Driver:
    """One driver process. `about` is its own description: versions, and the URL of a model."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    about: dict[str, str] = attrs.Factory(dict)

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Run one command in the driver and return its figures. Raises DriverFailed."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
        self.process.stdin.flush()
        response = json.loads(self.read_line(RESPONSE_TIMEOUT))
        if "error" in response:
            raise DriverFailed(f"{self.name} {do}: {response['error']}\n{self._end_of_log()}")
        figures: dict[str, Any] = response["figures"]
        return figures

    def read_line(self, timeout: float) -> str:
        assert self.process.stdout is not None
        timer = threading.Timer(timeout, _kill, [self.process])
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:  # a running timer would keep an interrupted benchmark alive
            timer.cancel()
        if not line:
            raise DriverFailed(f"{self.name} exited without a response\n{self._end_of_log()}")
        return line

    def _end_of_log(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


@contextmanager
def open_driver(name: str, module: str, python: Path, folder: Path) -> Iterator[Driver]:
    """Start a driver with a home directory of its own; it is stopped when the block ends."""
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
        try:
            process = subprocess.Popen(
                [python, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=home,
                process_group=0,  # the driver and its children can be killed together
            )
        except OSError as error:
            raise DriverFailed(f"{python} cannot be started: {error.strerror}") from error
    with process:
        driver = Driver(name, process, log)
        try:
            driver.about = json.loads(driver.read_line(START_TIMEOUT))
            yield driver
        except BaseException:
            _kill(process)  # it may be busy for minutes with work that nobody needs any more
            raise
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    """A driver exits when its standard input is closed; one that does not is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """The process has not been waited for yet, so its id cannot have been reused."""
    os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def open_drivers(folder: Path, modules: Mapping[str, str]) -> Iterator[dict[str, Driver]]:
    """Start a driver for each module, all at once, because starting is mostly importing.

    A module in `bench.peers` runs in the environment of the peer that the driver is named after;
    if that peer cannot be installed, its driver is missing from the result.
    """
    pythons = {
        name: peers_env.interpreter(name) if module.startswith(PEERS) else Path(sys.executable)
        for name, module in modules.items()
    }
    present = {name: python for name, python in pythons.items() if python is not None}

    def start(name: str) -> Driver:
        return stack.enter_context(open_driver(name, modules[name], present[name], folder))

    with ExitStack() as stack:
        with ThreadPoolExecutor() as pool:
            drivers = dict(zip(present, pool.map(start, present), strict=True))
        yield drivers
