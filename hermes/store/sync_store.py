"""`SessionStore`: the synchronous store, for scripts, tools and tests."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from hermes.errors import ActorStopped
from hermes.messages import Attachment, Imported, StoredFile
from hermes.store.attachments import rows as attachments, sweep
from hermes.store.choosing import engine_of
from hermes.store.conversations.search import has_all_forms, unindexed
from hermes.store.engine import Connection, Progress
from hermes.store.files import blob_reading, staging
from hermes.store.group_commit import commit_one, run_outside
from hermes.store.maintenance import imports, transfer
from hermes.store.transaction import Clock, Work
from hermes.store.verb_kinds import Chunked
from hermes.store.verbs import StoreVerbs

R = TypeVar("R")
S = TypeVar("S")


class SessionStore(StoreVerbs):
    """A Hermes database; a runtime may own the file at the same time.

    Each verb is one transaction, on disk when it returns. The store can be used by several threads,
    one call at a time. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        vfs: str | None = None,
    ) -> None:
        """Open the path of an SQLite file, or a URL of PostgreSQL (`postgresql://…`).

        The database is created if it does not exist, and migrated if its schema is older. Raises
        `StoreRefused` if it cannot be used as a store; it is left as it is then. `vfs` is the name
        of SQLite's interface to the file system.
        """
        engine = engine_of(path, vfs=vfs)
        self.label: str = engine.label
        self.path: Path | None = engine.path
        self._clock = clock or Clock()
        self._lock = threading.RLock()
        self._closing = ExitStack()
        self._db: Connection = self._closing.enter_context(engine.connect(self._clock))
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._open:
                self._open = False
                self._closing.close()

    def transact(self, work: Work[R]) -> R:
        """Run the work in one transaction and return its result."""
        with self._lock:
            self._require_open()
            try:
                value = commit_one(self._db, self._clock, work)
            except BaseException:
                self._db.roll_back()
                raise
            if self._db.checkpoint_due:
                self._db.checkpoint()
            return value

    def transact_unflushed(self, work: Work[R]) -> R:
        """The same as `transact`."""
        return self.transact(work)

    def transact_deferred(self, work: Work[R]) -> R:
        """The same as `transact`."""
        return self.transact(work)

    def transact_alone(self, work: Work[R]) -> R:
        """The same as `transact`: here every transaction has one request."""
        return self.transact(work)

    def snapshot(self, work: Work[R]) -> R:
        """Run work that only reads, in one read transaction."""
        with self._lock:
            self._require_open()
            try:
                return self._db.run_read(self._clock, work)
            except BaseException:
                self._db.roll_back()
                raise

    def browse(self, work: Work[R]) -> R:
        """The same as `snapshot`: there is one connection."""
        return self.snapshot(work)

    def run_search(self, work: Work[R]) -> R:
        """Bring the search index up to date, then run work that reads it.

        The first search of a database of an older version also indexes the word forms.
        """
        if self.snapshot(unindexed):
            self.index_pending()
        if not self.snapshot(has_all_forms):
            self.index_word_forms()
        return self.snapshot(work)

    def run_chunked(self, chunks: Generator[Work[S], S, R]) -> R:
        """Run each piece of a chunked operation in its own transaction."""
        steps = Chunked(chunks)
        while (work := steps.next()) is not None:
            with steps.counted():
                steps.done(self.transact(work))
        return steps.result()

    def put_file(
        self, attachment: Attachment, *, session_key: str, principal: str | None = None
    ) -> StoredFile:
        """Store a file for a conversation; it is on disk when this returns.

        It is deleted after an hour unless a message of the conversation names it. Raises
        `AttachmentRefused`.
        """
        self._require_open()
        staged = staging.stage(self._db.blobs, attachment, self._db.limits.message_bytes)
        try:
            return self.transact(
                lambda tx: attachments.add_file(
                    tx,
                    staged,
                    session_key=session_key,
                    name=attachment.file_name,
                    principal=principal,
                )
            )
        finally:
            staged.discard()

    def discard_file(self, file_id: str, *, session_key: str) -> bool:
        """Delete a file that nothing names, with its content. Returns whether there was one."""
        discard = functools.partial(
            attachments.discard_file, file_id=file_id, session_key=session_key
        )
        digest = self.transact(discard)
        if digest is not None:
            self.transact(functools.partial(sweep.remove_blob, digest=digest))
        return digest is not None

    def read_file(
        self, file_id: str, *, session_key: str, offset: int = 0, size: int | None = None
    ) -> bytes:
        """Return bytes of a file of this conversation; without a size, all after the offset.

        Raises `UnknownFile`, `StoreError` if its content cannot be read, and `ValueError` for a
        negative offset or size.
        """
        file, digest = self.get_file(file_id, session_key=session_key)
        count = file.size if size is None else size
        with blob_reading.reading(file_id):
            data = self._db.blobs.read(digest, offset, count)
        return blob_reading.require_data(file, offset, count, data)

    def export_lines(self, *session_ids: str) -> Iterator[str]:
        """Yield the lines of an export, with attached files, for `import_sessions`.

        Files are read in pieces. Raises `UnknownSession`, and `StoreError` if the content of a file
        is missing or damaged.
        """
        seen: set[str] = set()
        for session_id in session_ids:
            exported = self.snapshot(functools.partial(transfer.export, session_id=session_id))
            yield from transfer.lines_of(self._db.blobs, exported, seen)

    def import_sessions(self, lines: Iterable[str]) -> Imported:
        """Import exported sessions, parents first, one transaction per session.

        All lines are checked before the first session is written; `BadImport` names the first line
        that is invalid. Attached files are staged meanwhile, and discarded if a line is invalid.
        Sessions that exist are skipped, references to unknown parents are dropped, and a second
        compression child of one parent is imported as a `fork`.
        """
        self._require_open()
        with transfer.Parsed(self._db.blobs) as parsed:
            return self.run_chunked(imports.import_parsed(parsed.parse(lines)))

    def sweep_files(self) -> int:
        """Delete files that nothing names and that are over an hour old. Returns how many."""
        return self.run_chunked(sweep.sweep_files(self._db.blobs)).blobs

    def vacuum(self) -> None:
        """Return free space to the file system."""
        self._run(lambda db: db.vacuum())

    def backup(self, target: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
        """Copy the database while it is in use, and return the path of the copy.

        Attached files are copied to a folder next to it, `target.blobs`, by hard links if possible.
        The copy appears when it is complete. `progress` is called with the number of pages that are
        copied and the number of all. Raises `StoreRefused` if the target exists.
        """
        return self._run(lambda db: db.backup_to(Path(target), progress))

    def _run(self, function: Callable[[Connection], R]) -> R:
        with self._lock:
            self._require_open()
            return run_outside(self._db, function)

    def _require_open(self) -> None:
        if not self._open:
            raise ActorStopped(f"{self.label} is closed")
