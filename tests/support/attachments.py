"""Attached files in tests: what is on disk and in the tables, and how both must agree."""

from __future__ import annotations

import hashlib
import struct
import zlib

from hermes.config import is_database_url
from hermes.messages import Attachment
from hermes.store.files.contents import SPARED
from tests.support.engines import Sql

HOUR = SPARED + 1
"""Seconds after which a sweep deletes what nothing names."""


def blob_names(path):
    """The names of the blobs next to a database or in it, as a set."""
    return {name for name, folder in _files(path) if folder != "incoming"}


def staged_names(path):
    """The names of the files that are staged next to a database or in it."""
    return {name for name, folder in _files(path) if folder == "incoming"}


def _files(path):
    if is_database_url(path):
        with Sql(path) as sql:
            rows = sql("SELECT id, hash FROM file_contents")
        return [(hash_ or number, "blob" if hash_ else "incoming") for number, hash_ in rows]
    root = path.with_name(f"{path.name}.blobs")
    return [(file.name, file.parent.name) for file in root.glob("*/*")]


def _read_blob(path, hash_):
    """Return the content of a blob, or None if there is none."""
    if is_database_url(path):
        with Sql(path) as sql:
            rows = sql(
                "SELECT k.data FROM blobs b JOIN file_chunks k ON k.content_id = b.content_id "
                "WHERE b.hash = ? ORDER BY k.n",
                hash_,
            )
        return b"".join(row[0] for row in rows) if rows else None
    blob = path.with_name(f"{path.name}.blobs") / hash_[:2] / hash_
    return blob.read_bytes() if blob.exists() else None


def lose_contents(path):
    """Delete the contents of all files, but not their rows."""
    if is_database_url(path):
        with Sql(path) as sql:
            sql("DELETE FROM file_chunks")
        return
    for name, folder in _files(path):
        path.with_name(f"{path.name}.blobs").joinpath(folder, name).unlink()


def digest(data):
    return hashlib.sha256(data).hexdigest()


def referenced(sql):
    """The hashes of the files that a session, an open message or an unsent reply names."""
    rows = sql(
        "SELECT DISTINCT hash FROM files WHERE id IN (SELECT file_id FROM session_files "
        "UNION SELECT file_id FROM inbox_files UNION SELECT file_id FROM outbox_files)"
    )
    return {row[0] for row in rows}


def rows_without_blob(path, sql):
    """Yield the rows whose content is not on disk, or has another size or hash."""
    known = dict(sql("SELECT hash, size FROM blobs"))
    for file_id, hash_, size in sql("SELECT id, hash, size FROM files"):
        if known.get(hash_) != size:
            yield f"{file_id} has {size} bytes, its blob {known.get(hash_)}"
    for hash_, size in known.items():
        data = _read_blob(path, hash_)
        if data is None:
            yield f"there is no blob {hash_}"
        elif len(data) != size or digest(data) != hash_:
            yield f"the blob {hash_} has another content"


async def put(store, data=b"hello", *, key="k", **options):
    """Store a file of a conversation."""
    name = options.pop("name", "a.txt")
    return await store.put_file(Attachment(data=data, name=name), session_key=key, **options)


async def content(store, file_id, *, key="k"):
    """Return the bytes of a file, from any kind of store."""
    try:
        reader = await store.open_file(file_id, session_key=key)
    except AttributeError:  # the synchronous store
        return await store.read_file(file_id, session_key=key)
    return await reader.read()


def png(width=2, height=3):
    """Return a PNG image of this size; only its header counts."""

    def chunk(kind, data):
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b"")
