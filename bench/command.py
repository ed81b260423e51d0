"""What the commands of the benchmark have in common: options, a folder, the files of results."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import attrs

from bench import page, progress, report, tables, written
from bench.drivers import DriverFailed
from bench.progress import Steps
from bench.report import Json

HERE = Path(__file__).parent
RESULTS = HERE / "results"
REPORT = "report.html"
"""The page of everything that lies beside it."""


def results(*, quick: bool) -> Path:
    """Where results go when nobody says otherwise: quick ones never over full ones."""
    return RESULTS / "quick" if quick else RESULTS


class BadInput(Exception):
    """What was asked for cannot be; the text is a sentence that says why."""


class Measure(Protocol):
    """Measures in this folder."""

    def __call__(self, folder: Path, steps: Steps, *, quick: bool) -> report.Measured: ...


class Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help tells more)\n")


@attrs.frozen
class Files:
    """Where the results go, and the page of them."""

    out: Path
    page: Path

    def ready(self) -> None:
        """See that both can be written before anything is measured."""
        apart(self.page, [self.out])
        ready(self.out)
        ready(self.page)

    def write(self, document: Mapping[str, Json]) -> None:
        """The page of everything shows what lies beside it, any other page this result alone."""
        report.write(self.out, document)
        together = self.page == self.out.parent / REPORT
        shown = written.beside(self.out.parent) if together else [written.read(self.out)]
        report.write_text(self.page, page.html(shown))


def run(
    name: str,
    description: str,
    arguments: Sequence[str],
    measure: Measure,
    more: Sequence[argparse.ArgumentParser] = (),
) -> int:
    """Run one benchmark as `python -m bench NAME`, also with `more` options; the exit code."""
    options = _options(name, description, arguments, more)
    folder = results(quick=options.quick)
    out = options.out or folder / f"{name}.json"
    files = Files(
        out, options.page or (out.with_suffix(".html") if options.out else folder / REPORT)
    )
    try:
        files.ready()
        workplace = open_workplace(options.dir)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    started = time.monotonic()
    with workplace as place:
        try:
            with progress.steps() as steps:
                measured = measure(Path(place), steps, quick=options.quick)
        except DriverFailed as failure:
            print(f"The benchmark stopped: {failure}", file=sys.stderr)
            return 1
    seconds = round(time.monotonic() - started)
    about = description.strip().partition("\n")[0]
    head: dict[str, Json] = {
        "benchmark": name, "about": about, "quick": options.quick, "seconds": seconds,
    }  # fmt: skip
    document = {**head, **report.document(measured, quick=options.quick)}
    files.write(document)
    print(tables.text(written.parse(document)))
    print(f"\n{seconds} s; written to {files.out}, and as a page to {files.page}")
    return 0


def _options(
    name: str,
    description: str,
    arguments: Sequence[str],
    more: Sequence[argparse.ArgumentParser],
) -> argparse.Namespace:
    parser = Parser(prog=f"python -m bench {name}", description=description, parents=list(more))
    add_common(parser)
    parser.add_argument(
        "--out",
        type=Path,
        help=f"file of results (default: bench/results/{name}.json; of a quick run, in quick/)",
    )
    parser.add_argument(
        "--page", type=Path,
        help=f"file of the page (default: --out with .html; without --out, bench/results/{REPORT})",
    )  # fmt: skip
    return parser.parse_args(arguments)


def add_common(parser: argparse.ArgumentParser) -> None:
    """What a single benchmark and all of them understand alike."""
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, smaller files")
    parser.add_argument("--dir", type=Path, default=HERE, help="where the databases are made")


def open_workplace(parent: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder for the databases, gone when its block ends.

    Not in /tmp, which is memory on many machines: a flush to memory would measure nothing.
    """
    try:
        # Absolute, because every driver has a working folder of its own.
        return tempfile.TemporaryDirectory(prefix=".run-", dir=parent.absolute())
    except OSError as error:
        raise BadInput(f"No databases can be made in {parent}: {error.strerror}.") from error


def apart(page: Path, files: Sequence[Path]) -> None:
    """See that a page is not written over the results that it shows."""
    if page.resolve() in {file.resolve() for file in files}:
        raise BadInput(f"{page} cannot be both results and their page.")


def ready(file: Path) -> None:
    """Make the folder of a file that is written later, and try that it can be written."""
    if file.is_dir():
        raise BadInput(f"{file} cannot be written: it is a folder.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}.") from error
