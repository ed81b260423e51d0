"""`copy`: copy a store between SQLite and PostgreSQL, to move it or as a snapshot."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import msgspec

from hermes.config import is_database_url
from hermes.sanitize import sanitize
from hermes.store.choosing import side_of
from hermes.store.cli.opening import require_current
from hermes.store.cli.output import Printer, format_count, format_size, print_json, progress_bar
from hermes.store.copying.copy import CopyReport, move, snapshot
from hermes.store.sqlite import file_lock
from hermes.store.transaction import Clock

_SHOWN_CHECKSUM = 16


def copy(options: Namespace) -> int:
    """Copy a store to an empty database, and print what was copied."""
    source, target = side_of(options.source), side_of(options.target)
    if not is_database_url(options.source) and (path := Path(options.source)).exists():
        require_current(file_lock.resolve(path))
    run = snapshot if options.snapshot else move
    with progress_bar("copying") as update:
        report = run(
            source, target, Clock(),
            lambda table, rows: update(rows, None, f"copying {table} ({rows:,})"),
        )  # fmt: skip
    if options.json:
        print_json(msgspec.to_builtins(report))
    else:
        _print(report)
    return 0


def _print(report: CopyReport) -> None:
    printer = Printer(sys.stdout)
    names = f"{sanitize(report.source)} to {sanitize(report.target)}"
    if report.done_before:
        printer.line(f"Nothing to do: an earlier command has moved {names}.")
        return
    printer.line(f"{'Copied' if report.snapshot else 'Moved'} {names}:")
    printer.table(
        ("table", "#rows", "checksum of the source", "of the target"),
        [
            (
                table.name,
                f"{table.rows:,}",
                table.source_checksum[:_SHOWN_CHECKSUM],
                table.target_checksum[:_SHOWN_CHECKSUM],
            )
            for table in report.tables
            if table.rows
        ],
    )
    size = format_size(report.file_bytes)
    printer.line(f"Copied {format_count(report.files, 'attached file')} ({size}).")
    if report.missing_files:
        lost = format_count(report.missing_files, "attached file")
        printer.line(f"The content of {lost} is missing in the source, and so in the copy.")
    if report.replaced_texts:
        texts = format_count(report.replaced_texts, "text")
        printer.line(f"Replaced U+0000 in {texts}: PostgreSQL cannot store it.")
    if report.snapshot:
        printer.line("This is a snapshot: it has no tokens, sessions of the page or open messages.")
    else:
        printer.line("The source is marked as moved: a runtime opens it with --force only.")
