"""The admin commands that export, import, back up, check and clean; each returns an exit code.

All except `vacuum` and `migrate` may run while a runtime owns the file.
"""

from __future__ import annotations

import itertools
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import attrs
from msgspec.structs import asdict

from hermes.errors import BadImport, StoreRefused
from hermes.messages import Imported
from hermes.sanitize import one_line, sanitize
from hermes.store.choosing import schema_versions
from hermes.store.cli.opening import (
    CURRENT_VERSION,
    exclusive,
    existing_path,
    new_blobs,
    open_current,
    open_or_create,
    prepare_folder,
    run_chunked,
    schema_version,
)
from hermes.store.cli.output import (
    Printer,
    escape_json,
    format_count,
    format_size,
    new_file,
    print_json,
    progress_bar,
)
from hermes.store.cli.show import report_unknown_session, resolve
from hermes.store.conversations import search
from hermes.store.import_hermes_agent.importer import Report, import_home
from hermes.store.import_hermes_agent.report import ImportNotes, Note
from hermes.store.import_hermes_agent.source import open_home
from hermes.store.maintenance import cleanup, file_transfer, imports, transfer
from hermes.store.maintenance.transfer import MAX_LINE
from hermes.store.sqlite.blobs import BlobFolder
from hermes.store.sync_store import SessionStore

MAX_EXAMPLES = 3
_SQLITE_MAGIC = b"SQLite format 3\0"


def export(options: Namespace) -> int:
    """Export sessions as JSON Lines, to a file or to stdout."""
    if bool(options.sessions) == options.all:
        sys.stderr.write("Name the sessions to export, or use --all.\n")
        return 2
    with open_current(existing_path(options)) as store:
        ids: list[str] = []
        if options.all:
            ids = store.snapshot(cleanup.session_ids)
        for name in options.sessions:
            resolved = resolve(store, name, options.key)
            if resolved is None:
                return report_unknown_session(name)
            ids += [resolved] if resolved not in ids else []
        if options.output == "-":
            _export(store, ids, sys.stdout.write)
            return 0 if ids else 1
        target = Path(options.output)
        with new_file(target) as file:
            _export(store, ids, lambda text: file.write(text.encode()))
    written = target.stat().st_size
    if options.json:
        print_json({"sessions": len(ids), "file": str(target), "bytes": written})
    else:
        sessions, size = format_count(len(ids), "session"), format_size(written)
        Printer(sys.stdout).line(f"Exported {sessions} to {sanitize(str(target))} ({size}).")
    return 0 if ids else 1


def _export(store: SessionStore, ids: list[str], write: Callable[[str], object]) -> None:
    done = 0
    with progress_bar("exporting", len(ids)) as update:
        for line in store.export_lines(*ids):
            write(escape_json(line) + "\n")
            done += not line.startswith(f'{{"format":"{file_transfer.FORMAT}"')
            update(done, len(ids))


def backup(options: Namespace) -> int:
    """Copy the database as it is now, and its attached files."""
    started = time.monotonic()
    with open_current(existing_path(options)) as store, progress_bar("copying", 1) as update:
        target = store.backup(options.target, progress=update)
    written = target.stat().st_size
    files = [path.stat().st_size for path in BlobFolder(target).all_blobs()]
    if options.json:
        seconds = round(time.monotonic() - started, 3)
        copied = {"files": len(files), "file_bytes": sum(files)}
        print_json({"file": str(target), "bytes": written, "seconds": seconds, **copied})
    else:
        printer = Printer(sys.stdout)
        printer.line(f"Copied to {sanitize(str(target))} ({format_size(written)}).")
        if files:
            folder = sanitize(str(BlobFolder(target).path))
            count = format_count(len(files), "attached file")
            printer.line(f"Copied {count} to {folder} ({format_size(sum(files))}).")
    return 0


def import_(options: Namespace) -> int:
    """Import an exported file, or a hermes-agent home."""
    if options.source == "-":
        return _import_lines(options, sys.stdin.buffer)
    source = Path(options.source).expanduser()
    if not source.exists():
        raise StoreRefused(f"{source} does not exist; name an exported file or a hermes-agent home")
    if source.is_dir():
        return _import_home(options, source)
    if not source.is_file():  # a device may never end, nor a pipe whose writer does not
        raise StoreRefused(f"{source} is not a regular file; use - to read from a pipe")
    if _is_sqlite(source):
        return _import_home(options, source)
    with source.open("rb") as file:
        return _import_lines(options, file)


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC


def _import_lines(options: Namespace, file: IO[bytes]) -> int:
    prepare_folder(options)
    with new_blobs(options) as folder, transfer.Parsed(folder) as parsed:
        work = imports.import_parsed(parsed.parse(_read_lines(file)))
        total = len(parsed.sessions)
        with open_or_create(options) as store, progress_bar("importing", total) as update:
            imported = run_chunked(store, work, lambda number: update(number, None))
    if options.json:
        print_json(asdict(imported))
    else:
        _print_imported(imported)
    return 0


def _read_lines(file: IO[bytes]) -> Iterator[str]:
    """Yield the lines of an exported file. Raises `BadImport` if one is too long or not UTF-8.

    They are read one by one, because a pipe may never end, nor a line of it.
    """
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if not line:
            return
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            raise BadImport(f"line {number} is longer than {MAX_LINE} bytes")
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise BadImport(f"line {number} is not UTF-8, from byte {error.start + 1} on") from None


def _print_imported(imported: Imported) -> None:
    printer = Printer(sys.stdout)
    messages = format_count(imported.messages, "message")
    printer.line(f"Imported {format_count(imported.sessions, 'session')}, {messages}.")
    if imported.skipped:
        printer.line(f"Already present: {format_count(len(imported.skipped), 'session')}.")
    if imported.forks:
        ids = ", ".join(imported.forks[:MAX_EXAMPLES])
        printer.line(f"Imported as forks: {one_line(ids)}.")
    _print_sweeps(printer, imported.finalized_orphans, imported.pruned_ghosts)


def _print_sweeps(printer: Printer, orphans: Sequence[str], ghosts: Sequence[str]) -> None:
    """Print what the clean-up after an import changed."""
    for ids, done in (
        (orphans, "Ended, because nothing was said since their compression"),
        (ghosts, "Deleted, because they were empty, untitled and ended"),
    ):
        if ids:
            examples = ", ".join(ids[:MAX_EXAMPLES]) + (" …" if len(ids) > MAX_EXAMPLES else "")
            sessions = format_count(len(ids), "session")
            printer.line(f"{done}: {sessions} ({one_line(examples)}).")


def _import_home(options: Namespace, source: Path) -> int:
    with open_home(source, ImportNotes(time.time())) as home, open_or_create(options) as store:
        total = len(home.plan.sessions) + len(home.routes) + 1
        with progress_bar("importing", total) as update:
            report = run_chunked(store, import_home(home), lambda number: update(number, total))
    if options.json:
        print_json(attrs.asdict(report))
    else:
        _print_report(report)
    return 0


def _print_report(report: Report) -> None:
    printer = Printer(sys.stdout)
    source = f"{sanitize(report.home)} (hermes-agent, schema {report.schema_version})"
    printer.line(f"Imported from {source}:")
    counts = {"sessions": report.sessions, "messages": report.messages, "routes": report.routes}
    printer.table(
        ("", "#imported", "#already present", "#skipped"),
        [
            (name, f"{n.imported:,}", f"{n.already_present:,}", f"{n.skipped:,}")
            for name, n in counts.items()
        ],
    )
    _print_sweeps(printer, report.finalized_orphans, report.pruned_ghosts)
    if report.notes:
        printer.line()
        printer.table(("#count", "note", "examples"), _note_rows(report.notes))


def _note_rows(notes: Sequence[Note]) -> list[tuple[str, str, str]]:
    """Return one row for each kind of note: how many, what, and some examples."""
    subjects: dict[str, list[str]] = {}
    totals: dict[str, int] = {}
    for note in notes:
        subjects.setdefault(note.sentence, []).append(note.subject)
        totals[note.sentence] = totals.get(note.sentence, 0) + note.count
    return [
        (f"{totals[sentence]:,}", sentence, ", ".join(dict.fromkeys(names[:MAX_EXAMPLES])))
        for sentence, names in subjects.items()
    ]


def archive(options: Namespace) -> int:
    """Hide a conversation from lists, or list it again."""
    with open_current(existing_path(options)) as store:
        session_id = resolve(store, options.session, options.key)
        if session_id is None:
            return report_unknown_session(options.session)
        (store.unarchive_session if options.undo else store.archive_session)(session_id)
    if options.json:
        print_json({"session_id": session_id, "archived": not options.undo})
    else:
        verb = "Listed again" if options.undo else "Archived"
        Printer(sys.stdout).line(f"{verb}: {one_line(session_id)}.")
    return 0


def vacuum(options: Namespace) -> int:
    """Return free space to the file system."""
    path = existing_path(options)
    if isinstance(path, str):
        with open_current(path) as store:
            store.vacuum()  # says what to do instead
        return 0
    with exclusive(path), open_current(path) as store, progress_bar("vacuuming"):
        before = path.stat().st_size
        store.vacuum()
    after = path.stat().st_size
    if options.json:
        print_json({"bytes_before": before, "bytes_after": after})
    else:
        sizes = f"{format_size(before)} before, {format_size(after)} after"
        Printer(sys.stdout).line(f"Size of the file: {sizes}.")
    return 0


def migrate(options: Namespace) -> int:
    """Migrate the file to the current schema; a backup is kept beside it."""
    path = existing_path(options)
    if isinstance(path, str):
        return _migrate_server(path, options)
    with exclusive(path):
        version = schema_version(path)
        is_old = version < CURRENT_VERSION
        backup = (
            path.with_name(f"{path.name}.schema{version}.backup") if is_old and version else None
        )
        if is_old and not options.dry_run:
            _migrate(path)
    if options.json:
        print_json(
            {
                "from": version,
                "to": CURRENT_VERSION,
                "dry_run": options.dry_run,
                "backup": None if backup is None else str(backup),
            }
        )
    elif not is_old:
        Printer(sys.stdout).line(f"Nothing to do: the schema is up to date (version {version}).")
    else:
        verb = "Would migrate" if options.dry_run else "Migrated"
        suffix = "" if backup is None else f"; the backup is {sanitize(str(backup))}"
        Printer(sys.stdout).line(f"{verb} from schema {version} to {CURRENT_VERSION}{suffix}.")
    return 0


def _migrate_server(url: str, options: Namespace) -> int:
    """Migrate a database on a server; a runtime does it at its start as well."""
    version, current = schema_versions(url)
    if version < current and not options.dry_run:
        SessionStore(url).close()
    found = {"from": version, "to": current, "dry_run": options.dry_run, "backup": None}
    if options.json:
        print_json(found)
    elif version == current:
        Printer(sys.stdout).line(f"Nothing to do: the schema is up to date (version {version}).")
    else:
        verb = "Would migrate" if options.dry_run else "Migrated"
        Printer(sys.stdout).line(f"{verb} from schema {version} to {current}.")
    return 0


def _migrate(path: Path) -> None:
    with progress_bar("migrating"):
        store = SessionStore(path)
    with store, progress_bar("indexing word forms", 1) as update:
        total = store.snapshot(search.forms_left)
        done = 0
        while step := store.transact(search.forms_step):
            done += step
            update(done, total)
