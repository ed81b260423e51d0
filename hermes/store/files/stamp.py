"""A stamp in the database by which its owner notices that the content of the file was replaced.

`cp other.db state.db` keeps the file and its locks, and SQLite would go on with the pages that it
has in memory and in the WAL file. The stamp is a random number that the owner writes before each
checkpoint, so the file has the latest one after each complete checkpoint, and neither another
database nor an older backup has it. It is stored as a row of SQLite's table `sqlite_sequence`,
which is always one page and so can be found in the file without SQLite.

If another process reads the database when the owner opens it, the first checkpoint is incomplete.
Until a later one is complete, the file may also have the page as it was before the first stamp.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import apsw

from hermes.errors import StoreFailed

_NAME = "hermes stamp"
_ROOT_PAGE = "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_sequence'"
_HEADER_SIZE, _PAGES = 100, slice(28, 32)
_LOG_HEADER, _FRAME_HEADER = 32, 24  # bytes in the WAL file
_TRIES, _PAUSE = 50, 0.01


class Stamp:
    """The stamps that the file may have now: that of the last complete checkpoint, or a later one.

    `descriptor` and `log`, the WAL file, are open for as long as the stamp is used. `db` is the
    connection whose thread calls `check`.
    """

    def __init__(self, path: Path, descriptor: int, log: int, db: apsw.Connection) -> None:
        self.db = db
        self._path = path
        self._descriptor = descriptor
        self._log = log
        self._page_size = int(db.pragma("page_size"))
        self._size = os.fstat(descriptor).st_size
        self._root = self._find_root()
        self._valid: list[bytes] = []
        self._before = b""
        self.settled: bool = False
        """Whether a complete checkpoint has moved a stamp into the file."""
        self.pending: bool = False
        """Whether a stamp was committed that may not be in the file yet."""

    def write(self, db: apsw.Connection) -> None:
        """Write a new stamp in the transaction that has begun on the connection."""
        number = secrets.randbits(62) | 1 << 61  # always stored as eight bytes
        self._root = self._find_root()
        self._before = self._read(self._root)
        # As in the record: the text and the number follow each other.
        self._valid.append(_NAME.encode() + number.to_bytes(8, "big"))
        db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (number, _NAME))
        if db.changes() == 0:
            db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (_NAME, number))

    def settle(self) -> None:
        """Expect the pending stamp, if there is one; call it after a complete checkpoint."""
        self._size = os.fstat(self._descriptor).st_size
        if self.pending:
            del self._valid[:-1]
            self.settled = True
            self.pending = False

    def check(self) -> None:
        """Raise `StoreFailed` if the file was cut, or has no valid stamp though it should."""
        for _ in range(_TRIES):  # another process may just be writing the pages
            if self._is_whole() and self._is_there():
                return
            time.sleep(_PAUSE)
        raise StoreFailed(f"{self._path} was overwritten while in use")

    def _is_whole(self) -> bool:
        """Return whether the file has not shrunk, or has all the pages that its header counts.

        An incomplete checkpoint may write the header, but not the last pages. Only a complete one
        makes the file shorter.
        """
        size = os.fstat(self._descriptor).st_size
        if size < self._size:
            header = os.pread(self._descriptor, _HEADER_SIZE, 0)
            pages = int.from_bytes(header[_PAGES], "big")
            if len(header) < _HEADER_SIZE or size < pages * self._page_size:
                return False
        self._size = size
        return True

    def _is_there(self) -> bool:
        # VACUUM moves the page, and a checkpoint after it writes it to its new place.
        return self._is_at(self._root) or self._is_at(self._find_root()) or self._is_older()

    def _is_at(self, page: int) -> bool:
        data = self._read(page)
        return any(stamp in data for stamp in self._valid)

    def _is_older(self) -> bool:
        """Return whether the file may not have the stamp yet, because a checkpoint is incomplete.

        It then has the page from before the first stamp, or a version that is in the WAL file:
        after VACUUM, the old place of the stamp may be overwritten before it is at its new one.
        """
        if not self.settled and not self.pending:
            return True
        data = self._read(self._root)
        return (not self.settled and data == self._before) or self._is_in_log(self._root, data)

    def _is_in_log(self, page: int, data: bytes) -> bool:
        """Return whether the WAL file has this version of the page."""
        salt = os.pread(self._log, 8, 16)
        size = _FRAME_HEADER + self._page_size
        for start in range(_LOG_HEADER, os.fstat(self._log).st_size, size):
            header = os.pread(self._log, _FRAME_HEADER, start)
            if header[8:16] != salt:  # the rest is from before the file was used again
                return False
            is_version = int.from_bytes(header[:4], "big") == page
            if is_version and os.pread(self._log, self._page_size, start + _FRAME_HEADER) == data:
                return True
        return False

    def _read(self, page: int) -> bytes:
        return os.pread(self._descriptor, self._page_size, (page - 1) * self._page_size)

    def _find_root(self) -> int:
        row = self.db.execute(_ROOT_PAGE).fetchone()
        assert row is not None
        return int(row[0])
