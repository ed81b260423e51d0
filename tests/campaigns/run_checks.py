"""What must hold in the file after the lives of `run_driver`.

The checks read only the database and the log of acknowledgements.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw

from hermes.store import SessionStore
from tests.campaigns.invariants import NONE_OF, session_violations
from tests.campaigns.run_driver import DELETING, Prompt

SOUND = {
    **{
        what: NONE_OF[what]
        for what in (
            "without a reply", "a fork", "an end without a child", "a route to an ended session",
            "two keys in one session", "an open boundary", "a lease",
        )
    },
    "not answered": "SELECT id, event_id FROM inbox WHERE state = 'open'",
    "one event twice": "SELECT event_id FROM inbox GROUP BY 1 HAVING count(*) > 1",
}  # fmt: skip
"""Queries that find nothing in a sound file."""
TOLD = frozenset({"refused", "failed", "interrupted", "parked"})
"""How a message may end that is in no transcript: its sender was told."""
OUTCOMES = (
    "SELECT m.id, m.event_id, iif(m.state = 'parked', 'parked', t.reply ->> '$.status') "
    "FROM inbox m LEFT JOIN inbox t ON t.id = m.turn_id"
)
STORED = (
    "SELECT DISTINCT CAST(substr(content, 1, 4) AS INTEGER), s.no, s.parent_no "
    "FROM all_messages m JOIN sessions s ON s.no = m.id >> 32 "
    "WHERE role = 'user' AND content GLOB '[0-9][0-9][0-9][0-9] *'"
)


def violations(path: Path, log: Sequence[Prompt]) -> list[str]:
    """Return everything that contradicts the guarantees, after everything was answered."""
    with SessionStore(path) as store, contextlib.closing(apsw.Connection(str(path))) as db:
        found = [f"{what}: {row}" for what, sql in SOUND.items() for row in db.execute(sql)]
        found += lost(db, log)
        found += twice(db, {each.number for each in log if each.chat == DELETING})
        inbox = {
            event.rpartition(":")[2]: number
            for number, event, _ in db.execute(OUTCOMES)
            if not event.startswith("background:")
        }
        queued = {f"e{each.number}" for each in log if each.busy != "steer" and not each.command}
        for (session_id,) in db.execute("SELECT id FROM sessions").fetchall():
            found += session_violations(store, session_id, inbox, queued)
        found += store.integrity_check()
        if (wrong := store.check_search()) is not None:
            found.append(f"search: {wrong}")
    return found


def lost(db: apsw.Connection, log: Sequence[Prompt]) -> Iterator[str]:
    """Yield acknowledged messages that are not there, or in no transcript without a word."""
    outcomes = {number: (event, status) for number, event, status in db.execute(OUTCOMES)}
    by_event = dict(outcomes.values())
    stored = {number for number, _, _ in db.execute(STORED)}
    for prompt in log:
        event, status = outcomes.get(prompt.message_id, (None, None))
        if event != f"{prompt.chat}:{prompt.event_id}":
            yield f"{prompt} was acknowledged, and message {prompt.message_id} is {event}"
            continue
        if prompt.command == "background" and status == "command":
            status = by_event.get(f"background:{prompt.message_id}")
            told = (prompt.answer or {}).get("text", "").startswith("That did not work")
            status = "refused" if status is None and told else status
        carries = prompt.command in {None, "queue", "steer", "background"}
        carries &= prompt.chat != DELETING
        if carries and status not in TOLD and prompt.number not in stored:
            yield f"{prompt} is in no transcript, and its status is {status}"


def twice(db: apsw.Connection, ignored: set[int]) -> Iterator[str]:
    """Yield messages that were stored by two turns, except for those with an ignored number.

    Branches and compressions copy rows from a parent session, so the sessions that have a message
    must be one tree. (`session_violations` finds a message that one session has twice.)
    """
    sessions: dict[int, dict[int, int]] = defaultdict(dict)
    for number, session, parent in db.execute(STORED):
        sessions[number][session] = parent
    for number, parents in sessions.items():
        roots = [session for session, parent in parents.items() if parent not in parents]
        if len(roots) != 1 and number not in ignored:
            yield f"{number:04} was stored by {len(roots)} turns: {parents}"


def statistics(path: Path) -> Counter[str]:
    """Return what happened in the file, to see that the campaign did something."""
    queries = {
        "rotations": "SELECT count(*) FROM sessions WHERE kind = 'compression'",
        "branches": "SELECT count(*) FROM sessions WHERE kind = 'branch'",
        "approvals": "SELECT count(*) FROM approvals WHERE state <> 'pending'",
        "parked": "SELECT count(*) FROM inbox WHERE state = 'parked'",
        "hidden": "SELECT count(*) FROM messages WHERE NOT live",
    }
    with contextlib.closing(apsw.Connection(str(path))) as db:
        return Counter({what: next(db.execute(sql))[0] for what, sql in queries.items()})
