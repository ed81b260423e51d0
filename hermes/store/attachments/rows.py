"""Attached files: their rows, and which session, message or reply names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec import convert
from msgspec.structs import replace

from hermes.errors import AttachmentRefused, AttachmentTooLarge, UnknownFile
from hermes.messages import Inbound, JsonObject, Message, StoredFile, file_id_of, file_ids
from hermes.sanitize import one_line, scrub
from hermes.store.files.contents import StagedFile, new_file_id
from hermes.store.transaction import Transaction
from hermes.transcript.attachments import check_part
from hermes.transcript.validate import check_depth

MAX_NAME = 200
"""Bytes of a name; file systems allow 255."""
MAX_SUFFIX = 20
_FORBIDDEN = re.compile(r'[<>:"|?*]')
# What Windows takes for a device, with any extension.
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(\.|$)", re.IGNORECASE)
COLUMNS = "f.id, f.media_type, f.size, f.name, f.width, f.height"
# ?1 is the key, ?2 the file. A conversation reads a file that was uploaded for it, or that one of
# its sessions, open messages or unsent replies names.
_READABLE = """
FROM files f WHERE f.id = ?2 AND (
  f.session_key = ?1
  OR EXISTS (SELECT 1 FROM session_files u JOIN sessions s ON s.no = u.session_no
    WHERE u.file_id = f.id AND (s.session_key = ?1 OR EXISTS (
      SELECT 1 FROM shared_sessions h WHERE h.session_no = s.no AND h.session_key = ?1)))
  OR EXISTS (SELECT 1 FROM inbox_files u JOIN inbox i ON i.id = u.inbox_id
    WHERE u.file_id = f.id AND i.session_key = ?1)
  OR EXISTS (SELECT 1 FROM outbox_files u JOIN outbox o ON o.id = u.outbox_id
    WHERE u.file_id = f.id AND o.session_key = ?1)
)
"""
UNUSED = (
    "NOT EXISTS (SELECT 1 FROM session_files u WHERE u.file_id = f.id) "
    "AND NOT EXISTS (SELECT 1 FROM inbox_files u WHERE u.file_id = f.id) "
    "AND NOT EXISTS (SELECT 1 FROM outbox_files u WHERE u.file_id = f.id)"
)
FREE = "NOT EXISTS (SELECT 1 FROM files f WHERE f.hash = b.hash)"
_USE_IN_SESSION = (
    "INSERT INTO session_files (session_no, file_id) "
    "SELECT ?, f.id FROM files f WHERE f.id = ? ON CONFLICT (session_no, file_id) DO NOTHING"
)
# The conversations of a session: its own, those that it is shared with, and those that write to it.
_KEYS = (
    "SELECT session_key FROM sessions WHERE id = ?1 AND session_key IS NOT NULL "
    "UNION SELECT h.session_key FROM shared_sessions h JOIN sessions s ON s.no = h.session_no "
    "WHERE s.id = ?1 UNION SELECT session_key FROM routes WHERE session_id = ?1"
)
_HASH = "SELECT hash FROM files WHERE id = ?"
ID_FORM: Final = "file_[0-9a-f]{32}"
_ID = re.compile(ID_FORM)
GONE: Final = "[a file that is not available]"
"""What replaces a part whose file the conversation cannot read."""


def add_file(
    tx: Transaction,
    staged: StagedFile,
    *,
    session_key: str,
    name: str | None = None,
    principal: str | None = None,
    turn_id: int | None = None,
) -> StoredFile:
    """Store the row of a staged file, and move its content to its place.

    A file that a turn makes is named by the message of the turn, so that it is kept while the turn
    runs. Raises `AttachmentRefused` if a limit is reached.
    """
    _check_limits(tx, staged, session_key, principal)
    media = staged.media
    file = StoredFile(
        id=staged.id,
        media_type=media.media_type,
        size=staged.size,
        name=clean_name(name),
        width=media.width,
        height=media.height,
    )
    tx.db.blobs.place(tx, staged)
    insert_file(tx, file, staged.hash, session_key, principal)
    if turn_id is not None:
        tx.run(
            "INSERT INTO inbox_files (inbox_id, file_id) "
            "SELECT id, ? FROM inbox WHERE id = ? AND session_key = ? AND state = 'open'",
            file.id,
            turn_id,
            session_key,
        )
    return file


def add_copy(
    tx: Transaction, file: StoredFile, digest: str, *, session_key: str, principal: str | None
) -> StoredFile:
    """Store another file with the content of this one, for another conversation.

    Raises `AttachmentTooLarge` if a limit is reached.
    """
    _check_space(tx, file.size, session_key, principal)
    copy = replace(file, id=new_file_id())
    insert_file(tx, copy, digest, session_key, principal)
    return copy


def insert_file(
    tx: Transaction,
    file: StoredFile,
    digest: str,
    session_key: str | None,
    principal: str | None = None,
) -> None:
    """Store the row of a file, whose content was placed."""
    tx.run(
        "INSERT INTO files (id, hash, size, media_type, name, width, height, session_key, "
        "principal, created_at, steady_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        file.id,
        digest,
        file.size,
        file.media_type,
        file.name,
        file.width,
        file.height,
        session_key,
        principal,
        tx.now,
        tx.steady,
    )


def is_file_id(text: str) -> bool:
    """Return whether a text has the form of a file's id: parts of a host may have others."""
    return _ID.fullmatch(text) is not None


def hash_of(tx: Transaction, file_id: str) -> str | None:
    """Return the hash of a file's content, or None if there is no such file."""
    row = tx.one(_HASH, file_id)
    return None if row is None else row[0]


def record_session_files(tx: Transaction, session_no: int, ids: Iterable[str]) -> None:
    """Record that a session names files."""
    tx.run_each(_USE_IN_SESSION, [(session_no, file_id) for file_id in ids])


def clean_name(name: str | None) -> str | None:
    """Return the last part of a name, as any file system takes it; None if nothing is left.

    Control characters and what Windows forbids are replaced, and a long name keeps its extension.
    """
    last = one_line(scrub(name or "").replace("\\", "/")).rpartition("/")[2]
    last = _FORBIDDEN.sub("_", last).strip(". ")
    if _DEVICE.match(last):
        last = f"_{last}"
    encoded = last.encode()
    if len(encoded) <= MAX_NAME:
        return last or None
    stem, _, suffix = encoded.rpartition(b".")
    kept = b"." + suffix if stem and len(suffix) <= MAX_SUFFIX else b""
    cut = encoded[: MAX_NAME - len(kept)].decode(errors="ignore").rstrip(". ")
    return cut + kept.decode()


def _check_limits(
    tx: Transaction, staged: StagedFile, session_key: str, principal: str | None
) -> None:
    """Raise `AttachmentRefused` if the file must not be stored."""
    limits, kind = tx.db.limits, staged.media.media_type
    if not any(fnmatchcase(kind, pattern) for pattern in limits.types):
        raise AttachmentRefused(f"files of the type {kind} are not accepted")
    if (staged.media.width or 0) * (staged.media.height or 0) > limits.max_pixels:
        raise AttachmentRefused(f"the image has more than {limits.max_pixels:,} pixels")
    _check_space(tx, staged.size, session_key, principal)


def _check_space(tx: Transaction, size: int, session_key: str, principal: str | None) -> None:
    """Raise `AttachmentTooLarge` if the conversation or the user has too many files."""
    limits = tx.db.limits
    for column, value, most, count, whose in (
        ("session_key", session_key, limits.conversation_bytes, limits.conversation_files,
         "this conversation"),
        ("principal", principal, limits.principal_bytes, limits.principal_files, "this user"),
    ):  # fmt: skip
        row = tx.one(
            f"SELECT count(*), coalesce(sum(size), 0) FROM files WHERE {column} = ?", value
        )
        assert row is not None
        if row[0] >= count or row[1] + size > most:
            raise AttachmentTooLarge(
                f"the files of {whose} reach its limit of {count:,} files and {most:,} bytes; "
                "delete old conversations first"
            )


def get_file(tx: Transaction, file_id: str, *, session_key: str) -> tuple[StoredFile, str]:
    """Return a file that the conversation may read, and the hash of its content.

    Raises `UnknownFile` if there is none with this id.
    """
    row = tx.one(f"SELECT {COLUMNS}, f.hash {_READABLE}", session_key, file_id)
    if row is None:
        raise UnknownFile(f"there is no file {file_id!r:.60} in this conversation")
    return stored(row[:-1]), row[-1]


def get_files(tx: Transaction, ids: Sequence[str], *, session_key: str) -> dict[str, StoredFile]:
    """Return the files of one message, by id.

    Raises `UnknownFile` if the conversation cannot read one, and `AttachmentRefused` if there are
    too many.
    """
    known = {id_: get_file(tx, id_, session_key=session_key)[0] for id_ in ids}
    limits, size = tx.db.limits, sum(file.size for file in known.values())
    if len(ids) > limits.message_files:
        raise AttachmentRefused(f"a message can have {limits.message_files} files, not {len(ids)}")
    if size > limits.message_bytes:
        text = f"the files have {size:,} bytes together; the limit is {limits.message_bytes:,}"
        raise AttachmentTooLarge(text)
    return known


def stored(row: tuple[object, ...]) -> StoredFile:
    """Return the file of a row that was selected with `COLUMNS`."""
    names = ("id", "media_type", "size", "name", "width", "height")
    return convert(dict(zip(names, row, strict=True)), StoredFile)


def discard_file(tx: Transaction, file_id: str, *, session_key: str) -> str | None:
    """Delete a file that nothing names. Returns the hash of its content if there was one.

    A transaction after this one removes the content (`sweep.remove_blob`).
    """
    sql = f"DELETE FROM files AS f WHERE f.id = ? AND f.session_key = ? AND {UNUSED} RETURNING hash"
    found = tx.all(sql, file_id, session_key)
    if not found:
        return None
    [[digest]] = found
    tx.run(f"DELETE FROM blobs AS b WHERE b.hash = ? AND {FREE}", digest)
    return str(digest)


def remove_file(tx: Transaction, file_id: str) -> None:
    """Delete a file whose id nobody has received: it can only be named by a message's turn."""
    tx.run("DELETE FROM inbox_files WHERE file_id = ?", file_id)
    tx.run("DELETE FROM files WHERE id = ?", file_id)


def resolve(tx: Transaction, inbound: Inbound) -> Inbound:
    """Return a message with its parts as they will be stored: files as the store knows them.

    Raises `UnknownFile` if the conversation cannot read one, and `AttachmentRefused` if there are
    too many.
    """
    check_depth(inbound.parts)
    for part in inbound.parts or ():
        check_part(part)
    ids = file_ids(inbound.parts)
    if not ids:
        return inbound
    known = get_files(tx, ids, session_key=inbound.session_key)
    parts = tuple(
        part if (id_ := file_id_of(part)) is None else known[id_].part
        for part in inbound.parts or ()
    )
    return replace(inbound, parts=parts)


def by_content(tx: Transaction, parts: Sequence[JsonObject]) -> list[JsonObject]:
    """Return parts that are equal if they mean the same: a repeated message has new file ids."""
    described = []
    for part in parts:
        row = tx.one(_HASH, file_id) if (file_id := file_id_of(part)) else None
        described.append(part if row is None else {"file": row[0], "name": part.get("name")})
    return described


def use_in_inbox(tx: Transaction, inbox_id: int, parts: Sequence[JsonObject]) -> None:
    """Record that an accepted message names its files."""
    sql = "INSERT INTO inbox_files (inbox_id, file_id) VALUES (?, ?)"
    tx.run_each(sql, [(inbox_id, file_id) for file_id in file_ids(parts)])


def use_in_outbox(
    tx: Transaction, session_key: str, outbox_id: int, parts: Sequence[JsonObject]
) -> None:
    """Record that a reply names its files, as far as the conversation can read them."""
    sql = f"INSERT INTO outbox_files (outbox_id, file_id) SELECT ?3, f.id {_READABLE}"
    tx.run_each(sql, [(session_key, file_id, outbox_id) for file_id in file_ids(parts)])


def use_in_session(
    tx: Transaction, session_id: str, messages: Sequence[Message]
) -> Sequence[Message]:
    """Record that a session names the files of these messages, and return the messages.

    A part whose file the session's conversation cannot read is replaced by a text: naming a file
    would otherwise give access to it.
    """
    row = tx.one("SELECT no FROM sessions WHERE id = ?", session_id)
    ids = file_ids(part for message in messages for part in message.parts or ())
    if row is None or not ids:
        return messages
    [number], keys = row, [key for (key,) in tx.all(_KEYS, session_id)]
    known = {id_ for id_ in ids if _may_name(tx, number, keys, id_)}
    record_session_files(tx, number, known)
    return messages if len(known) == len(ids) else [_readable(each, known) for each in messages]


def _may_name(tx: Transaction, session_no: int, keys: Sequence[str], file_id: str) -> bool:
    """Return whether a session may name a file: a conversation of it, or its parent, reads it."""
    if any(tx.one(f"SELECT 1 {_READABLE}", key, file_id) is not None for key in keys):
        return True
    sql = (
        "SELECT 1 FROM session_files u JOIN sessions s ON s.no = ? "
        "WHERE u.file_id = ? AND u.session_no IN (s.no, s.parent_no)"
    )
    return tx.one(sql, session_no, file_id) is not None


def _readable(message: Message, known: set[str]) -> Message:
    parts = tuple(
        {"type": "text", "text": GONE} if (id_ := file_id_of(part)) and id_ not in known else part
        for part in message.parts or ()
    )
    return replace(message, parts=parts) if message.parts else message
