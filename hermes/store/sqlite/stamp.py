"""How the owner of a database notices that the content of its file was replaced.

`cp other.db state.db` keeps the file and its locks, and SQLite would go on with the pages that it
has in memory and in the WAL file. In WAL mode, only checkpoints write to the file. So a page of it
is as it was last seen, or it is a version from the part of the WAL file that a checkpoint has begun
to move. Two pages are compared: the first, which has the header, and that of SQLite's table
`sqlite_sequence`, which almost every commit changes; the file has neither as another database or a
copy made a moment ago has it.

If another process has moved the whole WAL file and begun it again, the versions in between are
gone. Then the page must have a stamp, a random number that the owner writes before each checkpoint.
It is a row of `sqlite_sequence`, which is always one page and so can be read without SQLite.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from pathlib import Path

import apsw

from hermes.errors import StoreFailed

_NAME = "hermes stamp"
_ROOT_PAGE = "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_sequence'"
_HEADER_SIZE, _PAGES = 100, slice(28, 32)
_LOG_HEADER, _FRAME_HEADER = 32, 24  # bytes in the WAL file
_SALT, _ATTEMPTED = 32, 128  # in the index of the WAL file: two positions
_TRIES, _PAUSE = 50, 0.01


class Stamp:
    """What the file must have now, by the pages that were last seen and the stamps in them.

    `database`, `log` (the WAL file) and `index` (its index in shared memory) are descriptors, open
    for as long as this is used. `db` is the connection whose thread calls `check`.
    """

    def __init__(
        self, path: Path, database: int, log: int, index: int, db: apsw.Connection
    ) -> None:
        self.db = db
        self._path = path
        self._descriptor = database
        self._log = log
        self._index = index
        self._page_size = int(db.pragma("page_size"))
        self._size = os.fstat(database).st_size
        self._valid: list[bytes] = []
        self._look()
        self.settled: bool = False
        """Whether a complete checkpoint has moved a stamp into the file."""
        self.pending: bool = False
        """Whether a stamp was committed that may not be in the file yet."""
        self.lost: str | None = None
        """Why the WAL file does not belong to the database any more."""

    def _look(self) -> None:
        """Note what the file has now."""
        self._root = self._find_root()
        self._seen_salt = self._salt()
        self._seen = {page: self._read(page) for page in (1, self._root)}

    def write(self, db: apsw.Connection) -> None:
        """Write a new stamp in the transaction that has begun on the connection."""
        number = secrets.randbits(62) | 1 << 61  # always stored as eight bytes
        # As in the record: the text and the number follow each other.
        self._valid.append(_NAME.encode() + number.to_bytes(8, "big"))
        db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (number, _NAME))
        if db.changes() == 0:
            db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (_NAME, number))

    def settle(self) -> None:
        """Expect the pending stamp, if there is one; call it after a complete checkpoint."""
        self._size = os.fstat(self._descriptor).st_size
        self._look()
        if self.pending:
            del self._valid[:-1]
            self.settled = True
            self.pending = False

    def check(self) -> None:
        """Raise `StoreFailed` if the file was cut, or has content that it cannot have."""
        whole = True
        for _ in range(_TRIES):  # another process may just be writing the pages
            whole = self._is_whole()
            if whole and self._is_ours():
                self._look()
                return
            time.sleep(_PAUSE)
        error = StoreFailed(f"{self._path} was overwritten while in use")
        self.lose_log(str(error) if not self._is_ours() else None)
        raise error

    def before_close(self) -> None:
        """Call this before the connection is closed, which moves the WAL file into the database."""
        try:
            self.check()
        except (StoreFailed, apsw.Error, OSError):
            self.lose_log(self.lost)

    def lose_log(self, why: str | None) -> None:
        """Keep SQLite from moving the WAL file into the database when the connection is closed.

        If there is a reason why it does not belong to the database, it must be moved away, too.
        """
        self.lost = self.lost or why
        self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

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

    def _is_ours(self) -> bool:
        changed = {
            page: data for page, seen in self._seen.items() if (data := self._read(page)) != seen
        }
        if not changed or (self._salt() != self._seen_salt and self._has_stamp()):
            return True
        return all(self._is_moved(page, data) for page, data in changed.items())

    def _has_stamp(self) -> bool:
        """Return whether the file has a stamp, if one was written."""
        # VACUUM moves the page, and a checkpoint after it writes it to its new place.
        pages = [self._read(page) for page in (self._root, self._find_root())]
        return not self._valid or any(stamp in data for stamp in self._valid for data in pages)

    def _is_moved(self, page: int, data: bytes) -> bool:
        """Return whether a checkpoint may have moved this version of the page to the file."""
        salt = self._salt()
        size = _FRAME_HEADER + self._page_size
        (frames,) = struct.unpack("=I", os.pread(self._index, 4, _ATTEMPTED))
        for number in range(frames):
            start = _LOG_HEADER + number * size
            header = os.pread(self._log, _FRAME_HEADER, start)
            if header[8:16] != salt:  # the rest is from before the file was used again
                return False
            is_version = int.from_bytes(header[:4], "big") == page
            if is_version and os.pread(self._log, self._page_size, start + _FRAME_HEADER) == data:
                return True
        return False

    def _salt(self) -> bytes:
        """Return what changes when the WAL file is used from its beginning again."""
        return os.pread(self._index, 8, _SALT)

    def _read(self, page: int) -> bytes:
        return os.pread(self._descriptor, self._page_size, (page - 1) * self._page_size)

    def _find_root(self) -> int:
        row = self.db.execute(_ROOT_PAGE).fetchone()
        assert row is not None
        return int(row[0])
