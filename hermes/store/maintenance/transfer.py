"""Export and import sessions as JSON Lines: one session per line, hidden rows included."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, astuple, replace

from hermes.errors import BadImport, UnknownSession
from hermes.messages import Extra, Imported, JsonObject, SessionKind, Usage
from hermes.sanitize import shorten
from hermes.store.conversations import codec, lineage, search, sessions, titles, usage
from hermes.store.maintenance import cleanup
from hermes.store.transaction import Transaction, Work
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


_SESSION_FIELDS = frozenset(ExportedSession.__struct_fields__) - {"format", "messages", "usage"}
_decode = msgspec.json.Decoder(ExportedSession).decode
token_counts: Callable[[ExportedUsage], tuple[int, ...]] = operator.attrgetter(*TOKENS)
"""The token counts of a provider call, in the order of `TOKENS`."""


def export_session(tx: Transaction, session_id: str) -> str:
    """Return the session as one line of JSON, for `import_sessions`. Raises `UnknownSession`."""
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


def import_sessions(lines: Iterable[str]) -> Generator[Work[Imported], Imported, Imported]:
    """Import exported sessions, parents first, one transaction per session.

    All lines are checked before the first session is written; `BadImport` names the first line
    that is invalid. Sessions that exist are skipped, references to unknown parents are dropped,
    and a second compression child of one parent is imported as a `fork`.
    """
    return (yield from import_parsed(parse(lines)))


def import_parsed(
    parsed: list[ExportedSession],
) -> Generator[Work[Imported], Imported, Imported]:
    """Same as `import_sessions`, for lines that were parsed before."""
    total = Imported(0, 0)
    for session in _parents_first(parsed):
        done = yield ImportSession(session)
        total = Imported(
            total.sessions + done.sessions,
            total.messages + done.messages,
            total.skipped + done.skipped,
            total.forks + done.forks,
        )
    swept = yield clean_up
    return replace(
        total, finalized_orphans=swept.finalized_orphans, pruned_ghosts=swept.pruned_ghosts
    )


def parse(lines: Iterable[str]) -> list[ExportedSession]:
    """Check exported sessions; raise `BadImport` at the first line that is invalid."""
    parsed = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(line) > MAX_LINE:
            raise BadImport(f"line {number} is longer than {MAX_LINE} characters")
        try:
            session = _decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadImport(f"line {number} is not an exported session: {_reason(error)}") from None
        _check(session, number)
        parsed.append(session)
    return parsed


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


def _parents_first(parsed: list[ExportedSession]) -> list[ExportedSession]:
    by_id: dict[str, ExportedSession] = {}
    for session in parsed:
        by_id.setdefault(session.id, session)
    ordered: dict[str, ExportedSession] = {}
    for session in by_id.values():
        chain: dict[str, ExportedSession] = {}
        step: ExportedSession | None = session
        # A cycle is cut at the session where it closes; its parent is then unknown.
        while step is not None and step.id not in ordered and step.id not in chain:
            chain[step.id] = step
            step = by_id.get(step.parent_session_id or "")
        ordered.update(reversed(chain.items()))
    return list(ordered.values())


class ImportSession:
    """Imports one session, in the transaction that it is called with."""

    def __init__(self, session: ExportedSession) -> None:
        self._session = session

    def __call__(self, tx: Transaction) -> Imported:
        session = self._session
        if sessions.number(tx, session.id) is not None:
            return Imported(0, 0, skipped=(session.id,))
        parent_no = sessions.number(tx, session.parent_session_id or "")
        kind = _kind(tx, session.kind, parent_no)
        no = self._insert_session(tx, kind, parent_no)
        insert_messages(tx, no, session.messages)
        record_usage(tx, session)
        self._finish(tx, no)
        forks = (session.id,) if kind == "fork" else ()
        return Imported(1, len(session.messages), forks=forks)

    def _insert_session(self, tx: Transaction, kind: SessionKind, parent_no: int | None) -> int:
        session = self._session
        sessions.create_session(
            tx,
            session.id,
            session.source,
            kind="import" if kind == "compression" else kind,
            model=session.model,
            model_config=session.model_config,
            system_prompt=session.system_prompt,
            user_id=session.user_id,
            session_key=session.session_key,
            chat_id=session.chat_id,
            chat_type=session.chat_type,
            thread_id=session.thread_id,
            cwd=session.cwd,
            profile=session.profile,
            started_at=session.started_at,
        )
        no = sessions.require(tx, session.id)
        sql = "UPDATE sessions SET kind = ?, parent_no = ? WHERE no = ?"
        tx.run(sql, sessions.stored_kind(kind), parent_no, no)
        if kind == "compression":
            tx.run(sessions.INHERIT_MARKS, no)
            lineage.inherit_keys(tx, no)
        return no

    def _finish(self, tx: Transaction, no: int) -> None:
        session = self._session
        live = [message for message in session.messages if message.live]
        tx.run(
            "UPDATE sessions SET seq = ?, message_count = ?, tool_call_count = ?, revision = ?, "
            "rewrites = ?, last_active = ?, ended_at = ?, end_reason = ?, archived_at = ?, "
            "title = ?, model = ? WHERE no = ?",
            session.messages[-1].seq if session.messages else 0,
            len(live),
            codec.tool_calls_in(live),
            session.revision,
            session.rewrites,
            session.last_active,
            session.ended_at,
            session.end_reason,
            session.archived_at,
            unused_title(tx, no, session.title),
            session.model,
            no,
        )


def insert_messages(tx: Transaction, no: int, messages: Sequence[ExportedMessage]) -> None:
    """Insert new rows into a session at their `seq`, and index them."""
    if not messages:
        return
    low, _ = codec.bounds(no)
    for message in messages:
        tx.run(
            "INSERT INTO messages (id, role, content, created_at, platform_message_id, live, "
            "compacted, extra) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            low + message.seq,
            message.role,
            message.content,
            message.timestamp,
            message.platform_message_id,
            int(message.live),
            int(message.compacted and not message.live),
            codec.encode_extra(message),
        )
    search.index_imported(tx, low + messages[0].seq, low + messages[-1].seq)


def record_usage(tx: Transaction, session: ExportedSession) -> None:
    """Record the imported provider calls, dated back so that they do not count as spent today."""
    for call in session.usage:
        usage.update_token_counts(tx, session.id, Usage(*astuple(call)), at=session.last_active)


def _kind(tx: Transaction, kind: SessionKind, parent_no: int | None) -> SessionKind:
    if kind != "compression":
        return kind
    if parent_no is None:
        return "import"
    row = tx.one("SELECT end_reason FROM sessions WHERE no = ?", parent_no)
    compressed = row is not None and row[0] == "compression"
    first = lineage.compression_child(tx, parent_no) is None
    return "compression" if compressed and first else "fork"


def unused_title(tx: Transaction, no: int, title: str | None) -> str | None:
    """Return a title for a session, with a number if another session of its keys has it."""
    clean = titles.sanitize_title(title)
    return None if clean is None else titles.title_for(tx, no, clean)


def clean_up(tx: Transaction) -> Imported:
    """End orphaned compression children and delete empty sessions after an import."""
    orphans, ghosts = cleanup.finalize_orphans(tx), cleanup.prune_ghosts(tx)
    return Imported(0, 0, finalized_orphans=orphans, pruned_ghosts=ghosts)
