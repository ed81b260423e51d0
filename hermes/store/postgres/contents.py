"""Contents of attached files as rows: chunks of 1 MB, which every node reads and writes.

An upload is a row of `file_contents` with its chunks, each committed when it is written. The
transaction that stores the row of a file lets `blobs` name the upload. Chunks are read and written
on connections of their own, so that a large file delays no verb.

A process holds an advisory lock while it has uploads. A sweep deletes old uploads that `blobs` does
not name, if it gets that lock: their process has ended or has abandoned them.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final, TypeAlias

import psycopg
from psycopg.types.string import BytesBinaryDumper

from hermes.errors import HermesError, StoreError
from hermes.store.files.contents import (
    CHUNK,
    SPARED,
    Queries,
    StagedFile,
    Swept,
    require_range,
)

MAX_CONNECTIONS: Final = 2
"""How many chunks a process reads or writes at the same time."""
STEP: Final = 20
"""How many contents a step of a sweep looks at."""
Session: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_BEGIN = (
    "INSERT INTO file_contents (id, holder, touched_at) "
    "VALUES ($1, $2, extract(epoch FROM clock_timestamp()))"
)
# The same chunk may be sent again after a lost connection.
_WRITE = (
    "INSERT INTO file_chunks (content_id, n, data) VALUES ($1, $2, $3) "
    "ON CONFLICT (content_id, n) DO NOTHING"
)
_DISCARD = (
    "DELETE FROM file_contents c WHERE c.id = $1 "
    "AND NOT EXISTS (SELECT 1 FROM blobs b WHERE b.content_id = c.id)"
)
_STAGED = "SELECT data FROM file_chunks WHERE content_id = $1 AND n = $2"
_READ = (
    "SELECT substring(c.data FROM $3::int FOR $4::int) FROM blobs b "
    "LEFT JOIN file_chunks c ON c.content_id = b.content_id AND c.n = $2 WHERE b.hash = $1"
)
_BYTES = (
    "(SELECT coalesce(sum(octet_length(k.data)), 0) FROM file_chunks k WHERE k.content_id = {})"
)
_PLACE = (
    "UPDATE file_contents SET hash = ?, touched_at = ? "
    f"WHERE id = ? AND {_BYTES.format('file_contents.id')} = ?"
)
_ADD_ROW = (
    "INSERT INTO blobs (hash, size, created_at, content_id) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (hash) DO UPDATE SET content_id = excluded.content_id"
)
_UNNAMED = "NOT EXISTS (SELECT 1 FROM blobs b WHERE b.content_id = c.id)"
_OLD_UNNAMED = (
    f"SELECT c.id, c.holder, {_BYTES.format('c.id')} FROM file_contents c "
    f"WHERE c.id > ? AND c.touched_at < ? AND {_UNNAMED} ORDER BY c.id LIMIT {STEP}"
)
_OLD = (
    f"SELECT coalesce(b.hash, c.id), {_BYTES.format('c.id')} FROM file_contents c "
    "LEFT JOIN blobs b ON b.content_id = c.id WHERE c.touched_at < ?"
)


class RowContents:
    """The contents of attached files in a database; see `FileContents`.

    `connect` opens a connection in autocommit mode whose statements have `$1` for a value.
    `translate` returns an error of the driver as one of the store's.
    """

    def __init__(
        self, connect: Callable[[], Session], translate: Callable[[Exception], Exception]
    ) -> None:
        self._connect_driver = connect
        self._translate = translate
        self._limit = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._holder = secrets.randbits(62)
        self._keeper: Session | None = None
        """The connection that has the advisory lock."""
        self._holds = 0
        self._closed = False

    def close(self) -> None:
        """Close the connections. Those that are in use are closed after that."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            keeper, self._keeper = self._keeper, None
        for session in (*idle, *([keeper] if keeper else [])):
            session.close()

    def _connect(self) -> Session:
        session = self._connect_driver()
        session.adapters.register_dumper(bytes, BytesBinaryDumper)  # half the size of the text
        return session

    def execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows. It is repeated once if the connection is lost."""
        with self._limit:
            try:
                return self._execute(sql, values, repeat=True)
            except psycopg.Error as error:
                raise self._translate(error) from error

    def _execute(self, sql: str, values: tuple[object, ...], *, repeat: bool) -> list[Any]:
        with self._lock:
            session = self._idle.pop() if self._idle else None
        fresh = session is None
        session = session or self._connect()
        try:
            cursor = session.execute(sql, values, binary=True)
            rows = cursor.fetchall() if cursor.description else []
        except psycopg.OperationalError:
            session.close()
            if fresh or not repeat:
                raise
            return self._execute(sql, values, repeat=False)
        except BaseException:
            session.close()
            raise
        self._put_back(session)
        return rows

    def _put_back(self, session: Session) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(session)
                return
        session.close()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the advisory lock of this process during the block."""
        with self._lock:
            self._holds += 1
        try:
            self._keep()
            yield
        finally:
            with self._lock:
                self._holds -= 1
                unused = None if self._holds else self._keeper
                self._keeper = self._keeper if self._holds else None
            if unused is not None:
                with suppress(psycopg.Error):
                    unused.execute("SELECT pg_advisory_unlock($1)", (self._holder,))
                unused.close()

    def _keep(self) -> None:
        """Take the lock, unless this process has it."""
        with self._lock:
            if self._keeper is not None and not self._keeper.closed:
                return
            try:
                self._keeper = self._connect()
                self._keeper.execute("SELECT pg_advisory_lock($1)", (self._holder,))
            except psycopg.Error as error:
                raise self._translate(error) from error

    def begin(self) -> RowUpload:
        """Begin an upload."""
        upload = RowUpload(self, secrets.token_hex(16))
        self.execute(_BEGIN, upload.id, self._holder)
        return upload

    def place(self, tx: Queries, staged: StagedFile) -> None:
        """Store the row of a content, and let it name this upload.

        Raises `StoreError` if the upload is not complete: the server has crashed meanwhile, or a
        sweep has deleted it because its process seemed to have ended.
        """
        new = staged.upload.id
        if tx.run(_PLACE, staged.hash, tx.now, new, staged.size) != 1:
            raise StoreError("the attachment was not stored completely; send it again")
        row = tx.one("SELECT content_id FROM blobs WHERE hash = ? FOR UPDATE", staged.hash)
        tx.run(_ADD_ROW, staged.hash, staged.size, tx.now, new)
        if row is not None and row[0] != new:
            tx.run("DELETE FROM file_contents WHERE id = ?", row[0])

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Return bytes of a content, as far as it has them."""
        require_range(offset, size)
        pieces, end = [], offset + size
        while offset < end:
            number, start = divmod(offset, CHUNK)
            count = min(end - offset, CHUNK - start)
            rows = self.execute(_READ, digest, number, start + 1, count)
            if not rows:
                raise FileNotFoundError(digest)
            if not rows[0][0]:
                break
            pieces.append(rows[0][0])
            offset += len(rows[0][0])
        return b"".join(pieces)

    def remove(self, tx: Queries, digest: str) -> None:
        """Remove a content whose row an earlier transaction has deleted."""
        tx.run(f"DELETE FROM file_contents AS c WHERE c.hash = ? AND {_UNNAMED}", digest)

    def sweep(self, tx: Queries, after: str) -> Swept:
        """Delete the next contents and uploads that are old and have no row."""
        found = tx.all(_OLD_UNNAMED, after, tx.now - SPARED)
        blobs = size = 0
        for content_id, holder, bytes_ in found:
            row = tx.one("SELECT pg_try_advisory_xact_lock(?)", holder)
            if row is not None and row[0]:
                removed = tx.run("DELETE FROM file_contents WHERE id = ?", content_id)
                blobs, size = blobs + removed, size + removed * int(bytes_)
        return Swept(found[-1][0] if len(found) == STEP else "", blobs, size)

    def old(self, tx: Queries) -> Iterator[tuple[str, int]]:
        """Yield the hashes or ids of contents that are old, with their sizes."""
        for name, size in tx.all(_OLD, tx.now - SPARED):
            yield name, int(size)

    def absence(self) -> str | None:
        """Return None: there is no folder that could be missing."""
        return None

    def size(self, tx: Queries, digest: str) -> int:
        """Return how many bytes a content has. Raises `FileNotFoundError` if it is gone."""
        row = tx.one(f"SELECT {_BYTES.format('b.content_id')} FROM blobs b WHERE hash = ?", digest)
        if row is None or not row[0]:
            raise FileNotFoundError(digest)
        return int(row[0])

    def where(self, digest: str) -> str:
        """Return where a content is."""
        return f"blob {digest}"


class RowUpload:
    """An upload that is being written in chunks; see `Upload`."""

    def __init__(self, contents: RowContents, id_: str) -> None:
        self.id: str = id_
        self._contents = contents
        self._chunks = self._size = 0
        self._rest = bytearray()

    def write(self, data: bytes | bytearray) -> None:
        """Append bytes; complete chunks are stored."""
        self._size += len(data)
        rest = memoryview(data)
        while rest:
            taken = rest[: CHUNK - len(self._rest)]
            self._rest += taken
            rest = rest[len(taken) :]
            if len(self._rest) == CHUNK:
                self._store()

    def _store(self) -> None:
        self._contents.execute(_WRITE, self.id, self._chunks, bytes(self._rest))
        self._chunks += 1
        self._rest.clear()

    def finish(self) -> BinaryIO:
        """Store the last chunk, and return the upload as a file."""
        small = None if self._chunks else bytes(self._rest)
        if self._rest:
            self._store()
        if small is not None:
            return io.BytesIO(small)
        return io.BufferedReader(_UploadFile(self._read, self._size), CHUNK)

    def _read(self, number: int) -> bytes:
        rows = self._contents.execute(_STAGED, self.id, number)
        return bytes(rows[0][0]) if rows else b""

    def discard(self) -> None:
        """Delete the upload, unless it was placed. A sweep does it if this fails."""
        self._rest.clear()
        with suppress(HermesError):
            self._contents.execute(_DISCARD, self.id)


class _UploadFile(io.RawIOBase):
    """An upload of this size as a file; `read` returns a chunk by its number."""

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read, self._size = read, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = offset + starts[whence]
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        number, start = divmod(self._position, CHUNK)
        data = self._read(number)[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
