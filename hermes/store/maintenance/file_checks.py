"""Check attached files: their content is there, and what names them is recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from hermes.messages import file_ids
from hermes.store.attachments import rows as attachments
from hermes.store.files.contents import CHUNK, FileContents
from hermes.store.transaction import Transaction

SUBJECT = "attached files"
MAX_PROBLEMS = 20
_MENTIONED = "instr({}, '\"file_') > 0"
"""Whether JSON may name a file."""


class Blob(NamedTuple):
    """The content of one or more files."""

    hash: str
    size: int
    file_id: str | None
    """One of the files that have it."""


def check(tx: Transaction) -> list[str]:
    """Return the problems of attached files: lost content, and references that are wrong.

    The content itself is not read; `damaged` does that.
    """
    return [*_lost(tx, blobs(tx)), *_shortened([*_rows(tx), *_references(tx)])]


def blobs(tx: Transaction) -> list[Blob]:
    """Return the content that must be there."""
    sql = "SELECT hash, size, (SELECT min(id) FROM files f WHERE f.hash = b.hash) FROM blobs b"
    return [Blob(*row) for row in tx.all(sql)]


def _lost(tx: Transaction, known: list[Blob]) -> list[str]:
    """Return the problems of content that is missing or has another size."""
    absence = tx.db.blobs.absence() if known else None
    if absence is not None:
        return [f"{absence}, and so the content of {len(known):,} files"]
    return _shortened([text for blob in known if (text := _problem(tx, blob)) is not None])


def _problem(tx: Transaction, blob: Blob) -> str | None:
    where = tx.db.blobs.where(blob.hash)
    try:
        size = tx.db.blobs.size(tx, blob.hash)
    except FileNotFoundError:
        return f"the content of {blob.file_id} is missing: {where}"
    except OSError as error:
        return f"the content of {blob.file_id} cannot be read: {where}: {error.strerror}"
    if size != blob.size:
        return f"the content of {blob.file_id} has {size:,} bytes instead of {blob.size:,}: {where}"
    return None


def damaged(contents: FileContents, known: Iterable[Blob]) -> list[str]:
    """Read the content of all files, and return the problems: some has another hash.

    Content that is missing is not a problem here; `check` reports it.
    """
    return _shortened(
        [
            f"the content of {blob.file_id} is damaged: {contents.where(blob.hash)}"
            for blob in known
            if hash_of(contents, blob) not in {None, blob.hash}
        ]
    )


def hash_of(contents: FileContents, blob: Blob) -> str | None:
    """Return the hash of content, or None if it cannot be read."""
    hashed, offset = hashlib.sha256(), 0
    try:
        while data := contents.read(blob.hash, offset, CHUNK):
            hashed.update(data)
            offset += len(data)
    except OSError:
        return None
    return hashed.hexdigest()


def _shortened(problems: list[str]) -> list[str]:
    """Return the first problems, and how many there are besides."""
    if len(problems) <= MAX_PROBLEMS:
        return problems
    more = len(problems) - MAX_PROBLEMS
    return [*problems[:MAX_PROBLEMS], f"there are {more:,} more problems of attached files"]


def _rows(tx: Transaction) -> Iterator[str]:
    sql = (
        "SELECT f.id, b.hash IS NULL FROM files f LEFT JOIN blobs b ON b.hash = f.hash "
        "WHERE b.hash IS NULL OR b.size <> f.size"
    )
    for file_id, lost in tx.all(sql):
        yield f"{file_id} has {'no content' if lost else 'another size than its content'}"


def _references(tx: Transaction) -> Iterator[str]:
    """Yield the problems of references: each row that names a file must have one."""
    for who, named, recorded in (_of_sessions(tx), _of_messages(tx), _of_replies(tx)):
        for number, file_id in sorted(named - recorded):
            yield f"{who} {number} names {file_id}, which is not recorded"
        for number, file_id in sorted(recorded - named):
            yield f"{who} {number} does not name {file_id}, but that is recorded"


class _Found(NamedTuple):
    """Pairs of a row and a file: which of them the rows name, and which are recorded."""

    who: str
    named: set[tuple[int | str, str]]
    recorded: set[tuple[int | str, str]]


def _of_sessions(tx: Transaction) -> _Found:
    named = {
        (row[0], file_id)
        for row in tx.all(
            "SELECT s.id, m.extra FROM all_messages m JOIN sessions s ON s.no = m.id >> 32 "
            f"WHERE {_MENTIONED.format('m.extra')}"
        )
        for file_id in _ids(row[1], "parts")
    }
    sql = "SELECT s.id, u.file_id FROM session_files u JOIN sessions s ON s.no = u.session_no"
    return _Found("session", named, {(row[0], row[1]) for row in tx.all(sql)})


def _of_messages(tx: Transaction) -> _Found:
    """Return those of messages; one whose turn runs may have files that only the turn names."""
    named = {
        (row[0], file_id)
        for row in tx.all(
            "SELECT id, body FROM inbox WHERE state IN ('open', 'parked') "
            f"AND {_MENTIONED.format('body')}"
        )
        for file_id in _ids(row[1], "parts")
    }
    sql = (
        "SELECT u.inbox_id, u.file_id, i.state FROM inbox_files u JOIN inbox i ON i.id = u.inbox_id"
    )
    recorded = {(row[0], row[1]) for row in tx.all(sql) if row[2] == "done" or row[:2] in named}
    return _Found("message", named, recorded)


def _of_replies(tx: Transaction) -> _Found:
    """Return those of replies; one may name a file that its conversation could not read."""
    sql = "SELECT u.outbox_id, u.file_id FROM outbox_files u"
    recorded = {(row[0], row[1]) for row in tx.all(sql)}
    named = {
        (row[0], file_id)
        for row in tx.all(
            "SELECT id, body, session_key FROM outbox WHERE state <> 'sent' "
            f"AND {_MENTIONED.format('body')}"
        )
        for file_id in _ids(row[1], "files")
        if (row[0], file_id) in recorded or _belongs(tx, file_id, row[2])
    }
    return _Found("reply", named, recorded)


def _belongs(tx: Transaction, file_id: str, session_key: str) -> bool:
    sql = "SELECT 1 FROM files WHERE id = ? AND session_key = ?"
    return tx.one(sql, file_id, session_key) is not None


def _ids(text: str, field: str) -> list[str]:
    """Return the ids of stored files in the parts that stored JSON has in a field."""
    try:
        parts = msgspec.json.decode(text)[field]
        found = file_ids(part for part in parts if isinstance(part, dict))
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError):  # it names no file
        return []
    return [file_id for file_id in found if attachments.is_file_id(file_id)]
