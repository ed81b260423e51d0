"""Driver processes: started once, kept for all repetitions, and asked one thing at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from bench import peers_env

ROOT = Path(__file__).parents[2]
TIMEOUT = 900.0


class DriverFailed(Exception):
    """A driver exited, timed out or reported an error; exit code 1."""


@attrs.define
class Driver:
    """One driver process. `about` is its description: versions, and the URL of a model."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    about: dict[str, str] = attrs.Factory(dict)

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Run one command in the driver and return its figures. Raises DriverFailed."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
        self.process.stdin.flush()
        response = self.read()
        if "error" in response:
            raise DriverFailed(f"{self.name} {do}: {response['error']}\n{self._end_of_log()}")
        figures: dict[str, Any] = response["figures"]
        return figures

    def read(self) -> dict[str, Any]:
        """Read one line of the driver, which is killed if it takes too long."""
        assert self.process.stdout is not None
        timer = threading.Timer(TIMEOUT, self.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:  # a running timer would keep an interrupted benchmark alive
            timer.cancel()
        if not line:
            raise DriverFailed(f"{self.name} exited without a response\n{self._end_of_log()}")
        response: dict[str, Any] = json.loads(line)
        return response

    def kill(self) -> None:
        """Kill the driver and its children.

        The process has not been waited for yet, so its id cannot have been reused.
        """
        os.killpg(self.process.pid, signal.SIGKILL)

    def _end_of_log(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


@contextmanager
def open_driver(name: str, module: str, python: Path, folder: Path) -> Iterator[Driver]:
    """Start a driver with a new home directory; it is killed when the block ends."""
    home, log = folder / f"home-{name}", folder / f"{name}.log"
    home.mkdir()
    homes = dict.fromkeys(("HOME", "HERMES_HOME"), os.fspath(home))
    with log.open("w") as errors:
        process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.fspath(ROOT), **homes},
            cwd=home,
            process_group=0,  # the driver and its children can be killed together
        )
    driver = Driver(name, process, log)
    with process:
        try:
            yield driver
        finally:
            driver.kill()  # it has nothing to save, and may be busy for minutes


@contextmanager
def open_drivers(folder: Path, modules: Mapping[str, str]) -> Iterator[dict[str, Driver]]:
    """Start a driver for each module, all at once, because starting is mostly importing.

    A module in `bench.peers` runs in the environment of the peer that the driver is named after;
    if that peer cannot be installed, its driver is missing from the result.
    """
    drivers = {}
    with ExitStack() as stack:
        for name, module in modules.items():
            peer = module.startswith("bench.peers.")
            python = peers_env.interpreter(name) if peer else Path(sys.executable)
            if python is not None:
                opened = open_driver(name, module, python, folder)
                drivers[name] = stack.enter_context(opened)
        for driver in drivers.values():
            driver.about = driver.read()
        yield drivers
