"""Files that are uploaded for themselves, before a message names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes.messages import FileRecord, StoredFile
from hermes.store.attachments import rows
from hermes.store.transaction import Transaction

_RECORD = f"SELECT {rows.COLUMNS}, f.created_at, f.purpose, f.hash FROM files f"
# Who can read a file, as in `rows.get_file`.
_KEYS = (
    "SELECT session_key FROM files WHERE id = ?1 AND session_key IS NOT NULL "
    "UNION SELECT s.session_key FROM session_files u JOIN sessions s ON s.no = u.session_no "
    "WHERE u.file_id = ?1 AND s.session_key IS NOT NULL "
    "UNION SELECT h.session_key FROM session_files u JOIN shared_sessions h "
    "ON h.session_no = u.session_no WHERE u.file_id = ?1 "
    "UNION SELECT i.session_key FROM inbox_files u JOIN inbox i ON i.id = u.inbox_id "
    "WHERE u.file_id = ?1 "
    "UNION SELECT o.session_key FROM outbox_files u JOIN outbox o ON o.id = u.outbox_id "
    "WHERE u.file_id = ?1"
)


def keep_file(tx: Transaction, file_id: str, *, session_key: str, purpose: str) -> bool:
    """Keep a file until it is deleted, although no message names it.

    Returns whether it was uploaded for this key.
    """
    sql = "UPDATE files SET purpose = ? WHERE id = ? AND session_key = ?"
    return tx.run(sql, purpose, file_id, session_key) == 1


def find_file(tx: Transaction, file_id: str) -> FileRecord | None:
    """Return a file with the keys that can read it; None if there is none with this id."""
    row = tx.one(f"{_RECORD} WHERE f.id = ?", file_id)
    if row is None:
        return None
    return _record(row, sorted(key for (key,) in tx.all(_KEYS, file_id)))


def list_files(
    tx: Transaction,
    session_key: str,
    *,
    purpose: str | None = None,
    after: str | None = None,
    limit: int = 100,
    oldest_first: bool = False,
) -> list[FileRecord]:
    """Return the files that were uploaded for themselves, newest first.

    `after` is the id of the last file of the page before.
    """
    where, values = ["f.session_key = ?", "f.purpose IS NOT NULL"], [session_key]
    if purpose is not None:
        where.append("f.purpose = ?")
        values.append(purpose)
    if after is not None:
        sign = ">" if oldest_first else "<"
        where.append(
            f"(f.created_at, f.id) {sign} "
            "(SELECT a.created_at, a.id FROM files a WHERE a.id = ? AND a.session_key = ?)"
        )
        values += [after, session_key]
    order = "ASC" if oldest_first else "DESC"
    sql = (
        f"{_RECORD} WHERE {' AND '.join(where)} ORDER BY f.created_at {order}, f.id {order} LIMIT ?"
    )
    return [_record(row) for row in tx.all(sql, *values, limit)]


def copy_file(
    tx: Transaction, file_id: str, *, session_key: str, to: str, principal: str | None = None
) -> StoredFile:
    """Return a file of the key `to` with the content of a file that `session_key` can read.

    The content is not copied. If `to` has an equal file, that one is returned. Raises `UnknownFile`
    if there is none, and `AttachmentRefused` if a limit is reached.
    """
    file, digest = rows.get_file(tx, file_id, session_key=session_key)
    same = tx.one(
        f"SELECT {rows.COLUMNS} FROM files f WHERE f.session_key = ? AND f.hash = ? "
        "AND coalesce(f.name, '') = coalesce(?, '') AND f.purpose IS NULL ORDER BY f.id LIMIT 1",
        to, digest, file.name,
    )  # fmt: skip
    if same is not None:  # it must outlive the next sweep, as a new one does
        found = rows.stored(same)
        tx.run("UPDATE files SET steady_at = ? WHERE id = ?", tx.steady, found.id)
        return found
    return rows.add_copy(tx, file, digest, session_key=to, principal=principal)


def _record(row: Sequence[Any], keys: Sequence[str] = ()) -> FileRecord:
    *facts, created_at, purpose, digest = row
    file = rows.stored(tuple(facts))
    return FileRecord(
        file=file, created_at=created_at, purpose=purpose, hash=digest, keys=tuple(keys)
    )
