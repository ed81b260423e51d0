"""The admin commands that move, mend and clean: each a function of its options to an exit code.

All of them may run beside the runtime that owns the file, but `vacuum` and `migrate`.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import attrs
from msgspec.structs import asdict

from hermes.errors import StoreFailed, StoreRefused
from hermes.messages import Imported
from hermes.sanitize import one_line, sanitize
from hermes.store.cli.opening import (
    CURRENT,
    alone,
    drive,
    existing,
    in_use,
    opened,
    opened_or_made,
    version,
)
from hermes.store.cli.output import Page, count, json_safe, print_json, progress, size
from hermes.store.cli.show import unknown
from hermes.store.conversations import routes
from hermes.store.import_hermes_agent.importer import Report, take_home
from hermes.store.import_hermes_agent.report import ImportNotes
from hermes.store.import_hermes_agent.source import open_home
from hermes.store.maintenance import cleanup, transfer
from hermes.store.sync_store import SessionStore

EXAMPLES = 3
_MAGIC = b"SQLite format 3\0"


def export(options: Namespace) -> int:
    """Sessions as JSON lines, to a file or to stdout."""
    if bool(options.sessions) == options.all:
        sys.stderr.write("Name the sessions to export, or say --all.\n")
        return 2
    with opened(existing(options)) as store:
        ids: list[str] = []
        if options.all:
            ids = store.snapshot(cleanup.session_ids)
        for name in options.sessions:
            found = store.snapshot(lambda tx, name=name: routes.meant(tx, name))
            if found is None:
                return unknown(name)
            ids += [found] if found not in ids else []
        if options.output == "-":
            _export(store, ids, sys.stdout.write)
            return 0 if ids else 1
        target = Path(options.output)
        with _whole_file(target) as file:
            _export(store, ids, file.write)
    written = target.stat().st_size
    if options.json:
        print_json({"sessions": len(ids), "file": str(target), "bytes": written})
    else:
        sessions = count(len(ids), "session")
        Page(sys.stdout).line(f"Exported {sessions} to {sanitize(str(target))} ({size(written)}).")
    return 0 if ids else 1


def _export(store: SessionStore, ids: list[str], write: Callable[[str], object]) -> None:
    with progress("exporting", len(ids)) as tell:
        for number, session_id in enumerate(ids, start=1):
            write(json_safe(store.export_session(session_id)) + "\n")
            tell(number, len(ids))


@contextmanager
def _whole_file(target: Path) -> Iterator[IO[str]]:
    """A new file for its owner alone, which appears when it is whole."""
    if target.exists():
        raise StoreRefused(f"{target} exists; name a file that does not")
    if not target.parent.is_dir():
        raise StoreRefused(f"the folder {target.parent} does not exist; create it first")
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with open(partial, "x", encoding="utf-8", opener=_private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def backup(options: Namespace) -> int:
    """A copy of the file as it is now."""
    began = time.monotonic()
    with opened(existing(options)) as store, progress("copying", 1) as tell:
        target = store.backup(options.target, progress=tell)
    facts = {
        "file": str(target),
        "bytes": target.stat().st_size,
        "seconds": round(time.monotonic() - began, 3),
    }
    if options.json:
        print_json(facts)
    else:
        Page(sys.stdout).line(f"Copied to {sanitize(str(target))} ({size(target.stat().st_size)}).")
    return 0


def check(options: Namespace) -> int:
    """What is wrong with the file. Its index is only looked at while no runtime needs to write."""
    path = existing(options)
    with opened(path) as store, progress("checking"):
        with_index = not in_use(path)
        problems = _problems(store, with_index=with_index)
    if options.json:
        print_json({"ok": not problems, "problems": problems, "index_checked": with_index})
    else:
        page = Page(sys.stdout)
        for problem in problems or ["No damage was found."]:
            page.line(one_line(problem))
        if not with_index:
            page.line("The search index was not checked: a runtime is using the file.")
    return 1 if problems else 0


def _problems(store: SessionStore, *, with_index: bool) -> list[str]:
    try:
        problems = store.integrity_check()
        index = store.check_search() if with_index else None
    except StoreFailed as error:
        return [str(error)]
    return problems if index is None else [*problems, index]


# Writing


def import_(options: Namespace) -> int:
    """Sessions of another file, or of a hermes-agent home."""
    if options.source == "-":
        return _import_lines(options, sys.stdin.buffer.read())
    source = Path(options.source).expanduser()
    if not source.exists():
        raise StoreRefused(f"{source} does not exist")
    if source.is_dir() or _begins(source, _MAGIC):
        return _import_home(options, source)
    return _import_lines(options, source.read_bytes())


def _begins(path: Path, beginning: bytes) -> bool:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe is read once
        return False
    with path.open("rb") as file:
        return file.read(len(beginning)) == beginning


def _import_lines(options: Namespace, content: bytes) -> int:
    lines = content.decode(errors="replace").splitlines()
    total = sum(not line.isspace() for line in lines)
    work = transfer.import_sessions(lines)
    with opened_or_made(options) as store, progress("importing", total) as tell:
        done = drive(store, work, lambda number: tell(number, None))
    if options.json:
        print_json(asdict(done))
    else:
        _tell_imported(done)
    return 0


def _tell_imported(done: Imported) -> None:
    page = Page(sys.stdout)
    page.line(f"Imported {count(done.sessions, 'session')}, {count(done.messages, 'message')}.")
    if done.skipped:
        page.line(f"Already here: {count(len(done.skipped), 'session')}.")
    if done.forks:
        names = ", ".join(done.forks[:EXAMPLES])
        page.line(f"Kept as forks: {one_line(names)}.")


def _import_home(options: Namespace, source: Path) -> int:
    with open_home(source, ImportNotes(time.time())) as home, opened_or_made(options) as store:
        total = len(home.plan.sessions) + len(home.routes) + 1
        with progress("importing", total) as tell:
            report = drive(store, take_home(home), lambda number: tell(number, total))
    if options.json:
        print_json(attrs.asdict(report))
    else:
        _tell_report(report)
    return 0


def _tell_report(report: Report) -> None:
    page = Page(sys.stdout)
    page.line(f"From {sanitize(report.home)} (hermes-agent, schema {report.schema_version}):")
    columns = ("", "#taken", "#already here", "#not taken")
    rows = [
        (name, f"{n.taken:,}", f"{n.already_here:,}", f"{n.not_taken:,}")
        for name, n in (
            ("sessions", report.sessions), ("messages", report.messages), ("routes", report.routes)
        )
    ]  # fmt: skip
    page.table(columns, rows)
    if report.notes:
        page.line()
        told: dict[str, list[str]] = {}
        number: dict[str, int] = {}
        for note in report.notes:
            told.setdefault(note.sentence, []).append(note.subject)
            number[note.sentence] = number.get(note.sentence, 0) + note.count
        page.table(
            ("#times", "remark", "such as"),
            [
                (f"{number[what]:,}", what, ", ".join(dict.fromkeys(subjects[:EXAMPLES])))
                for what, subjects in told.items()
            ],
        )


def prune(options: Namespace) -> int:
    """Delete sessions that ended long ago and that no key leads to."""
    work = cleanup.prune_sessions(options.older_than, options.platform, dry_run=options.dry_run)
    with opened(existing(options)) as store, progress("pruning") as tell:
        done = drive(store, work, lambda number: tell(number, None))
    if options.json:
        print_json(asdict(done))
    else:
        verb = "Would delete" if done.dry_run else "Deleted"
        sessions = count(len(done.session_ids), "session")
        Page(sys.stdout).line(f"{verb} {sessions} with {count(done.messages, 'message')}.")
    return 0


def vacuum(options: Namespace) -> int:
    """Give free space back to the disk."""
    path = existing(options)
    with alone(path), opened(path) as store, progress("vacuuming"):
        before = path.stat().st_size
        store.vacuum()
    after = path.stat().st_size
    if options.json:
        print_json({"bytes_before": before, "bytes_after": after})
    else:
        Page(sys.stdout).line(f"{size(before)} before, {size(after)} now.")
    return 0


def migrate(options: Namespace) -> int:
    """Bring the file to the current schema; a backup is kept beside it."""
    path = existing(options)
    with alone(path):
        found = version(path)
        due = found < CURRENT
        kept = path.with_name(f"{path.name}.schema{found}.backup") if due and found else None
        if due and not options.dry_run:
            with progress("migrating"):
                SessionStore(path).close()
    facts = {
        "from": found,
        "to": CURRENT,
        "dry_run": options.dry_run,
        "backup": None if kept is None else str(kept),
    }
    if options.json:
        print_json(facts)
    elif not due:
        Page(sys.stdout).line(f"Nothing to do: the schema is {found}, as this Hermes has it.")
    else:
        verb = "Would migrate" if options.dry_run else "Migrated"
        beside = "" if kept is None else f"; the backup is {sanitize(str(kept))}"
        Page(sys.stdout).line(f"{verb} from schema {found} to {CURRENT}{beside}.")
    return 0
