"""Taking a home over: each session and each route in a transaction of its own, any number of times.

What was taken is noted beside it: how theirs was, and how ours was then. So a second import knows
what is new there, and whether ours was changed since; then ours is left as it is.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Generator, Sequence
from typing import Literal, TypeAlias

import attrs
import msgspec

from hermes.store.conversations import codec, lineage, routes, search, sessions
from hermes.store.import_hermes_agent.report import ImportNotes, Note
from hermes.store.import_hermes_agent.routes import ForeignRoute
from hermes.store.import_hermes_agent.source import AgentHome
from hermes.store.maintenance import cleanup, transfer
from hermes.store.maintenance.transfer import Exported, ExportedMessage
from hermes.store.records import key_value
from hermes.store.transaction import Transaction, Work

_content = operator.attrgetter(
    *(name for name in ExportedMessage.__struct_fields__ if name not in {"seq", "live"})
)


@attrs.define
class Counts:
    """How many of one thing."""

    taken: int = 0
    already_here: int = 0
    not_taken: int = 0

    def add(self, other: Counts) -> None:
        self.taken += other.taken
        self.already_here += other.already_here
        self.not_taken += other.not_taken


@attrs.define
class Report:
    """What was taken of a home, what was here, and what was not taken, and why."""

    home: str
    schema_version: int
    sessions: Counts = attrs.Factory(Counts)
    messages: Counts = attrs.Factory(Counts)
    routes: Counts = attrs.Factory(Counts)
    continued: int = 0
    """Sessions that were here, and got what is new."""
    notes: Sequence[Note] = ()


Outcome: TypeAlias = Literal["taken", "continued", "already_here", "not_taken"]


@attrs.frozen
class Taken:
    """What became of one session or route."""

    outcome: Outcome
    messages: Counts = attrs.Factory(Counts)


def take_home(home: AgentHome) -> Generator[Work[Taken], Taken, Report]:
    """Take all that is not here yet: sessions, parents first, then routes."""
    report = Report(str(home.path), home.version)
    report.sessions.not_taken = home.plan.refused
    report.messages.not_taken = home.plan.lost_messages
    for planned in home.plan.sessions:
        read = home.read(planned)
        home.check()  # before it is written
        done = yield _TakeSession(read.session, home.notes)
        _count(report.sessions, done)
        report.continued += done.outcome == "continued"
        report.messages.add(done.messages)
        report.messages.not_taken += read.left_out
    home.check()
    for route in home.routes:
        _count(report.routes, (yield _TakeRoute(route, home.notes)))
    report.routes.not_taken += sum(
        note.code in {"bad-route", "route-twice"} for note in home.notes.all()
    )
    yield _tidy
    report.notes = home.notes.all()
    return report


def _count(counts: Counts, done: Taken) -> None:
    column = {"continued": "taken"}.get(done.outcome, done.outcome)
    setattr(counts, column, getattr(counts, column) + 1)


def _tidy(tx: Transaction) -> Taken:
    transfer.tidy(tx)
    return Taken("already_here")


class _TakeSession:
    """A session on its way in."""

    def __init__(self, session: Exported, notes: ImportNotes) -> None:
        self._session = session
        self._notes = notes
        self._theirs = _digest(msgspec.json.encode(session))

    def __call__(self, tx: Transaction) -> Taken:
        no = sessions.number(tx, self._session.id)
        if no is None:
            return self._take(tx)
        stored = list(transfer.exported_messages(tx, no))
        places, fresh = _match(stored, self._session.messages)
        here, new = len(places), len(fresh)
        noted = key_value.get_meta(tx, f"imported:{self._session.id}")
        theirs, ours = ("", "") if noted is None else noted.split()
        if theirs == self._theirs or (noted is None and here == len(stored) and not new):
            return Taken("already_here", Counts(already_here=here + new))
        if ours != _ours(tx, self._session.id):
            self._notes.add("id-in-use" if noted is None else "changed-here", self._session.id)
            return Taken("not_taken", Counts(already_here=here, not_taken=new))
        _continue(tx, no, self._session, stored, places)
        self._note(tx)
        return Taken("continued", Counts(taken=new, already_here=here))

    def _take(self, tx: Transaction) -> Taken:
        session = self._session
        if _is_ghost(session, tx.now):
            self._notes.add("ghost", session.id)
            return Taken("not_taken")
        transfer.Import(session)(tx)
        stored = sessions.get_session(tx, session.id)
        assert stored is not None
        if stored.parent_session_id != session.parent_session_id:
            self._notes.add("parent-missing", session.id, session.parent_session_id or "")
        if stored.kind == "fork" and session.kind != "fork":
            self._notes.add("fork", session.id, session.parent_session_id or "")
        if stored.title != session.title:
            self._notes.add("title-renamed", session.id, stored.title or "")
        self._note(tx)
        return Taken("taken", Counts(taken=len(session.messages)))

    def _note(self, tx: Transaction) -> None:
        session_id = self._session.id
        note = f"{self._theirs} {_ours(tx, session_id)}"
        key_value.set_meta(tx, f"imported:{session_id}", note)


def _is_ghost(session: Exported, now: float) -> bool:
    """Whether it would be tidied away at once; the next import would take it again."""
    bare = session.source == "tui" and session.title is None and not session.messages
    return bare and session.ended_at is not None and session.started_at < now - cleanup.DAY


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def _ours(tx: Transaction, session_id: str) -> str:
    return _digest(transfer.export_session(tx, session_id).encode())


def _match(
    stored: Sequence[ExportedMessage], wanted: Sequence[ExportedMessage]
) -> tuple[dict[int, bool], Sequence[ExportedMessage]]:
    """Which of our rows are theirs, by place, and whether they are live there; and what is new."""
    found: dict[int, bool] = {}
    place = 0
    for number, message in enumerate(wanted):
        while place < len(stored) and _content(stored[place]) != _content(message):
            place += 1
        if place == len(stored):
            return found, wanted[number:]
        found[stored[place].seq] = message.live
        place += 1
    return found, ()


def _continue(
    tx: Transaction,
    no: int,
    session: Exported,
    stored: Sequence[ExportedMessage],
    places: dict[int, bool],
) -> None:
    """Bring a session, which nobody here has changed, to where theirs is. No row is lost."""
    search.settle(tx, no)
    # An ended session takes no rows.
    tx.run("UPDATE sessions SET ended_at = NULL, end_reason = NULL, title = NULL WHERE no = ?", no)
    turned = [m for m in stored if m.live != places.get(m.seq, False)]
    for message in sorted(turned, key=lambda m: not m.live):  # first hide, then show
        place = codec.bounds(no)[0] + message.seq
        tx.run("UPDATE messages SET live = ? WHERE id = ?", int(not message.live), place)
    last = stored[-1].seq if stored else 0
    fresh = [
        msgspec.structs.replace(message, seq=last + number)
        for number, message in enumerate(session.messages[len(places) :], start=1)
    ]
    transfer.insert_rows(tx, no, fresh)
    _replace_bill(tx, no, session)
    _finish(tx, no, session, last + len(fresh), rewritten=bool(turned))


def _replace_bill(tx: Transaction, no: int, session: Exported) -> None:
    tx.run("DELETE FROM usage WHERE session_no = ?", no)
    counters = ("api_call_count", *transfer.TOKENS, "cost")
    tx.run(f"UPDATE sessions SET {', '.join(f'{n} = 0' for n in counters)} WHERE no = ?", no)
    transfer.record_usage(tx, session)


def _finish(tx: Transaction, no: int, session: Exported, seq: int, *, rewritten: bool) -> None:
    live = [message for message in session.messages if message.live]
    ended = (session.ended_at, session.end_reason)
    if ended[0] is None and lineage.child(tx, no) is not None:  # what goes on elsewhere stays over
        ended = (session.last_active, "compression")
    tx.run(
        "UPDATE sessions SET seq = ?, message_count = ?, tool_call_count = ?, "
        "revision = revision + 1, rewrites = rewrites + ?, last_active = ?, ended_at = ?, "
        "end_reason = ?, title = ?, model = ? WHERE no = ?",
        seq,
        len(live),
        codec.tool_calls_in(live),
        int(rewritten),
        session.last_active,
        *ended,
        transfer.free_title(tx, session.title),
        session.model,
        no,
    )
    if session.system_prompt is not None:
        sessions.set_system_prompt(tx, session.id, session.system_prompt)


class _TakeRoute:
    """A route on its way in. Ours is never changed, unless it is as an import left it."""

    def __init__(self, route: ForeignRoute, notes: ImportNotes) -> None:
        self._route = route
        self._notes = notes

    def __call__(self, tx: Transaction) -> Taken:
        route = self._route
        ours = routes.get_route(tx, route.session_key)
        noted = key_value.get_meta(tx, self._name)
        as_left = ours is not None and noted == f"{ours.epoch} {ours.session_id}"
        tip = lineage.get_compression_tip(tx, route.session_id)
        session = sessions.get_session(tx, tip)
        if session is None:
            return self._refuse("route-without-session")
        if session.end_reason is not None and session.end_reason not in sessions.ACCIDENTS:
            if as_left:  # it is over: the next message begins a new one, and no hook hears of this
                routes.point(tx, route.session_key, tx.new_session_id())
                key_value.set_meta(tx, self._name, None)
            return self._refuse("finalized" if route.finalized else "route-ended")
        if ours is not None and ours.session_id == tip:
            return Taken("already_here")
        if ours is not None and not as_left:
            return self._refuse("route-in-use")
        self._point(tx, tip)
        return Taken("taken")

    @property
    def _name(self) -> str:
        return f"imported-route:{self._route.session_key}"

    def _refuse(self, code: str) -> Taken:
        self._notes.add(code, self._route.their_key, self._route.session_id)
        return Taken("not_taken")

    def _point(self, tx: Transaction, tip: str) -> None:
        route = self._route
        epoch = routes.point(tx, route.session_key, tip)
        tx.run(
            "UPDATE routes SET platform = ?, chat_type = ?, user_id = ?, "
            "last_active = coalesce(?, last_active) WHERE session_key = ?",
            route.platform,
            route.chat_type,
            route.user_id,
            route.last_active,
            route.session_key,
        )
        key_value.set_meta(tx, self._name, f"{epoch} {tip}")
