"""Output of the admin commands: text, tables and progress bars for people, JSON for programs.

Transcripts contain untrusted text. Text for people is sanitized and contains no markup of its own.
At a terminal tables fit the window, so long texts in them are cut; without one they are not, and
there is no color. Excerpts of messages are always one line. JSON is complete, with escapes.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TextIO

from hermes.errors import HermesError, StoreRefused
from hermes.sanitize import UNSAFE, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPED_WIDTH = 10_000
EXCERPT_WIDTH = 80
"""Columns of an excerpt without a terminal."""
INDENT = "  "
_MATCH = re.compile(r">>>(.*?)<<<")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_KILO = 1024
_GAP = 2
_MIN_WIDTHS = {
    "title": 8, "platform": 8, "state": 6, "note": 30, "examples": 12, "id": 24,
}  # fmt: skip
"""Columns that may be narrower than their texts, and how narrow."""
_WRAPPED = {"id", "note", "examples"}
"""Of these, the columns whose texts continue on the next line; others are cut."""


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


@contextmanager
def new_file(target: Path) -> Iterator[IO[bytes]]:
    """Open a new file, readable by its owner only, that appears at the end of the block."""
    if target.exists():
        raise StoreRefused(f"{target} already exists; choose another file name")
    if not target.parent.is_dir():
        raise StoreRefused(f"the directory {target.parent} does not exist; create it first")
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with open(partial, "xb", opener=_open_private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


class Printer:
    """Prints lines and tables for people."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def line(self, text: str = "") -> None:
        """Print text, which must be sanitized."""
        self._stream.write(f"{text}\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table that fits the window; columns without any text are left out.

        A column whose name starts with `#` holds numbers.
        """
        from rich.table import Table  # noqa: PLC0415 - not needed for `--json`
        from rich.text import Text  # noqa: PLC0415

        console = _console(self._stream)
        cells = [[one_line(cell) for cell in row] for row in rows]
        used = [index for index in range(len(columns)) if any(row[index] for row in cells)]
        columns = [columns[index] for index in used]
        cells = [[row[index] for index in used] for row in cells]
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for name, width in zip(columns, _widths(columns, cells, console.width), strict=True):
            table.add_column(
                name.removeprefix("#"),
                justify="right" if name.startswith("#") else "left",
                no_wrap=name not in _WRAPPED,
                overflow="fold" if name in _WRAPPED else "ellipsis",
                width=width,
            )
        for row in cells:
            table.add_row(*map(Text, row))
        with console.capture() as captured:  # rich would treat a closed pipe in its own way
            console.print(table)
        lines = captured.get().strip("\n").split("\n")
        if not self._stream.isatty():
            lines = [line.rstrip() for line in lines]
        self.line("\n".join(lines).strip("\n"))

    def cells(self, *cells: str) -> None:
        """Print texts on one line, which is cut if it does not fit the window."""
        from rich.text import Text  # noqa: PLC0415

        self._cut(Text(INDENT.join(map(one_line, cells)).rstrip()), _console(self._stream).width)

    def excerpt(self, text: str) -> None:
        """Print a text on one line, cut around its first match; at a terminal matches are bold.

        A match is marked as in `SearchHit.snippet`.
        """
        width = _console(self._stream).width if self._stream.isatty() else EXCERPT_WIDTH
        self._cut(_excerpt(one_line(text), width), width)

    def _cut(self, line: Text, width: int) -> None:
        line.truncate(width, overflow="ellipsis")
        console = _console(self._stream)
        with console.capture() as captured:
            console.print(line, no_wrap=True, overflow="ignore", crop=False)
        self.line(captured.get().rstrip("\n"))


def _excerpt(text: str, width: int) -> Text:
    """Return an indented line in which the first match is not too far to the right."""
    from rich.text import Text  # noqa: PLC0415

    line = Text()
    for number, part in enumerate(_MATCH.split(text)):
        line.append(part, "bold" if number % 2 else None)
    first = text.find(">>>")
    skipped = max(0, min(first - width // 3, line.cell_len - width + len(INDENT)))
    if skipped:
        skipped = line.plain.find(" ", skipped, first) + 1 or skipped
        line = Text("…") + line[skipped:]
    return Text(INDENT) + line


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> list[int]:
    """Return how wide each column is, so that the table fits if that is possible."""
    from rich.cells import cell_len  # noqa: PLC0415

    widths = [
        max(cell_len(text) for text in (name.removeprefix("#"), *(row[index] for row in rows)))
        for index, name in enumerate(columns)
    ]
    mins = [_MIN_WIDTHS.get(name, width) for name, width in zip(columns, widths, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > total:
        spare = [width - least for width, least in zip(widths, mins, strict=True)]
        if max(spare) <= 0:
            break
        widths[spare.index(max(spare))] -= 1
    return widths


def require_rich() -> None:
    """Raise `RichMissing` if the package rich is not installed."""
    try:
        import rich  # noqa: F401, PLC0415
    except ImportError:
        from hermes.settings.installation import missing_extra  # noqa: PLC0415 - rarely needed

        raise RichMissing(f"use --json, because {missing_extra('bot')}") from None


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


class Update(Protocol):
    """Updates a progress bar."""

    def __call__(
        self, completed: int, total: int | None, description: str | None = None, /
    ) -> None:
        """Show how many steps of how many are completed, and what is done now."""
        ...


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Update]:
    """Show a progress bar on stderr during the block, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
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
        yield lambda completed, total, description=None: bar.update(
            task,
            completed=completed,
            total=total,
            description=description,
            refresh=description is not None,
        )
