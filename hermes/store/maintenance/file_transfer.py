"""Attached files in exports: lines of about 1 MB, written and read without a whole file in memory.

The lines of a file precede the first session that names it. The first line describes the file; each
has some of its bytes, as Base64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Annotated

import attrs
import msgspec
from msgspec import Meta
from msgspec.structs import replace

from hermes.errors import BadImport, StoreError
from hermes.messages import Extra, Imported, StoredFile, file_ids
from hermes.store.attachments import rows as attachments
from hermes.store.files.contents import FileContents, StagedFile
from hermes.store.files.staging import FileWriter
from hermes.store.transaction import Transaction

FORMAT = "hermes-file-1"
LINE_BYTES = 3 * 2**18
"""Bytes of a file in one line, which has a third more characters."""
MAX_SIZE = 2**53
_Position = Annotated[int, Meta(ge=0, le=MAX_SIZE)]
_Pixels = Annotated[int, Meta(ge=1, le=2**31)]
_MediaType = Annotated[str, Meta(pattern=r"^[a-z0-9_.+-]{1,127}/[a-z0-9_.+-]{1,127}\Z")]
_OF_SESSION = (
    f"SELECT f.hash, {attachments.COLUMNS} FROM session_files u JOIN files f ON f.id = u.file_id "
    "WHERE u.session_no = ? ORDER BY f.id"
)


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of an export: bytes of a file from `offset` on; only the first has what follows."""

    format: str
    id: Annotated[str, Meta(pattern=rf"^{attachments.ID_FORM}\Z")]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    size: _Position | None = None
    media_type: _MediaType | None = None
    name: str | None = None
    width: _Pixels | None = None
    height: _Pixels | None = None
    offset: _Position
    data: bytes


_decode = msgspec.json.Decoder(ExportedFile).decode


def files_of_session(tx: Transaction, no: int) -> list[tuple[str, StoredFile]]:
    """Return the hashes and descriptions of the files that a session names."""
    return [(row[0], attachments.stored(row[1:])) for row in tx.all(_OF_SESSION, no)]


def named_files(messages: Iterable[Extra]) -> list[str]:
    """Return the ids of the stored files that messages name, each once."""
    ids = file_ids(part for message in messages for part in message.parts or ())
    return [file_id for file_id in ids if attachments.is_file_id(file_id)]


def file_lines(contents: FileContents, digest: str, file: StoredFile) -> Iterator[str]:
    """Yield the lines of a file. Raises `StoreError` if its content is missing or damaged."""
    hashed = hashlib.sha256()
    for offset in range(0, file.size, LINE_BYTES):
        try:
            data = contents.read(digest, offset, LINE_BYTES)
        except OSError as error:
            text = f"the file {file.id} cannot be exported: {error.strerror or error}"
            raise StoreError(text) from error
        hashed.update(data)
        if offset + LINE_BYTES >= file.size and hashed.hexdigest() != digest:
            raise StoreError(f"the file {file.id} cannot be exported: its content is damaged")
        line = ExportedFile(format=FORMAT, id=file.id, offset=offset, data=data)
        if offset == 0:
            line = replace(
                line,
                hash=digest,
                size=file.size,
                media_type=file.media_type,
                name=file.name,
                width=file.width,
                height=file.height,
            )
        yield msgspec.json.encode(line).decode()


@attrs.frozen
class ImportedFile:
    """A file of an import, complete on disk but without a row."""

    file: StoredFile
    staged: StagedFile
    line: int
    """The number of its first line."""


@attrs.frozen
class _Begun:
    """A file whose lines are being read."""

    file: StoredFile
    hash: str
    writer: FileWriter
    line: int


class ImportedFiles:
    """The files of an import, by id. They are staged while lines are read; `close` discards them.

    All methods that read lines raise `BadImport`.
    """

    def __init__(self, contents: FileContents) -> None:
        self._contents = contents
        self._held = ExitStack()
        self._files: dict[str, ImportedFile] = {}
        self._begun: _Begun | None = None
        self._next = 0

    def __len__(self) -> int:
        return len(self._files)

    def close(self) -> None:
        """Discard the files that were not stored."""
        if self._begun is not None:
            self._begun.writer.discard()
        for each in self._files.values():
            each.staged.discard()
        self._held.close()

    def read(self, text: str, number: int) -> None:
        """Stage the bytes of a line."""
        line = _decode(text)
        if line.offset == 0:
            self._begin(line, number)
        begun = self._begun
        if begun is None or (begun.file.id, self._next) != (line.id, line.offset):
            raise BadImport(f"line {number} does not follow the line before it in its file")
        if not line.data:
            raise BadImport(f"line {number} has no bytes of its file")
        self._next += len(line.data)
        if self._next > begun.file.size:
            raise BadImport(f"line {number} has bytes after the end of its file")
        begun.writer.write(line.data)
        if self._next == begun.file.size:
            self._finish(begun, number)

    def _begin(self, line: ExportedFile, number: int) -> None:
        self.require_complete(number)
        if line.hash is None or not line.size or line.media_type is None:
            raise BadImport(f"line {number} begins a file, but has no hash, size or media_type")
        known = self._files.get(line.id)
        if known is not None and known.staged.hash != line.hash:
            raise BadImport(f"line {number} has another content for the file of line {known.line}")
        if not self._files:
            self._held.enter_context(self._contents.hold())
        file = StoredFile(
            id=line.id,
            media_type=line.media_type,
            size=line.size,
            name=attachments.clean_name(line.name),
            width=line.width,
            height=line.height,
        )
        writer = FileWriter(self._contents, MAX_SIZE, line.size, held=True)  # they may be many
        self._begun, self._next = _Begun(file, line.hash, writer, number), 0

    def _finish(self, begun: _Begun, number: int) -> None:
        """Keep a complete file; one that was in the export before is discarded."""
        staged = begun.writer.finish()
        self._begun = None
        if staged.hash != begun.hash or begun.file.id in self._files:
            staged.discard()
        if staged.hash != begun.hash:
            raise BadImport(f"line {number} ends a file whose content does not have its hash")
        media = staged.media  # by the bytes, not by what the line says
        file = replace(
            begun.file, media_type=media.media_type, width=media.width, height=media.height
        )
        self._files.setdefault(file.id, ImportedFile(file, staged, begun.line))

    def require_complete(self, number: int | None = None) -> None:
        """Refuse a line, or the end of the export, in the middle of a file."""
        if self._begun is not None:
            where = "the export ends" if number is None else f"line {number} comes"
            raise BadImport(f"{where} before the file of line {self._begun.line} is complete")

    def require(self, messages: Iterable[Extra], number: int) -> None:
        """Refuse a session that names a file whose content did not come before it."""
        for file_id in named_files(messages):
            if file_id not in self._files:
                raise BadImport(f"line {number} names {file_id}, which is not in the export")

    def check(self, tx: Transaction) -> Imported:
        """Refuse files whose ids are in use for another content."""
        for file_id, each in self._files.items():
            if attachments.hash_of(tx, file_id) not in {None, each.staged.hash}:
                raise BadImport(f"line {each.line} has a file whose id has another content here")
        return Imported(0, 0)

    def store(
        self, tx: Transaction, no: int, session_key: str | None, messages: Iterable[Extra]
    ) -> None:
        """Store the files that the messages of a session name, for its key."""
        ids = named_files(messages)
        for file_id in ids:
            each = self._files[file_id]
            tx.db.blobs.place(tx, each.staged)
            if attachments.hash_of(tx, file_id) is None:
                attachments.insert_file(tx, each.file, each.staged.hash, session_key)
        attachments.record_session_files(tx, no, ids)
