"""What `python -m bench` needs to know of a benchmark in order to run it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from bench.harness.driver import Driver
from bench.harness.measurements import Measurements, Sheet
from bench.harness.progress import Steps


@attrs.frozen
class Run:
    """The circumstances of one run. `folder` is for databases and is removed afterwards."""

    drivers: Mapping[str, Driver]
    folder: Path
    steps: Steps
    options: argparse.Namespace

    @property
    def quick(self) -> bool:
        return bool(self.options.quick)


@attrs.frozen
class Measured:
    """What a benchmark measured, how much work that was (`plan`), and how it is presented."""

    measurements: Measurements
    sheet: Sheet
    plan: Mapping[str, object]
    foreign: Sequence[str] | None = None
    """Rows that do not depend on our code; None means all rows that are not called ours."""


@attrs.frozen
class Benchmark:
    """A command that measures. `modules` are its drivers, by name."""

    name: str
    about: str
    modules: Mapping[str, str]
    measure: Callable[[Run], Measured]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None
