"""What the admin commands print: tables and bars for people, JSON for programs, nothing hostile.

A transcript is anybody's text: what is printed of it for people was made sanitize, `[bold]` is no
markup, and where nobody looks (a pipe) nothing is coloured or cut. JSON has it all, in escapes.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from hermes.errors import HermesError
from hermes.sanitize import UNSAFE, one_line

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 10_000
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_KILO = 1024


class NoTables(HermesError):
    """The package that makes tables is not installed."""


def json_line(value: object) -> str:
    """JSON in visible ASCII."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


def print_json(value: object) -> None:
    """One object on one line of stdout."""
    sys.stdout.write(f"{json_line(value)}\n")


def json_safe(line: str) -> str:
    """The same JSON, with escapes for what a terminal would obey."""
    return UNSAFE.sub(lambda found: json.dumps(found.group())[1:-1], line)


def size(number: float) -> str:
    """So many bytes."""
    for unit in _UNITS:
        if number < _KILO or unit == _UNITS[-1]:
            break
        number /= _KILO
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def moment(seconds: float | None, *, exact: bool = False) -> str:
    """A time on the wall."""
    if seconds is None:
        return ""
    try:
        found = datetime.datetime.fromtimestamp(seconds)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
    return found.strftime("%Y-%m-%d %H:%M:%S" if exact else "%Y-%m-%d %H:%M")


def count(number: int, what: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


class Page:
    """Where people read: lines and tables on a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def line(self, text: str = "") -> None:
        """One line, or several; only sanitize text."""
        self._stream.write(f"{text}\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table; a column whose name begins with `#` holds numbers."""
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - `--json` does without
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for name in columns:
            number = name.startswith("#")
            table.add_column(
                name.removeprefix("#"),
                justify="right" if number else "left",
                no_wrap=number or name in {"id", "last active", "when"},
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        drawn = console(self._stream)
        with drawn.capture() as captured:  # to write it ourselves: it has its own idea of a pipe
            drawn.print(table)
        lines = captured.get().strip("\n").split("\n")
        if not self._stream.isatty():
            lines = [line.rstrip() for line in lines]
        self.line("\n".join(lines).strip("\n"))


def require_rich() -> None:
    """Say in one sentence what is missing for tables."""
    try:
        import rich  # noqa: F401, PLC0415
    except ImportError:
        raise NoTables(
            "tables need the package rich: pip install 'hermes-runtime[bot]', or use --json"
        ) from None


def console(stream: TextIO) -> Console:
    """A console that colours only for eyes."""
    from rich.console import Console  # noqa: PLC0415

    looked_at = stream.isatty()
    return Console(
        file=stream,
        force_terminal=looked_at,
        width=None if looked_at else PIPED_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr while the block runs, if that is a terminal: call it with (done, of all)."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns: tuple[Any, ...] = (TextColumn("{task.description}"), BarColumn())
    if total is not None:
        columns += (TaskProgressColumn(),)
    bar = Progress(*columns, TimeElapsedColumn(), console=console(sys.stderr), transient=True)
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of: bar.update(task, completed=done, total=of)
