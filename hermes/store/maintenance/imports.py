"""Import exported sessions, with their attached files."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from msgspec.structs import astuple, replace

from hermes.messages import Imported, SessionKind, Usage
from hermes.store.conversations import codec, lineage, sessions, titles, usage
from hermes.store.maintenance import cleanup
from hermes.store.maintenance.file_transfer import ImportedFiles
from hermes.store.maintenance.transfer import ExportedMessage, ExportedSession, Parsed
from hermes.store.transaction import Transaction, Work


def import_parsed(parsed: Parsed) -> Generator[Work[Imported], Imported, Imported]:
    """Import parsed sessions, parents first, one transaction per session.

    Sessions that exist are skipped, references to unknown parents are dropped, and a second
    compression child of one parent is imported as a `fork`. Raises `BadImport` before anything is
    written if an id of a file is in use for another content.
    """
    total = (yield parsed.files.check) if len(parsed.files) else Imported(0, 0)
    for session in _parents_first(parsed.sessions):
        done = yield ImportSession(session, parsed.files)
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

    def __init__(self, session: ExportedSession, files: ImportedFiles | None = None) -> None:
        self._session = session
        self._files = files

    def __call__(self, tx: Transaction) -> Imported:
        session = self._session
        if sessions.number(tx, session.id) is not None:
            return Imported(0, 0, skipped=(session.id,))
        parent_no = sessions.number(tx, session.parent_session_id or "")
        kind = _kind(tx, session.kind, parent_no)
        no = self._insert_session(tx, kind, parent_no)
        if self._files is not None:
            self._files.store(tx, no, session.session_key, session.messages)
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
    tx.search.index_imported(tx, low + messages[0].seq, low + messages[-1].seq)


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
