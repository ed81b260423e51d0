"""`prune`: delete conversations that ended long ago, after it has shown them and asked.

Attached files that nothing names any more are deleted, too.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace

from msgspec.structs import asdict

from hermes.messages import Pruned
from hermes.store.attachments.sweep import sweep_files
from hermes.store.cli.ages import DAY
from hermes.store.cli.opening import existing_path, open_current, run_chunked
from hermes.store.cli.output import (
    Printer,
    format_count,
    format_size,
    format_time,
    print_json,
    progress_bar,
)
from hermes.store.cli.show import platform
from hermes.store.files.contents import Swept
from hermes.store.maintenance import cleanup
from hermes.store.sync_store import SessionStore

MAX_SHOWN = 20


def prune(options: Namespace) -> int:
    """Delete sessions that ended long ago and have no route."""
    if options.json and not (options.yes or options.dry_run):
        sys.stderr.write("Nothing was deleted: add --yes to delete, or --dry-run.\n")
        return 2
    with open_current(existing_path(options)) as store:
        started = time.time()
        rows = store.snapshot(lambda tx: cleanup.prunable(tx, options.older_than, options.platform))
        found = Pruned(tuple(id_ for id_, _ in rows), sum(n for _, n in rows), dry_run=True)
        if not options.json and found.session_ids and not options.yes:
            _show(store, found)
        swept = None
        if not options.dry_run:
            if found.session_ids and not options.yes and (code := _refusal(found)):
                return code
            # What ended while the question was shown is not deleted.
            found = _delete(store, options, options.older_than + (time.time() - started) / DAY)
            swept = _sweep(store)
    _report(found, swept, json=options.json)
    return 0


def _show(store: SessionStore, found: Pruned) -> None:
    rows = []
    for session_id in found.session_ids[:MAX_SHOWN]:
        session = store.get_session(session_id)
        if session is not None:
            count, ended = f"{session.message_count:,}", format_time(session.ended_at)
            rows.append((session_id, session.title or "", platform(session), count, ended))
    printer = Printer(sys.stdout)
    printer.table(("id", "title", "platform", "#msgs", "ended"), rows)
    if (more := len(found.session_ids) - MAX_SHOWN) > 0:
        printer.line(f"… and {format_count(more, 'more session')}")


def _refusal(found: Pruned) -> int:
    """Ask whether to delete; returns the exit code if not. Without a terminal the answer is no."""
    if not sys.stdin.isatty():
        sys.stderr.write("Nothing was deleted: add --yes to delete without a question.\n")
        return 2
    code = 1
    try:
        sys.stdout.write(f"Delete {_counts(found)} for good? [y/N] ")
        sys.stdout.flush()
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer, code = "", 130
    if answer.strip().lower() in {"y", "yes"}:
        return 0
    if not answer.endswith("\n"):  # Ctrl-C or Ctrl-D: the terminal has not begun a new line
        sys.stdout.write("\n")
    sys.stdout.write("Nothing was deleted.\n")
    return code


def _delete(store: SessionStore, options: Namespace, older_than: float) -> Pruned:
    work = cleanup.prune_sessions(older_than, options.platform)
    with progress_bar("pruning") as update:
        return run_chunked(store, work, lambda number: update(number, None))


def _sweep(store: SessionStore) -> Swept:
    """Delete attached files that nothing names any more."""
    contents = store.snapshot(lambda tx: tx.db.blobs)
    with progress_bar("deleting files") as update:
        return run_chunked(store, sweep_files(contents), lambda number: update(number, None))


def _report(pruned: Pruned, swept: Swept | None, *, json: bool) -> None:
    if json:
        removed = {} if swept is None else {"files": swept.blobs, "bytes": swept.size}
        print_json(asdict(pruned) | removed)
        return
    verb = "Would delete" if pruned.dry_run else "Deleted"
    printer = Printer(sys.stdout)
    printer.line(f"{verb} {_counts(pruned)}.")
    if swept is not None and swept.blobs:
        files = f"{format_count(swept.blobs, 'file')} ({format_size(swept.size)})"
        printer.line(f"Deleted {files} that no conversation names any more.")


def _counts(pruned: Pruned) -> str:
    sessions = format_count(len(pruned.session_ids), "session")
    return f"{sessions} with {format_count(pruned.messages, 'message')}"
