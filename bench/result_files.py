"""Files of results, read again: what `report.document` has written, as far as it is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
import msgspec

from bench.board import Outcome
from bench.report import Better


class BadInput(Exception):
    """The files cannot be compared; one sentence says why."""


@attrs.frozen
class Repetitions:
    """A goal's measured values."""

    values: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]


@attrs.frozen
class Judged:
    """A goal in a file."""

    goal: str
    target: Annotated[str, msgspec.Meta(pattern="^[<>]= ")]
    outcome: Outcome
    measured: Repetitions | None

    @property
    def better(self) -> Better:
        return "higher" if self.target.startswith(">=") else "lower"

    @property
    def unit(self) -> str:
        """What follows the number of the target: older files have it nowhere else."""
        return " ".join(self.target.split()[2:])


@attrs.frozen
class Figure:
    """A figure in a file."""

    cell: str
    who: str
    figure: str
    values: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]


@attrs.frozen
class Heading:
    """A column of a table in a file."""

    figure: str
    heading: str
    better: Better


@attrs.frozen
class Shown:
    """A table in a file."""

    cell: str
    columns: tuple[Heading, ...]


@attrs.frozen
class Result:
    """What is compared of a file that `report.document` made."""

    benchmark: str
    quick: bool
    machine: dict[str, object]
    plan: dict[str, object]
    goals: tuple[Judged, ...]
    figures: tuple[Figure, ...]
    versions: dict[str, dict[str, object]] = attrs.Factory(dict)
    tables: tuple[Shown, ...] = ()
    """Older files have none."""
    foreign: tuple[str, ...] | None = None
    """Whose figures tell nothing of our code; None where that is everybody but ours."""


def read(path: Path) -> Result:
    """A file of results."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
    except msgspec.ValidationError as error:
        raise BadInput(f"{path} is not a result of a benchmark: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not JSON: {error}.") from error
