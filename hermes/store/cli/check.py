"""`check`: find damage in a database and in its attached files."""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from hermes.errors import StoreFailed
from hermes.sanitize import one_line
from hermes.store.attachments import sweep
from hermes.store.cli.opening import existing_path, in_use, open_current
from hermes.store.cli.output import Printer, format_count, format_size, print_json, progress_bar
from hermes.store.cli.read_only import is_read_only
from hermes.store.files.contents import Swept
from hermes.store.maintenance import cleanup, file_checks
from hermes.store.sync_store import SessionStore


def check(options: Namespace) -> int:
    """Check the file for damage, and that the content of attached files is there.

    The search index is not checked while a runtime owns the file, because that blocks writes.
    """
    path = existing_path(options)
    read_only = isinstance(path, Path) and is_read_only(path)
    obstacle = "the file is read-only" if read_only else None
    with open_current(path) as store:
        if obstacle is None and in_use(path):
            obstacle = "a runtime is using the file"
        problems = _find_problems(store, with_index=obstacle is None, full=options.full)
        unused = Swept() if problems else store.snapshot(sweep.unused)
    if options.json:
        found = {"ok": not problems, "problems": problems, "index_checked": obstacle is None}
        print_json({**found, "unused_files": unused.blobs, "unused_bytes": unused.size})
    else:
        printer = Printer(sys.stdout)
        for problem in problems or ["No problems found."]:
            printer.line(one_line(problem))
        if obstacle is not None:
            printer.line(f"The search index was not checked, because {obstacle}.")
        if unused.blobs:
            files = f"{format_count(unused.blobs, 'file')} ({format_size(unused.size)})"
            printer.line(f"Nothing names {files} any more; the bot or prune will delete them.")
    return 1 if problems else 0


def _find_problems(store: SessionStore, *, with_index: bool, full: bool) -> list[str]:
    """Run the checks one by one, and show which one is running."""
    checks: dict[str, Callable[[], Sequence[str]]] = {
        name: functools.partial(store.snapshot, check) for name, check in cleanup.CHECKS.items()
    }
    checks[file_checks.SUBJECT] = functools.partial(_check_files, store, full=full)
    if with_index:
        checks["search index"] = lambda: tuple(filter(None, [store.check_search()]))
    problems: list[str] = []
    with progress_bar("checking", len(checks)) as update:
        for number, (name, check) in enumerate(checks.items()):
            update(number, len(checks), f"checking {name} ({number + 1} of {len(checks)})")
            try:
                problems += check()
            except StoreFailed as error:
                return [*problems, str(error)]
    return problems


def _check_files(store: SessionStore, *, full: bool) -> list[str]:
    """Check attached files. What others delete during the check is no problem."""
    problems = store.snapshot(file_checks.check)
    if problems:
        again = store.snapshot(file_checks.check)
        problems = [problem for problem in problems if problem in again]
    if full:
        folder = store.snapshot(lambda tx: tx.db.blobs)
        problems += file_checks.damaged(folder, store.snapshot(file_checks.blobs))
    return problems
