"""What must hold in a database at any moment, as SQL: each query finds nothing in a sound file.

The queries say what the schema promises beyond its constraints, and repeat the constraints that a
campaign may remove. `LATER` holds once a runtime has had time to answer and send everything.
"""

from __future__ import annotations

import contextlib

import apsw

_CALLS = "coalesce(json_array_length(m.extra, '$.tool_calls'), 0)"
_OWN = (
    "WITH own (session_key, no) AS (SELECT session_key, no FROM sessions WHERE session_key NOTNULL "
    "UNION SELECT session_key, session_no FROM shared_sessions) "
)
ALWAYS = {
    "a parent that does not exist": "SELECT id FROM sessions "
    "WHERE parent_no NOTNULL AND parent_no NOT IN (SELECT no FROM sessions)",
    "a cycle": "SELECT id FROM sessions WHERE parent_no >= no",
    "a fork": "SELECT parent_no FROM sessions WHERE kind = 'compression' "
    "GROUP BY 1 HAVING count(*) > 1",
    "a continuation of a session that was not compressed": "SELECT c.id FROM sessions c "
    "LEFT JOIN sessions p ON p.no = c.parent_no "
    "WHERE c.kind = 'compression' AND p.end_reason IS NOT 'compression'",
    "a lineage that is archived in part": "SELECT c.id FROM sessions c "
    "JOIN sessions p ON p.no = c.parent_no "
    "WHERE c.kind = 'compression' AND (c.archived_at ISNULL) <> (p.archived_at ISNULL)",
    "a lineage that is shared in part": f"{_OWN} SELECT p.id, x.session_key FROM sessions c "
    "JOIN sessions p ON p.no = c.parent_no JOIN own x ON x.no = p.no "
    "WHERE c.kind = 'compression' AND (x.session_key, c.no) NOT IN (SELECT * FROM own)",
    "a wrong message count": "SELECT s.id, s.message_count FROM sessions s "
    "WHERE s.message_count <> (SELECT count(*) FROM all_messages m "
    "WHERE m.id >> 32 = s.no AND m.live = 1)",
    "a wrong number of tool calls": "SELECT s.id, s.tool_call_count FROM sessions s "
    f"WHERE s.tool_call_count <> (SELECT coalesce(sum({_CALLS}), 0) FROM all_messages m "
    "WHERE m.id >> 32 = s.no AND m.live = 1)",
    "a sequence that would repeat": "SELECT s.id FROM sessions s WHERE s.seq < "
    "(SELECT coalesce(max(m.id & 4294967295), 0) FROM all_messages m WHERE m.id >> 32 = s.no)",
    "a message without a session": "SELECT id FROM all_messages "
    "WHERE id >> 32 NOT IN (SELECT no FROM sessions)",
    "a message that is there twice": "SELECT id FROM messages "
    "WHERE id IN (SELECT id FROM arrivals)",
    "an arrival before indexed messages": "SELECT a.id FROM arrivals a "
    "WHERE a.id < (SELECT max(m.id) FROM messages m WHERE m.id >> 32 = a.id >> 32)",
    "a message that is not indexed": "SELECT id FROM messages "
    "WHERE id NOT IN (SELECT id FROM search_docsize)",
    "an index entry without its message": "SELECT id FROM search_docsize "
    "WHERE id NOT IN (SELECT id FROM messages)",
    "a message without its word forms": "SELECT id FROM messages "
    "WHERE id > coalesce((SELECT upto FROM stems_left), -1) "
    "AND id NOT IN (SELECT id FROM stems_docsize)",
    "word forms without their message": "SELECT id FROM stems_docsize "
    "WHERE id NOT IN (SELECT id FROM messages)",
    "a title that a key has twice": f"{_OWN} SELECT x.session_key, s.title FROM own x "
    "JOIN sessions s ON s.no = x.no WHERE s.title NOTNULL GROUP BY 1, 2 HAVING count(*) > 1",
    "wrong totals": "SELECT s.id FROM sessions s WHERE (s.api_call_count, s.input_tokens) <> "
    "(SELECT count(*), coalesce(sum(u.input_tokens), 0) FROM usage u "
    "WHERE u.session_no = s.no AND u.purpose NOT IN ('summary', 'title'))",
    "a wrong cost": "SELECT s.id, s.cost FROM sessions s WHERE abs(s.cost - "
    "(SELECT total(u.cost) FROM usage u WHERE u.session_no = s.no)) > 0.001",
    "a route to another key's session": "SELECT r.session_key, s.id FROM routes r "
    "JOIN sessions s ON s.id = r.session_id WHERE s.session_key <> r.session_key AND NOT EXISTS "
    "(SELECT 1 FROM shared_sessions x WHERE x.session_no = s.no AND x.session_key = r.session_key)",
    "two receipts of one event": "SELECT event_id FROM inbox "
    "GROUP BY platform, account, event_id, scope HAVING count(*) > 1",
    "an open message without its text": "SELECT id FROM inbox "
    "WHERE state = 'open' AND (body ISNULL OR closed_at NOTNULL)",
    "a set aside message without its text": "SELECT id FROM inbox "
    "WHERE state = 'parked' AND (body ISNULL OR closed_at ISNULL)",
    "a finished message with its text": "SELECT id FROM inbox "
    "WHERE state = 'done' AND (body NOTNULL OR closed_at ISNULL)",
    "a finished message without a reply": "SELECT m.id FROM inbox m "
    "LEFT JOIN inbox t ON t.id = m.turn_id WHERE m.state <> 'open' AND t.reply ISNULL",
    "a closed reply without a date": "SELECT id FROM outbox "
    "WHERE (state IN ('sent', 'dead')) <> (closed_at NOTNULL)",
    "a dead reply without a reason": "SELECT id FROM outbox WHERE state = 'dead' AND note ISNULL",
    "a send without an attempt": "SELECT id FROM outbox WHERE state = 'sending' AND attempts < 1",
    "a reply to no message": "SELECT id FROM outbox "
    "WHERE turn_id <> 0 AND turn_id NOT IN (SELECT id FROM inbox)",
    "two replies of one turn": "SELECT turn_id FROM outbox "
    "WHERE json_extract(body, '$.kind') = 'reply' GROUP BY 1 HAVING count(*) > 1",
    "a call of a finished turn": "SELECT c.id FROM once_calls c "
    "LEFT JOIN inbox i ON i.id = c.turn_id WHERE i.state IS NOT 'open'",
    "a decision without a moment": "SELECT id FROM approvals "
    "WHERE (state = 'pending') <> (decided_after ISNULL)",
    "a question from the future": "SELECT id FROM approvals "
    "WHERE shown_after > (SELECT seq FROM sqlite_sequence WHERE name = 'inbox')",
    "a question without its message": "SELECT id FROM approvals "
    "WHERE question NOTNULL AND question NOT IN (SELECT id FROM outbox)",
    "a reset without a new session": "SELECT id FROM boundaries "
    "WHERE event = 'on_session_reset' AND new_session_id ISNULL",
    "a paired user with a wrong role": "SELECT user_id FROM principals "
    "WHERE role NOT IN ('user', 'operator')",
    "a pairing that ends before it begins": "SELECT user_id FROM pairings "
    "WHERE expires_at <= asked_at",
    "a recorded turn without a session": "SELECT id FROM turns "
    "WHERE session_no NOT IN (SELECT no FROM sessions)",
    "a recorded turn of no message": "SELECT id FROM turns WHERE id NOT IN (SELECT id FROM inbox)",
    "a recorded text that no session uses": "SELECT id FROM contents "
    "WHERE id NOT IN (SELECT content_id FROM session_contents)",
    "a recorded call without its text": "SELECT t.id FROM turns t "
    "JOIN json_each(t.details, '$.calls') c WHERE json_extract(c.value, '$[0]') NOT IN "
    "(SELECT content_id FROM session_contents u WHERE u.session_no = t.session_no)",
    "a lease without a token": "SELECT session_id FROM leases WHERE token < 1",
}
LATER = {
    "not answered": "SELECT id FROM inbox WHERE state = 'open'",
    "not sent": "SELECT id, state FROM outbox WHERE state IN ('pending', 'sending')",
    "an open boundary": "SELECT id FROM boundaries WHERE closed_at ISNULL",
}


def violations(path, queries):
    """Return what the queries find, all in one read transaction of another connection."""
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        db.set_busy_timeout(10_000)
        db.execute("BEGIN")
        return [
            f"{what}: {row}"
            for what, sql in queries.items()
            for row in db.execute(sql).fetchall()[:3]
        ]


def lost(path, accepted):
    """Return the acknowledged messages whose receipt is not in the file as it was given."""
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        stored = dict(db.execute("SELECT event_id, id FROM inbox").fetchall())
    return [f"{event} was acknowledged as {i}" for event, i in accepted if stored.get(event) != i]
