"""Export and import sessions as JSON Lines: one session per line, hidden rows included.

The lines of attached files (`file_transfer`) precede the first session that names them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, NamedTuple, Self

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, astuple

from hermes.errors import BadImport, UnknownSession
from hermes.messages import Extra, JsonObject, SessionKind, StoredFile
from hermes.sanitize import shorten
from hermes.store.conversations import codec, sessions, titles, usage
from hermes.store.files.contents import FileContents
from hermes.store.maintenance import file_transfer
from hermes.store.transaction import Transaction
from hermes.transcript.validate import check_depth

FORMAT = "hermes-session-1"
MAX_LINE = 256 * 1024 * 1024
TOKENS = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens",
)  # fmt: skip

_MAX_COUNT = 2**53
_MAX_REASON = 100
_Count = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
_Seq = Annotated[int, Meta(ge=1, le=2**31)]
_Id = Annotated[str, Meta(min_length=1, max_length=200)]


class ExportedMessage(Extra, frozen=True):
    """A row of a transcript: `seq` is its position; a hidden row is not `live`.

    A `compacted` row is hidden because hermes-agent replaced it by a summary; it is still searched.
    """

    seq: _Seq
    role: str
    timestamp: float
    content: str | None = None
    platform_message_id: str | None = None
    live: bool = True
    compacted: bool = False


class ExportedUsage(msgspec.Struct, frozen=True):
    """A provider call."""

    purpose: str = "turn"
    model: str | None = None
    provider: str | None = None
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cache_read_tokens: _Count = 0
    cache_write_tokens: _Count = 0
    reasoning_tokens: _Count = 0
    cost: float | None = None


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session with its messages and usage: one line of an export."""

    format: str
    id: _Id
    source: str
    kind: SessionKind
    started_at: float
    last_active: float
    parent_session_id: _Id | None = None
    title: str | None = None
    model: str | None = None
    user_id: str | None = None
    session_key: str | None = None
    chat_id: str | None = None
    chat_type: str | None = None
    thread_id: str | None = None
    cwd: str | None = None
    profile: str | None = None
    ended_at: float | None = None
    end_reason: str | None = None
    archived_at: float | None = None
    revision: _Count = 0
    rewrites: _Count = 0
    system_prompt: str | None = None
    model_config: JsonObject | None = None
    messages: tuple[ExportedMessage, ...] = ()
    usage: tuple[ExportedUsage, ...] = ()


class _Format(msgspec.Struct):
    format: object = None


_SESSION_FIELDS = frozenset(ExportedSession.__struct_fields__) - {"format", "messages", "usage"}
_decode = msgspec.json.Decoder(ExportedSession).decode
_decode_format = msgspec.json.Decoder(_Format).decode
token_counts: Callable[[ExportedUsage], tuple[int, ...]] = operator.attrgetter(*TOKENS)
"""The token counts of a provider call, in the order of `TOKENS`."""


class Exported(NamedTuple):
    """A session to export: its line, and the files that it names, with their hashes."""

    line: str
    files: list[tuple[str, StoredFile]]


def export_session(tx: Transaction, session_id: str) -> str:
    """Return the session as one line of JSON, for `import_sessions`. Raises `UnknownSession`.

    The lines of its attached files come before it. All of them are in memory then; `export_lines`
    yields them one by one.
    """
    return "\n".join(lines_of(tx.db.blobs, export(tx, session_id), set()))


def export(tx: Transaction, session_id: str) -> Exported:
    """Return what is exported of a session. Raises `UnknownSession`."""
    line = session_line(tx, session_id)
    return Exported(line, file_transfer.files_of_session(tx, sessions.require(tx, session_id)))


def lines_of(contents: FileContents, exported: Exported, seen: set[str]) -> Iterator[str]:
    """Yield the lines of a session: those of its files, unless they are in `seen`, then its own.

    Files are added to `seen`. Raises `StoreError` if the content of one is missing or damaged.
    """
    for digest, file in exported.files:
        if file.id not in seen:
            yield from file_transfer.file_lines(contents, digest, file)
            seen.add(file.id)
    yield exported.line


def session_line(tx: Transaction, session_id: str) -> str:
    """Return the line of a session. Raises `UnknownSession`."""
    session = sessions.get_session(tx, session_id)
    if session is None:
        raise UnknownSession(f"there is no session {session_id!r}")
    fields = {n: value for n, value in asdict(session).items() if n in _SESSION_FIELDS}
    exported = ExportedSession(
        format=FORMAT,
        messages=tuple(exported_messages(tx, sessions.require(tx, session_id))),
        usage=tuple(ExportedUsage(*astuple(call)) for call in usage.get_usage(tx, session_id)),
        **fields,
    )
    return msgspec.json.encode(exported).decode()


def exported_messages(tx: Transaction, no: int) -> Iterable[ExportedMessage]:
    """Yield every row of the session, in order."""
    low, high = codec.bounds(no)
    sql = "SELECT id, compacted FROM messages WHERE id BETWEEN ? AND ? AND live = 0"
    hidden: dict[int, int] = {row[0]: row[1] for row in tx.all(sql, low, high)}
    rows = tx.all(
        f"SELECT {codec.COLUMNS} FROM all_messages WHERE id BETWEEN ? AND ? ORDER BY id", low, high
    )
    for stored in codec.to_messages(rows):
        yield ExportedMessage(
            seq=stored.id - low,
            role=stored.role,
            timestamp=stored.timestamp,
            content=stored.content,
            platform_message_id=stored.platform_message_id,
            live=stored.id not in hidden,
            compacted=bool(hidden.get(stored.id)),
            **codec.extra_fields(stored),
        )


class Parsed:
    """The content of an export: its sessions, and its files, which are staged in `contents`.

    Close it in the end: then files that were not stored are discarded.
    """

    def __init__(self, contents: FileContents) -> None:
        self.sessions: list[ExportedSession] = []
        self.files: file_transfer.ImportedFiles = file_transfer.ImportedFiles(contents)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Discard the files that were not stored."""
        self.files.close()

    def parse(self, lines: Iterable[str]) -> Self:
        """Check exported lines; raise `BadImport` at the first line that is invalid."""
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if len(line) > MAX_LINE:
                raise BadImport(f"line {number} is longer than {MAX_LINE} characters")
            is_file = _format(line) == file_transfer.FORMAT
            try:
                self._parse_file(line, number) if is_file else self._parse_session(line, number)
            except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
                what = "file" if is_file else "session"
                text = f"line {number} is not an exported {what}: {_reason(error)}"
                raise BadImport(text) from None
        self.files.require_complete()
        return self

    def _parse_session(self, line: str, number: int) -> None:
        session = _decode(line)
        self.files.require_complete(number)
        _check(session, number)
        self.files.require(session.messages, number)
        self.sessions.append(session)

    def _parse_file(self, line: str, number: int) -> None:
        self.files.read(line, number)


def _format(line: str) -> object:
    """Return the format of a line, or None if it cannot be read."""
    with suppress(msgspec.MsgspecError, RecursionError, UnicodeError):
        return _decode_format(line).format
    return None


def _reason(error: Exception) -> str:
    """Return the text of an error in one short line: it may quote a value of any length."""
    what, at, where = str(error).rpartition(" - at ")
    return shorten(what, _MAX_REASON) + at + shorten(where, _MAX_REASON)


def _check(session: ExportedSession, number: int) -> None:
    """Raise `BadImport` if the values of a session are invalid, though their types are right."""
    if (problem := _find_problem(session)) is not None:
        raise BadImport(f"line {number} {problem}")
    try:
        sessions.require_id(session.id)
        titles.sanitize_title(session.title)
        check_depth(session.model_config)
        for message in session.messages:
            codec.encode_extra(message)
    except (ValueError, RecursionError) as error:
        raise BadImport(f"line {number}: {_reason(error)}") from None


def _find_problem(session: ExportedSession) -> str | None:
    if session.format != FORMAT:
        return f"has the format {session.format[:40]!r}, not {FORMAT!r}"
    if (session.ended_at is None) != (session.end_reason is None):
        return "must have both ended_at and end_reason, or neither"
    if any(later.seq <= earlier.seq for earlier, later in pairwise(session.messages)):
        return "has messages out of order"
    columns = zip(*map(token_counts, session.usage), strict=True)
    if any(sum(column) > _MAX_COUNT for column in columns):
        return "has token counts that are too large"
    return None
