"""The tables that a copy has, with how their rows are read, written and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
import msgspec

from hermes.store.conversations import codec
from hermes.store.transaction import Row, Transaction, Value

COPY_MARK: Final = "copy"
"""The name in `meta` under which a database says that it is a copy, or was copied."""
FIRST_PAGE: Final = 50
_LARGEST_PAGE = 2000
_PAGE_BYTES = 1 << 21
_ALL_MESSAGES = (
    "(SELECT id, role, content, created_at, platform_message_id, live, extra, compacted "
    "FROM messages "
    "UNION ALL SELECT id, role, content, created_at, platform_message_id, 1, extra, 0 "
    "FROM arrivals)"
)
_encode = msgspec.msgpack.Encoder().encode


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@attrs.frozen
class Table:
    """A table. Columns that it does not name are those of one engine."""

    name: str
    key: tuple[str, ...] = attrs.field(converter=_words)
    columns: tuple[str, ...] = attrs.field(converter=_words)
    changed: Mapping[str, str] = attrs.field(factory=dict)
    """Columns that are not copied, each with the SQL of what the copy has instead."""
    where: str = ""
    """The rows that are copied."""
    json: tuple[str, ...] = attrs.field(default="", converter=_words)
    """Columns with JSON that the server reads."""

    def pages(self, tx: Transaction, after: Row | None = None) -> Iterator[list[Row]]:
        """Yield the rows after this key, in the order of their keys, some at a time."""
        limit = FIRST_PAGE
        while rows := self.page(tx, after, limit):
            yield rows
            after, limit = self.key_of(rows[-1]), next_limit(rows, limit)

    def page(self, tx: Transaction, after: Row | None = None, limit: int = FIRST_PAGE) -> list[Row]:
        """Return at most `limit` rows after this key, in the order of their keys."""
        shown = ", ".join(
            f"{self.changed[n]} AS {n}" if n in self.changed else n for n in self.columns
        )
        whole = _ALL_MESSAGES if self.name == "messages" and tx.has_arrivals else self.name
        key = ", ".join(self.key)
        conditions = [self.where] if self.where else []
        if after is not None:
            conditions.append(f"({key}) > ({', '.join('?' * len(self.key))})")
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        sql = f"SELECT {shown} FROM {whole} AS t {where}ORDER BY {key} LIMIT {limit}"
        return tx.all(sql, *(after or ()))

    def key_of(self, row: Row) -> Row:
        """Return the key of a row."""
        return tuple(row[self.columns.index(name)] for name in self.key)

    def without_nul(self, rows: Sequence[Row]) -> tuple[list[Row], int]:
        """Return rows as PostgreSQL stores them, and how many texts had to be changed.

        U+0000 becomes U+FFFD, in JSON also the escape sequence. Only old rows have one.
        """
        in_json = [name in self.json for name in self.columns]
        found = [tuple(map(_without_nul, row, in_json)) for row in rows]
        changed = sum(
            one is not other
            for row, cleaned in zip(rows, found, strict=True)
            for one, other in zip(row, cleaned, strict=True)
        )
        return found, changed

    def last(self, tx: Transaction) -> Row | None:
        """Return the last key of the table, or None if it is empty."""
        key = ", ".join(self.key)
        order = ", ".join(f"{name} DESC" for name in self.key)
        where = f"WHERE {self.where} " if self.where else ""
        return tx.one(f"SELECT {key} FROM {self.name} {where}ORDER BY {order} LIMIT 1")

    def insert(self, tx: Transaction, rows: Sequence[Row]) -> None:
        """Insert rows."""
        marks = ", ".join("?" * len(self.columns))
        tx.run_each(f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({marks})", rows)


def next_limit(rows: Sequence[Row], limit: int) -> int:
    """Return how many rows the next page may have: rows can be long."""
    size = sum(map(_size, rows)) // len(rows) + 1
    return max(1, min(_LARGEST_PAGE, 2 * limit, _PAGE_BYTES // size))


@attrs.define
class Checksum:
    """The number of rows of a table, and a hash of their values in the order of their keys."""

    rows: int = 0
    _hash: hashlib._Hash = attrs.field(factory=hashlib.sha256, repr=False)

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        self.rows += len(rows)
        for row in rows:
            self._hash.update(_encode(row))

    @property
    def digest(self) -> str:
        """The hash, in hexadecimal digits."""
        return self._hash.hexdigest()


def _without_nul(value: Value, in_json: bool) -> Value:
    if not isinstance(value, str):
        return value
    if "\0" in value:
        value = value.replace("\0", "\ufffd")
    return codec.without_nul_escape(value) if in_json else value


def _size(row: Row) -> int:
    return sum(len(value) if isinstance(value, str) else 8 for value in row)


# A lease and its steady clock belong to a process of the source. Its token is kept: it must grow.
_NO_TIME = "CAST(0 AS double precision)"
BLOBS: Final = Table("blobs", "hash", "hash size created_at")
TABLES: Final = (
    Table(
        "sessions",
        "no",
        "no id source kind parent_no title model user_id session_key chat_id chat_type thread_id "
        "cwd profile started_at ended_at end_reason last_active seq message_count tool_call_count "
        "revision rewrites api_call_count input_tokens output_tokens cache_read_tokens "
        "cache_write_tokens reasoning_tokens cost rotation_id subagent archived_at",
    ),
    Table("session_texts", "session_no", "session_no system_prompt model_config"),
    Table(
        "messages",
        "id",
        "id role content created_at platform_message_id live extra compacted",
        json="extra",
    ),
    Table(
        "leases",
        "session_id",
        "session_id holder token expires ttl",
        {"holder": "NULL", "expires": _NO_TIME},
    ),
    Table("meta", "key", "key value", where=f"key <> '{COPY_MARK}'"),
    Table(
        "routes",
        "session_key",
        "session_key session_id epoch platform chat_type user_id pending_title notice expires_at "
        "last_active settings",
    ),
    Table(
        "inbox",
        "id",
        "id platform account event_id scope digest session_key session_id epoch body accepted_at "
        "state attempts closed_at note turn_id reply",
        json="body reply",
    ),
    Table(
        "outbox",
        "id",
        "id session_key turn_id lane body state attempts recovered created_at closed_at note "
        "parts_sent",
        json="body",
    ),
    Table(
        "boundaries",
        "id",
        "id event session_key session_id platform reason old_session_id new_session_id created_at "
        "closed_at error metadata",
    ),
    Table("once_calls", "id", "id turn_id tool arguments ordinal result failed begun_at"),
    Table(
        "approvals",
        "id",
        "id asked_of session_key session_id tool arguments state asked_at expires_at question "
        "shown_after decided_after asked_after",
    ),
    Table(
        "principals",
        "platform account user_id",
        "platform account user_id role name paired_at",
    ),
    Table(
        "pairings",
        "platform account user_id",
        "platform account user_id session_key source salt digest asked_at expires_at",
    ),
    Table(
        "wrong_codes",
        "platform account user_id",
        "platform account user_id number latest",
    ),
    Table("shared_sessions", "session_key session_no", "session_key session_no"),
    Table("allowed_tools", "session_key tool", "session_key tool allowed_at"),
    BLOBS,
    Table(
        "files",
        "id",
        "id hash size media_type name width height session_key principal created_at steady_at "
        "purpose",
        {"steady_at": _NO_TIME},
    ),
    Table("session_files", "session_no file_id", "session_no file_id"),
    Table("inbox_files", "inbox_id file_id", "inbox_id file_id"),
    Table("outbox_files", "outbox_id file_id", "outbox_id file_id"),
    Table(
        "responses",
        "id",
        "id credential session_key session_id inbox_id path digest idempotency_key echo stored "
        "created_at connection process cut_at items closed_at ended_steady reply",
        {"ended_steady": "NULL"},
    ),
    Table(
        "usage",
        "id",
        "id session_no turn_id purpose model provider input_tokens output_tokens cache_read_tokens "
        "cache_write_tokens reasoning_tokens cost created_at payer",
    ),
    Table("api_processes", "id", "id alive_at"),
    Table(
        "tokens",
        "id",
        "id name digest namespace roles keys created_at expires_at revoked_at platform client",
    ),
    Table("sign_ins", "digest", "digest namespace name role created_at"),
    Table(
        "turns",
        "session_no id",
        "session_no id first_id row_count started_at ended_at status details",
    ),
    Table("contents", "id", "id digest content"),
    Table("session_contents", "session_no content_id", "session_no content_id"),
)
"""All tables, each after those that it refers to."""
