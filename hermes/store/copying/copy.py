"""Copy a store to another database: page by page, verified, then opened for use.

The target is an incomplete copy until the end, which nothing else can open. A copy that was
interrupted goes on after the last row that the target has. At the end both sides are read again
and compared, row by row. If the source has changed meanwhile, the copy starts again, once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, TypeAlias

import attrs
import msgspec

from hermes.errors import AttachmentRefused, StoreError, StoreRefused
from hermes.store.copying import snapshots
from hermes.store.copying.sides import CopyMark, Side, read_mark, write_mark
from hermes.store.copying.tables import (
    BLOBS,
    FIRST_PAGE,
    TABLES,
    Checksum,
    Table,
    next_limit,
)
from hermes.store.engine import Connection
from hermes.store.files.contents import CHUNK, FileContents
from hermes.store.files.staging import FileWriter
from hermes.store.group_commit import commit_one
from hermes.store.maintenance import file_checks
from hermes.store.transaction import Clock, Row, Transaction, Work

Report: TypeAlias = Callable[[str, int], None]
"""Called with a table and the number of its rows that were copied by now."""
ATTEMPTS: Final = 3
_MAX_SIZE: Final = 2**53


class TableCopy(msgspec.Struct, frozen=True):
    """What was copied of a table; the checksums are those of all its rows."""

    name: str
    rows: int
    source_checksum: str
    target_checksum: str


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied."""

    source: str
    target: str
    snapshot: bool
    tables: tuple[TableCopy, ...] = ()
    files: int = 0
    file_bytes: int = 0
    missing_files: int = 0
    """Attached files whose content is missing or damaged in the source, and so in the copy."""
    replaced_texts: int = 0
    """Texts in which U+0000 was replaced: PostgreSQL cannot store it."""
    done_before: bool = False
    """Whether an earlier call had completed the copy: then nothing was done."""


class _ChangedError(Exception):
    """The source has changed since it was copied."""


class _GoneError(Exception):
    """The content of a file was deleted during the copy."""


def move(source: Side, target: Side, clock: Clock, report: Report) -> CopyReport:
    """Copy a store that no runtime uses, and mark the source as moved.

    Raises `StoreInUse` if a runtime uses the source, `StoreRefused` if it was moved before or the
    target is something else, and `StoreError` if the source does not stop changing.
    """
    _require_two(source, target)
    with source.claim(), source.source(clock) as db:
        mark = db.run_read(clock, read_mark)
        moved = mark is not None and mark.moved_at is not None
        if mark is None or (mark.source, mark.target) != (source.label, target.label):
            if mark is not None and moved:
                raise StoreRefused(f"{source.label} was moved to {mark.target}; copy that one")
            mark = _new_mark(source, target, clock)
            commit_one(db, clock, partial(write_mark, mark=mark))
        elif moved and target.copy_id(clock) == mark.id:  # the last process was killed at its end
            return CopyReport(
                source=source.label, target=target.label, snapshot=False, done_before=True
            )
        copy = _Copy(source, target, clock, report, db, mark)
        with target.claim(), copy.opened():
            return copy.move()


def _require_two(source: Side, target: Side) -> None:
    if source.label == target.label:
        raise StoreRefused("the source and the target are the same database; name another target")


def _new_mark(source: Side, target: Side, clock: Clock, *, snapshot: bool = False) -> CopyMark:
    return CopyMark(
        secrets.token_hex(16), source.label, target.label, clock.wall(), snapshot=snapshot
    )


def snapshot(source: Side, target: Side, clock: Clock, report: Report) -> CopyReport:
    """Copy a store that may be in use, as it is at one moment; see `snapshots`.

    An interrupted one starts again from the beginning. Raises `StoreRefused` if the target is
    something else.
    """
    _require_two(source, target)
    mark = _new_mark(source, target, clock, snapshot=True)
    with source.source(clock) as db, target.claim():
        copy = _Copy(source, target, clock, report, db, mark)
        with copy.opened():
            for _ in range(ATTEMPTS):
                with suppress(_GoneError):
                    return db.run_read(clock, copy.snapshot)
    raise StoreError("attached files were deleted during the copy; try again")


@attrs.define
class _Copy:
    """One copy, while it is made."""

    source: Side
    target: Side
    clock: Clock
    report: Report
    source_db: Connection
    mark: CopyMark
    _target_db: Connection | None = None
    _missing: set[str] = attrs.field(factory=set)
    """The hashes of contents that the source does not have."""
    _replaced: int = 0

    def opened(self) -> ExitStack:
        """Open the target until the returned stack is closed."""
        stack = ExitStack()
        self._target_db = stack.enter_context(self.target.target(self.clock, self.mark))
        return stack

    @property
    def db(self) -> Connection:
        """The connection to the target."""
        assert self._target_db is not None
        return self._target_db

    # The two kinds of copies

    def move(self) -> CopyReport:
        """Copy what the target does not have yet, verify it, and mark the source as moved."""
        for attempt in range(2):
            for table in TABLES:
                if table is BLOBS:
                    self._copy_files(self._source_pages(table))
                else:
                    self._copy_rows(table, self._source_pages(table))
            self._complete()
            try:
                tables = commit_one(self.source_db, self.clock, self._hand_over)
            except _ChangedError:
                if attempt:
                    break
                self._clear()
            else:
                return self._open(tables)
        raise StoreError(
            f"{self.source.label} changes while it is copied; end what writes to it and try again"
        )

    def snapshot(self, tx: Transaction) -> CopyReport:
        """Copy what one read transaction of the source sees, from the beginning."""
        self.source.reads_long(tx)
        self._clear()
        for table in TABLES:
            if table is BLOBS:
                self._copy_files(table.pages(tx))
            else:
                self._copy_rows(table, table.pages(tx))
        self._set_ids(self.source.last_ids(tx))
        self._build_search()
        return self._open(self._compare(tx))

    def _write(self, work: Work[object]) -> None:
        """Run work in a transaction of the target."""
        commit_one(self.db, self.clock, work)
        if self.db.checkpoint_due:
            self.db.checkpoint()

    def _source_pages(self, table: Table) -> Iterator[list[Row]]:
        """Yield pages of the source after what the target has, each in its own transaction."""
        after, limit = self.db.run_read(self.clock, table.last), FIRST_PAGE
        while page := self.source_db.run_read(
            self.clock, partial(table.page, after=after, limit=limit)
        ):
            yield page
            after, limit = table.key_of(page[-1]), next_limit(page, limit)

    # Rows and files

    def _copy_rows(self, table: Table, pages: Iterator[list[Row]]) -> None:
        done = 0
        for page in pages:
            rows = self._clean(table, page)
            self._write(partial(table.insert, rows=rows))
            done += len(rows)
            self.report(table.name, done)

    def _clean(self, table: Table, rows: list[Row]) -> list[Row]:
        if self.target.keeps_nul:
            return rows
        cleaned, replaced = table.without_nul(rows)
        self._replaced += replaced
        return cleaned

    def _copy_files(self, pages: Iterator[list[Row]]) -> None:
        done = 0
        for page in pages:
            for digest, size, created_at in page:
                self._copy_file(digest, size, created_at)
                done += 1
                self.report(BLOBS.name, done)

    def _copy_file(self, digest: str, size: int, created_at: float) -> None:
        """Copy a content and its row; of one that is missing in the source, only the row."""
        writer = FileWriter(self.db.blobs, _MAX_SIZE, size)
        try:
            for chunk in _chunks(self.source_db.blobs, digest):
                writer.write(chunk)
            staged = writer.finish()
        except (FileNotFoundError, AttachmentRefused):  # it is gone, or has another size
            writer.discard()
            self._copy_without_content(digest, size, created_at)
            return
        except OSError as error:
            writer.discard()
            raise StoreError(f"{error.filename} cannot be read: {error.strerror}") from error
        except BaseException:
            writer.discard()
            raise
        try:
            if staged.hash != digest:
                self._copy_without_content(digest, size, created_at)
                return

            def place(tx: Transaction) -> None:
                tx.db.blobs.place(tx, staged)
                tx.run("UPDATE blobs SET created_at = ? WHERE hash = ?", created_at, digest)

            self._write(place)
        finally:
            staged.discard()

    def _copy_without_content(self, digest: str, size: int, created_at: float) -> None:
        if self.mark.snapshot:
            sql = "SELECT 1 FROM blobs WHERE hash = ?"
            with self.source.source(self.clock) as now:
                if now.run_read(self.clock, lambda tx: tx.one(sql, digest)) is None:
                    raise _GoneError
        self._missing.add(digest)
        row = (digest, size, created_at)
        self._write(partial(BLOBS.insert, rows=[row]))

    def _clear(self) -> None:
        """Delete everything in the target, to start again."""

        def clear(tx: Transaction) -> None:
            for table in reversed(TABLES):
                where = f" WHERE {table.where}" if table.where else ""
                tx.run(f"DELETE FROM {table.name}{where}")

        self._write(clear)
        self._missing.clear()
        self._replaced = 0

    # The end

    def _complete(self) -> None:
        self._set_ids(self.source_db.run_read(self.clock, self.source.last_ids))
        self._build_search()

    def _build_search(self) -> None:
        self._write(lambda tx: tx.search.rebuild(tx))
        self._compare_files()

    def _set_ids(self, ids: dict[str, int]) -> None:
        self._write(lambda tx: self.target.set_last_ids(tx, ids))

    def _hand_over(self, tx: Transaction) -> tuple[TableCopy, ...]:
        """Compare both sides while nobody can write to the source, and mark it as moved."""
        self.source.stop_writers(tx)
        tables = self._compare(tx)
        moved_at = self.mark.moved_at or tx.now
        write_mark(tx, msgspec.structs.replace(self.mark, moved_at=moved_at))
        return tables

    def _compare(self, tx: Transaction) -> tuple[TableCopy, ...]:
        """Return the checksums of both sides. Raises `_ChangedError` if they differ."""
        return self.db.run_read(self.clock, partial(self._compare_tables, tx))

    def _compare_tables(self, tx: Transaction, copied: Transaction) -> tuple[TableCopy, ...]:
        found = []
        for table in TABLES:
            ours, theirs = Checksum(), Checksum()
            for page in table.pages(tx):
                ours.add(page if self.target.keeps_nul else table.without_nul(page)[0])
            for page in table.pages(copied):
                theirs.add(page)
            if (ours.rows, ours.digest) != (theirs.rows, theirs.digest):
                raise _ChangedError
            found.append(TableCopy(table.name, ours.rows, ours.digest, theirs.digest))
        return tuple(found)

    def _compare_files(self) -> None:
        """Read all contents of the target. Raises `StoreError` if one is not what it must be."""
        contents = self.db.blobs
        for blob in self._blobs():
            if blob.hash not in self._missing and file_checks.hash_of(contents, blob) != blob.hash:
                if self._has_source(blob):
                    raise StoreError(f"the content of {blob.file_id} was not copied; try again")
                self._missing.add(blob.hash)

    def _has_source(self, blob: file_checks.Blob) -> bool:
        return file_checks.hash_of(self.source_db.blobs, blob) == blob.hash

    def _blobs(self) -> list[file_checks.Blob]:
        return self.db.run_read(self.clock, file_checks.blobs)

    def _open(self, tables: tuple[TableCopy, ...]) -> CopyReport:
        """Let others use the copy."""

        def finish(tx: Transaction) -> None:
            tx.run("UPDATE files SET steady_at = ?", tx.steady)  # each is spared from now on
            self.target.open_copy(tx)  # with triggers
            if self.mark.snapshot:
                snapshots.detach(tx)

        copied = [blob for blob in self._blobs() if blob.hash not in self._missing]
        self._write(finish)
        return CopyReport(
            source=self.source.label,
            target=self.target.label,
            snapshot=self.mark.snapshot,
            tables=tables,
            files=len(copied),
            file_bytes=sum(blob.size for blob in copied),
            missing_files=len(self._missing),
            replaced_texts=self._replaced,
        )


def _chunks(contents: FileContents, digest: str) -> Iterator[bytes]:
    offset = 0
    while data := contents.read(digest, offset, CHUNK):
        yield data
        offset += len(data)
