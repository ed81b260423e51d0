"""What must hold in the file after a storm (see `host_storm`)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from hermes.store import SessionStore

ASKS = ("ask1", "ask2", "ask3")
"""Words that let an agent ask another conversation; how many questions follow each other."""
PARTNERS = ("k0", "k1", "k2", "k3")
"""The keys that agents ask."""
VIOLATIONS = {
    "a message without an answer": "SELECT event_id, state FROM inbox WHERE state <> 'done'",
    "a message without a stored reply": "SELECT m.event_id FROM inbox m "
    "LEFT JOIN inbox t ON t.id = m.turn_id WHERE t.reply IS NULL",
    "a reply that was not sent": "SELECT id, state FROM outbox WHERE state <> 'sent'",
    "two replies of one turn": "SELECT turn_id FROM outbox WHERE body ->> 'kind' = 'reply' "
    "GROUP BY 1 HAVING count(*) > 1",
    "two rows of one event": "SELECT event_id FROM inbox GROUP BY 1 HAVING count(*) > 1",
    "a fork": "SELECT parent_no FROM sessions WHERE kind = 'compression' "
    "GROUP BY 1 HAVING count(*) > 1",
    "an end without a child": "SELECT id FROM sessions p WHERE end_reason = 'compression' AND "
    "NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_no = p.no AND c.kind = 'compression')",
    "two keys in one session": "SELECT session_id FROM routes GROUP BY 1 HAVING count(*) > 1",
    "a route to a compressed session": "SELECT r.session_key FROM routes r "
    "JOIN sessions s ON s.id = r.session_id WHERE s.end_reason = 'compression'",
    "a key in a session of another": "SELECT r.session_key FROM routes r "
    "JOIN sessions s ON s.id = r.session_id WHERE s.session_key <> r.session_key",
    "a boundary without its hook": "SELECT id FROM boundaries WHERE closed_at IS NULL",
}
ROWS = (
    "SELECT s.no, s.parent_no, s.session_key, m.role, m.content "
    "FROM all_messages m JOIN sessions s ON s.no = m.id >> 32 WHERE m.role IN ('user', 'assistant')"
)


def partner(turn_id, hops):
    """Return the key that a turn asks."""
    return PARTNERS[(turn_id + hops) % len(PARTNERS)]


def violations(path, plan, withdrawn=()):
    """Yield what must not be in the file, or is missing, after all messages were accepted.

    `withdrawn` has the numbers of messages that clients took back before their turn.
    """
    with SessionStore(path) as store:
        rows = store.snapshot(lambda tx: tx.all(ROWS))
        inbox = store.snapshot(lambda tx: tx.all("SELECT event_id, session_key, id FROM inbox"))
        for what, sql in VIOLATIONS.items():
            found = store.snapshot(lambda tx, sql=sql: tx.all(sql))
            yield from (f"{what}: {row}" for row in found)
        yield from store.integrity_check()
    planned = {(f"e{step.number}", step.key) for step in plan}
    events, asked = {(event, key) for event, key, _ in inbox}, dict(_questions(inbox))
    yield from (f"the event {event} was lost" for event in planned - events)
    yield from (f"the event {event} is unknown" for event in events - planned - asked.items())
    yield from _transcript_violations(plan, rows, withdrawn, asked)


def _questions(inbox):
    """Yield the events that are questions of an agent: the turn exists, and asked the right key."""
    ids = {inbox_id for _, _, inbox_id in inbox}
    for event, key, _ in inbox:
        found = re.fullmatch(r"t(\d+)\.(\d)", event)
        if found is not None:
            turn_id, hops = map(int, found.groups())
            if turn_id in ids and key == partner(turn_id, hops):
                yield event, key


def _transcript_violations(plan, rows, withdrawn, asked):
    """Each text is in one transcript, once, unless it was withdrawn; so is the answer of a turn.

    `asked` has the key of each question that an agent asked.

    Branches and compressions copy rows from a parent session. So the sessions that have a row must
    be one tree, and none of them may have the row twice.
    """
    copies = defaultdict(Counter)
    keys = {**{f"{step.number:05}": step.key for step in plan}, **asked}
    parents = {no: parent for no, parent, *_ in rows}
    for no, _, key, role, content in rows:
        if (name := _name(role, content or "")) is not None:
            copies[name][no] += 1
            if role == "user" and keys.get(name) != key:
                yield f"the message {name} is in a transcript of {key}"
    for name, sessions in copies.items():
        originals = [no for no in sessions if parents[no] not in sessions]
        if len(originals) != 1 or max(sessions.values()) > 1:
            yield f"{name} was stored more than once: {dict(sessions)}"
    yield from (f"the question {name} is in no transcript" for name in asked.keys() - copies.keys())
    for step in plan:
        if (f"{step.number:05}" in copies) is (step.number in withdrawn):
            but = "was withdrawn" if step.number in withdrawn else "is in no transcript"
            yield f"the message {step.number:05} {but}"


def _name(role, content):
    """Return what identifies a row: the number of a message, or the turn and part of an answer."""
    found = re.match(r"\d{5} |t\d+\.\d " if role == "user" else r"\[\d+\.\d\]", content)
    return None if found is None else found[0].strip()
