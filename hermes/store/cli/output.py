"""Output of the admin commands: text, tables and progress bars for people, JSON for programs.

Transcripts contain untrusted text. Text for people is sanitized and contains no markup of its own;
without a terminal it is neither colored nor shortened. JSON is complete, with escapes.
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
_NO_WRAP = {"id", "last active", "time"}


class RichMissing(HermesError):
    """The package rich, which draws tables, is not installed."""


def json_line(value: object) -> str:
    """Return the value as JSON in printable ASCII."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


def print_json(value: object) -> None:
    """Print the value as one line of JSON."""
    sys.stdout.write(f"{json_line(value)}\n")


def escape_json(line: str) -> str:
    """Return the same JSON, with control characters escaped that a terminal would interpret."""
    return UNSAFE.sub(lambda match: json.dumps(match.group())[1:-1], line)


def format_size(number: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in _UNITS:
        if number < _KILO or unit == _UNITS[-1]:
            break
        number /= _KILO
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def format_time(timestamp: float | None, *, seconds: bool = False) -> str:
    """Return a timestamp in local time, to the minute or to the second."""
    if timestamp is None:
        return ""
    try:
        local = datetime.datetime.fromtimestamp(timestamp)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp:g}"
    return local.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def format_count(number: int, noun: str) -> str:
    """Return the number with its noun: `1 session`, `2 sessions`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


class Printer:
    """Prints lines and tables for people."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def line(self, text: str = "") -> None:
        """Print text, which must be sanitized."""
        self._stream.write(f"{text}\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; a column whose name starts with `#` holds numbers."""
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - not needed for `--json`
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for name in columns:
            number = name.startswith("#")
            table.add_column(
                name.removeprefix("#"),
                justify="right" if number else "left",
                no_wrap=number or name in _NO_WRAP,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        console = _console(self._stream)
        with console.capture() as captured:  # rich would treat a closed pipe in its own way
            console.print(table)
        lines = captured.get().strip("\n").split("\n")
        if not self._stream.isatty():
            lines = [line.rstrip() for line in lines]
        self.line("\n".join(lines).strip("\n"))


def require_rich() -> None:
    """Raise `RichMissing` if the package rich is not installed."""
    try:
        import rich  # noqa: F401, PLC0415
    except ImportError:
        from hermes.settings.installation import install_command  # noqa: PLC0415 - rarely needed

        raise RichMissing(
            f"the package rich is missing; run: {install_command('bot')}, or use --json"
        ) from None


def _console(stream: TextIO) -> Console:
    """Return a console that uses colors and the width of the window only at a terminal."""
    from rich.console import Console  # noqa: PLC0415

    is_terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=is_terminal,
        width=None if is_terminal else PIPED_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )


@contextmanager
def progress_bar(
    description: str, total: int | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar on stderr during the block, if that is a terminal.

    The block gets a function to call with the number of completed steps and the total.
    """
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
    bar = Progress(*columns, TimeElapsedColumn(), console=_console(sys.stderr), transient=True)
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda completed, of: bar.update(task, completed=completed, total=of)
