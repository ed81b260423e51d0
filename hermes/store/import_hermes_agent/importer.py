"""Import a hermes-agent home: one transaction per session and per route.

An import may be repeated. With every session it stores a digest of the source and a digest of the
imported copy (in `meta`). So a later import knows what is new in the source, and whether the copy
was changed since; a changed copy is left as it is.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Generator, Sequence
from typing import Literal, TypeAlias

import attrs
import msgspec

from hermes.store.conversations import codec, lineage, routes, sessions, titles
from hermes.store.import_hermes_agent.report import ImportNotes, Note
from hermes.store.import_hermes_agent.routes import SourceRoute
from hermes.store.import_hermes_agent.source import AgentHome
from hermes.store.maintenance import cleanup, imports, transfer
from hermes.store.maintenance.transfer import ExportedMessage, ExportedSession
from hermes.store.records import key_value
from hermes.store.transaction import Transaction, Work

_compared_fields = operator.attrgetter(
    *(
        name
        for name in ExportedMessage.__struct_fields__
        if name not in {"seq", "live", "compacted"}
    )
)


@attrs.define
class Counts:
    """How many sessions, messages or routes had which outcome."""

    imported: int = 0
    already_present: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        self.imported += other.imported
        self.already_present += other.already_present
        self.skipped += other.skipped


@attrs.define
class Report:
    """The result of an import; `notes` says what was changed or skipped, and why."""

    home: str
    schema_version: int
    sessions: Counts = attrs.Factory(Counts)
    messages: Counts = attrs.Factory(Counts)
    routes: Counts = attrs.Factory(Counts)
    updated: int = 0
    """Sessions that were present and got new messages; `sessions.imported` includes them."""
    finalized_orphans: Sequence[str] = ()
    """Compression children without a turn, of any import, that were ended after this one."""
    pruned_ghosts: Sequence[str] = ()
    """Empty sessions, of any import, that were deleted after this one."""
    notes: Sequence[Note] = ()


Outcome: TypeAlias = Literal["imported", "updated", "already_present", "skipped"]
_OUTCOME_COUNTS: dict[Outcome, Counts] = {
    "imported": Counts(imported=1),
    "updated": Counts(imported=1),
    "already_present": Counts(already_present=1),
    "skipped": Counts(skipped=1),
}


@attrs.frozen
class Result:
    """The outcome for one session or route, and for the messages of a session."""

    outcome: Outcome
    messages: Counts = attrs.Factory(Counts)


def import_home(home: AgentHome) -> Generator[Work[Result], Result, Report]:
    """Import sessions, parents first, and then routes; existing ones are updated or left alone."""
    report = Report(str(home.path), home.version)
    report.sessions.skipped = home.plan.refused
    report.messages.skipped = home.plan.lost_messages
    for planned in home.plan.sessions:
        converted = home.convert(planned)
        home.check_unchanged()  # before the session is written
        result = yield _SessionImport(converted.session, home.notes)
        report.sessions.add(_OUTCOME_COUNTS[result.outcome])
        report.updated += result.outcome == "updated"
        report.messages.add(result.messages)
        report.messages.skipped += converted.skipped_messages
    home.check_unchanged()
    for route in home.routes:
        result = yield _RouteImport(route, home.notes)
        report.routes.add(_OUTCOME_COUNTS[result.outcome])
    report.routes.skipped += sum(
        note.code in {"bad-route", "route-twice"} for note in home.notes.all()
    )
    yield _CleanUp(report)
    report.notes = home.notes.all()
    return report


@attrs.frozen
class _CleanUp:
    """Cleans up after the import, and reports what that changed."""

    report: Report

    def __call__(self, tx: Transaction) -> Result:
        swept = imports.clean_up(tx)
        self.report.finalized_orphans = swept.finalized_orphans
        self.report.pruned_ghosts = swept.pruned_ghosts
        return Result("already_present")


class _SessionImport:
    """Imports one session, in the transaction that it is called with."""

    def __init__(self, session: ExportedSession, notes: ImportNotes) -> None:
        self._session = session
        self._notes = notes
        self._source_digest = _digest(msgspec.json.encode(session))

    def __call__(self, tx: Transaction) -> Result:
        no = sessions.number(tx, self._session.id)
        if no is None:
            return self._create(tx)
        stored = list(transfer.exported_messages(tx, no))
        matches, new_messages = _match(stored, self._session.messages)
        present, new = len(matches), len(new_messages)
        digests = key_value.get_meta(tx, self._meta_name)
        source, copy = ("", "") if digests is None else digests.split()
        identical = digests is None and present == len(stored) and not new
        if source == self._source_digest or identical:
            return Result("already_present", Counts(already_present=present + new))
        if copy != _copy_digest(tx, self._session.id):
            self._notes.add("id-in-use" if digests is None else "changed-here", self._session.id)
            return Result("skipped", Counts(already_present=present, skipped=new))
        _update(tx, no, self._session, stored, matches)
        self._save_digests(tx)
        return Result("updated", Counts(imported=new, already_present=present))

    def _create(self, tx: Transaction) -> Result:
        session = self._session
        if _is_ghost(session, tx.now):
            self._notes.add("ghost", session.id)
            return Result("skipped")
        imports.ImportSession(session)(tx)
        stored = sessions.get_session(tx, session.id)
        assert stored is not None
        if stored.parent_session_id != session.parent_session_id:
            self._notes.add("parent-missing", session.id, session.parent_session_id or "")
        if stored.kind == "fork" and session.kind != "fork":
            self._notes.add("fork", session.id, session.parent_session_id or "")
        if stored.title != session.title:
            self._notes.add("title-renamed", session.id, stored.title or "")
        self._save_digests(tx)
        return Result("imported", Counts(imported=len(session.messages)))

    @property
    def _meta_name(self) -> str:
        return f"imported:{self._session.id}"

    def _save_digests(self, tx: Transaction) -> None:
        digests = f"{self._source_digest} {_copy_digest(tx, self._session.id)}"
        key_value.set_meta(tx, self._meta_name, digests)


def _is_ghost(session: ExportedSession, now: float) -> bool:
    """Return whether the clean-up would delete the session, so that every import repeated it."""
    empty = session.source == "tui" and session.title is None and not session.messages
    return empty and session.ended_at is not None and session.started_at < now - cleanup.DAY


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def _copy_digest(tx: Transaction, session_id: str) -> str:
    return _digest(transfer.session_line(tx, session_id).encode())


def _match(
    stored: Sequence[ExportedMessage], source: Sequence[ExportedMessage]
) -> tuple[dict[int, ExportedMessage], Sequence[ExportedMessage]]:
    """Match stored rows with messages of the source, in order.

    Returns the message of the source for each matched row (by `seq`), and the messages from the
    first one on that is not stored.
    """
    matches: dict[int, ExportedMessage] = {}
    index = 0
    for number, message in enumerate(source):
        fields = _compared_fields(message)
        while index < len(stored) and _compared_fields(stored[index]) != fields:
            index += 1
        if index == len(stored):
            return matches, source[number:]
        matches[stored[index].seq] = message
        index += 1
    return matches, ()


def _update(
    tx: Transaction,
    no: int,
    session: ExportedSession,
    stored: Sequence[ExportedMessage],
    matches: dict[int, ExportedMessage],
) -> None:
    """Bring an unchanged copy to the state of the source. Rows are hidden, never deleted."""
    tx.search.index_session(tx, no)
    # Reopen it first: an ended session accepts no rows.
    tx.run("UPDATE sessions SET ended_at = NULL, end_reason = NULL, title = NULL WHERE no = ?", no)
    rewritten = False
    for message in stored:
        before, after = _state(message), _state(matches.get(message.seq))
        if before != after:
            message_id = codec.bounds(no)[0] + message.seq
            sql = "UPDATE messages SET live = ?, compacted = ? WHERE id = ?"
            tx.run(sql, *after, message_id)
            rewritten = rewritten or before[0] != after[0]
    last = stored[-1].seq if stored else 0
    new = [
        msgspec.structs.replace(message, seq=last + number)
        for number, message in enumerate(session.messages[len(matches) :], start=1)
    ]
    imports.insert_messages(tx, no, new)
    _replace_usage(tx, no, session)
    _update_session(tx, no, session, last + len(new), rewritten=rewritten)


def _state(message: ExportedMessage | None) -> tuple[int, int]:
    """Return whether a row is live and whether it is compacted; a missing one is neither."""
    return (0, 0) if message is None else (int(message.live), int(message.compacted))


def _replace_usage(tx: Transaction, no: int, session: ExportedSession) -> None:
    tx.run("DELETE FROM usage WHERE session_no = ?", no)
    counters = ("api_call_count", *transfer.TOKENS, "cost")
    tx.run(f"UPDATE sessions SET {', '.join(f'{n} = 0' for n in counters)} WHERE no = ?", no)
    imports.record_usage(tx, session)


def _update_session(
    tx: Transaction, no: int, session: ExportedSession, seq: int, *, rewritten: bool
) -> None:
    live = [message for message in session.messages if message.live]
    ended = (session.ended_at, session.end_reason)
    if ended[0] is None and lineage.compression_child(tx, no) is not None:
        ended = (session.last_active, "compression")  # it continues in its child, so it stays ended
    tx.run(
        "UPDATE sessions SET seq = ?, message_count = ?, tool_call_count = ?, "
        "revision = revision + 1, rewrites = rewrites + ?, last_active = ?, ended_at = ?, "
        "end_reason = ?, archived_at = ?, title = ?, model = ? WHERE no = ?",
        seq,
        len(live),
        codec.tool_calls_in(live),
        int(rewritten),
        session.last_active,
        *ended,
        session.archived_at,
        imports.unused_title(tx, no, session.title),
        session.model,
        no,
    )
    if session.system_prompt is not None:
        sessions.set_system_prompt(tx, session.id, session.system_prompt)
    if session.kind == "subagent":  # an earlier version did not mark it
        for each in lineage.get_compression_lineage(tx, session.id):
            tx.run("UPDATE sessions SET subagent = 1 WHERE id = ?", each)


class _RouteImport:
    """Imports one route. An existing route is changed only if an import wrote it."""

    def __init__(self, route: SourceRoute, notes: ImportNotes) -> None:
        self._route = route
        self._notes = notes

    def __call__(self, tx: Transaction) -> Result:
        route = self._route
        existing = routes.get_route(tx, route.session_key)
        imported = key_value.get_meta(tx, self._meta_name)
        unchanged = existing is not None and imported == f"{existing.epoch} {existing.session_id}"
        tip = lineage.get_compression_tip(tx, route.session_id)
        session = sessions.get_session(tx, tip)
        if session is None:
            return self._skip("route-without-session")
        if session.end_reason is not None and session.end_reason not in sessions.ACCIDENTAL_ENDS:
            if unchanged:  # the next message starts a new session; no hook runs for the old one
                routes.assign_session(tx, route.session_key, tx.new_session_id())
                key_value.set_meta(tx, self._meta_name, None)
            return self._skip("finalized" if route.finalized else "route-ended")
        if existing is not None and existing.session_id == tip:
            return Result("already_present")
        if existing is not None and not unchanged:
            return self._skip("route-in-use")
        self._assign(tx, tip)
        return Result("imported")

    @property
    def _meta_name(self) -> str:
        return f"imported-route:{self._route.session_key}"

    def _skip(self, code: str) -> Result:
        self._notes.add(code, self._route.source_key, self._route.session_id)
        return Result("skipped")

    def _assign(self, tx: Transaction, tip: str) -> None:
        route = self._route
        titles.share(tx, route.session_key, tip)
        epoch = routes.assign_session(tx, route.session_key, tip).epoch
        tx.run(
            "UPDATE routes SET platform = ?, chat_type = ?, user_id = ?, "
            "last_active = coalesce(?, last_active) WHERE session_key = ?",
            route.platform,
            route.chat_type,
            route.user_id,
            route.last_active,
            route.session_key,
        )
        key_value.set_meta(tx, self._meta_name, f"{epoch} {tip}")
