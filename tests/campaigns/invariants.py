"""What must hold in a database after everything was done, whatever happened before.

The checks read only the file and the log of acknowledgements. Messages of a campaign begin with
four digits, the number of their event: event `e12` says "0012 …".
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import apsw
import attrs

from hermes.store import SessionStore
from hermes.texts import ENGLISH
from hermes.transcript.render import is_valid, render

CANCELLED = re.compile(r"(\d+) queued messages? w")
NUMBERED = re.compile(r"\d{4} ")
NONE_OF = {
    "not done": "SELECT id, state FROM inbox WHERE state <> 'done'",
    "without a reply": "SELECT m.id FROM inbox m LEFT JOIN inbox t ON t.id = m.turn_id "
    "WHERE t.reply IS NULL",
    "not sent": "SELECT id, state FROM outbox WHERE state <> 'sent'",
    "two replies of one turn": "SELECT turn_id FROM outbox "
    "WHERE json_extract(body, '$.kind') = 'reply' GROUP BY 1 HAVING count(*) > 1",
    "an answer that was not sent": "SELECT content FROM all_messages WHERE role = 'assistant' AND "
    "content LIKE 'well, _%' AND content NOT IN (SELECT body ->> '$.text' FROM outbox)",
    "a fork": "SELECT parent_no FROM sessions WHERE kind = 'compression' "
    "GROUP BY 1 HAVING count(*) > 1",
    "an end without a child": "SELECT id FROM sessions p WHERE end_reason = 'compression' AND "
    "NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_no = p.no AND c.kind = 'compression')",
    "a route to an ended session": "SELECT r.session_key FROM routes r "
    "JOIN sessions s ON s.id = r.session_id WHERE s.ended_at IS NOT NULL",
    "two keys in one session": "SELECT session_id FROM routes GROUP BY 1 HAVING count(*) > 1",
    "an open boundary": "SELECT id FROM boundaries WHERE closed_at IS NULL",
    "a lease": "SELECT session_id FROM leases WHERE holder IS NOT NULL",
}
"""Queries that find nothing in a sound file."""


@attrs.frozen
class Entry:
    """An acknowledgement."""

    event_id: str
    session_key: str
    inbox_id: int
    command: bool
    when_busy: str | None


def violations(path: Path, log: Sequence[Entry]) -> list[str]:
    """Return everything in a file that contradicts the guarantees."""
    with (
        SessionStore(path) as store,
        contextlib.closing(apsw.Connection(str(path))) as db,
    ):
        inbox = dict(db.execute("SELECT event_id, id FROM inbox"))
        found = list(_acknowledged(log, inbox))
        for what, sql in NONE_OF.items():
            found += [f"{what}: {row}" for row in db.execute(sql)]
        steering = {entry.event_id for entry in log if entry.when_busy == "steer"}
        acknowledged = {entry.event_id for entry in log}
        for (session_id,) in db.execute("SELECT id FROM sessions").fetchall():
            found += session_violations(store, session_id, inbox, acknowledged - steering)
        found += _told(db, log)
        found += store.integrity_check()
        if (wrong := store.check_search()) is not None:
            found.append(f"search: {wrong}")
    return found


def _acknowledged(log: Sequence[Entry], inbox: Mapping[str, int]) -> Iterator[str]:
    """Yield messages that are not in the file, or have two receipts."""
    for entry in log:
        if inbox.get(entry.event_id) != entry.inbox_id:
            yield f"{entry.event_id} was acknowledged as {entry.inbox_id}, and is not there"


def session_violations(
    store: SessionStore, session_id: str, inbox: Mapping[str, int], ordered: set[str]
) -> Iterator[str]:
    """Yield what is wrong with one transcript."""
    rows = store.get_messages(session_id)
    every = store.get_messages(session_id, include_rewound=True)
    if store.get_session(session_id).message_count != len(rows):
        yield f"{session_id} counts its messages wrongly"
    if (wrong := is_valid(render(rows))) is not None:
        yield f"{session_id} is no valid transcript: {wrong}"
    if [row.id for row in every] != sorted(row.id for row in every):
        yield f"{session_id} is not sorted"
    live = [row.content[:4] for row in rows if _is_numbered(row)]
    yield from (f"{n} is twice in {session_id}" for n, times in Counter(live).items() if times > 1)
    # A retry, an edit and a compression write messages again: the first time counts. A steering
    # message is part of the running turn, before messages that wait for the next one.
    said = dict.fromkeys(f"e{int(row.content[:4])}" for row in every if _is_numbered(row))
    yield from (f"{event} was not accepted" for event in said if event not in inbox)
    places = [inbox[event] for event in said if event in inbox and event in ordered]
    if places != sorted(places):
        yield f"{session_id} is out of order: {list(said)}"


def _is_numbered(row) -> bool:
    return row.role == "user" and NUMBERED.match(row.content or "") is not None


def _told(db: apsw.Connection, log: Sequence[Entry]) -> Iterator[str]:
    """Yield messages that are in no transcript, beyond those of which the sender was told."""
    texts = [json.loads(body)["text"] for (body,) in db.execute("SELECT body FROM outbox")]
    told = sum(int(found[1]) for text in texts if (found := CANCELLED.search(text)))
    told += texts.count(ENGLISH.busy)
    stored = {row[0] for row in db.execute("SELECT substr(content, 1, 4) FROM all_messages")}
    spoken = {entry.event_id for entry in log if not entry.command}
    lost = sorted(event for event in spoken if event[1:].zfill(4) not in stored)
    if len(lost) > told:
        yield f"no sender was told about {lost}"
