"""C12: whatever other processes call while a bot runs, every promise of the schema holds.

The program and its mutants are in `tests/campaigns/foreign_storm.py`, the calls of all verbs in
`foreign_calls.py`, the queries of the checker in `foreign_checks.py`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from hermes.store import SessionStore
from tests.campaigns.foreign_calls import CALLS, public_names
from tests.campaigns.foreign_checks import ALWAYS, LATER, violations
from tests.campaigns.foreign_storm import MUTANTS

ROOT = Path(__file__).parents[2]


def run_storm(path, seed, calls, *mutant):
    """Run the program and return its report."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.foreign_storm", str(path), str(seed), str(calls),
         *mutant],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_every_verb_has_a_caller():
    assert set(CALLS) == public_names(), "add a call to tests/campaigns/foreign_calls.py"


def test_foreign_calls_of_every_verb_break_no_promise(tmp_path, prove, campaign):
    for seed in campaign.seeds(range(20 if prove else 1)):
        seen = run_storm(tmp_path / f"{seed}.db", seed, 4000 if prove else 700)
        campaign.count(calls=sum(seen["done"].values()), checks=seen["checks"])
        campaign.check(seen["violations"])
        assert set(seen["done"]) == set(CALLS), "a verb was always refused"
        assert seen["accepted"] > 50
        assert seen["checks"] > 10


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_campaign_finds(path, mutant):
    assert run_storm(path, 1, 300, mutant)["violations"]


# The checker

_NEW = "INSERT INTO sessions (no, id, source, kind, started_at, last_active"
_ONE = f"{_NEW}) VALUES (1, 'a', 'x', 'new', 1, 1);"
_CHILD = f"{_NEW}, parent_no) VALUES (2, 'b', 'x', 'compression', 1, 1, 1);"
_SECOND = _CHILD.replace("(2, 'b'", "(3, 'c'")
_LINE = f"{_ONE} UPDATE sessions SET ended_at = 1, end_reason = 'compression'; {_CHILD}"
_ROW = "INSERT INTO messages (id, role, created_at) VALUES ((1 << 32) + 1, 'user', 1);"
_TURN = "INSERT INTO turns VALUES"
_INBOX = (
    "INSERT INTO inbox (platform, account, scope, session_key, session_id, epoch, accepted_at, "
    "event_id, state, body, closed_at) VALUES ('p', '', '', 'k', 's', 1, 1, "
)
_OUTBOX = (
    "INSERT INTO outbox (session_key, lane, created_at, body, turn_id, state, closed_at, note) "
    "VALUES ('k', 'l', 1, "
)
_APPROVAL = (
    "INSERT INTO approvals (asked_of, session_key, tool, arguments, asked_at, expires_at, "
    "state, shown_after, question) VALUES ('k', 'k', 't', '{}', 1, 2, "
)
CORRUPTIONS = {
    "a parent that does not exist": f"{_NEW}, parent_no) VALUES (2, 'b', 'x', 'new', 1, 1, 1)",
    "a cycle": f"{_NEW}, parent_no) VALUES (2, 'b', 'x', 'new', 1, 1, 2)",
    "a fork": f"{_LINE} {_SECOND}",
    "a continuation of a session that was not compressed": f"{_ONE} {_CHILD}",
    "a lineage that is archived in part": f"{_LINE} "
    "UPDATE sessions SET archived_at = 1 WHERE no = 1",
    "a lineage that is shared in part": f"{_LINE} INSERT INTO shared_sessions VALUES ('k', 1)",
    "a wrong message count": f"{_ONE} UPDATE sessions SET message_count = 1",
    "a wrong number of tool calls": f"{_ONE} UPDATE sessions SET tool_call_count = 1",
    "a sequence that would repeat": f"{_ONE} {_ROW}",
    "a message without a session": _ROW,
    "a message that is there twice": f"{_ONE} {_ROW} INSERT INTO arrivals (id, role, created_at) "
    "SELECT id, role, 1 FROM messages",
    "an arrival before indexed messages": f"{_ONE} {_ROW} "
    "INSERT INTO arrivals (id, role, created_at) VALUES (1 << 32, 'user', 1)",
    "a message that is not indexed": f"{_ONE} {_ROW}",
    "an index entry without its message": "INSERT INTO search_docsize VALUES (1, x'00')",
    "a message without its word forms": f"{_ONE} {_ROW}",
    "word forms without their message": "INSERT INTO stems_docsize VALUES (1, x'00')",
    "a title that a key has twice": f"{_ONE} {_NEW}) VALUES (2, 'b', 'x', 'new', 1, 1); "
    "UPDATE sessions SET title = 't', session_key = iif(no = 1, 'k', NULL); "
    "INSERT INTO shared_sessions VALUES ('k', 2)",
    "wrong totals": f"{_ONE} UPDATE sessions SET api_call_count = 1",
    "a wrong cost": f"{_ONE} UPDATE sessions SET cost = 1",
    "a route to another key's session": f"{_ONE} UPDATE sessions SET session_key = 'other'; "
    "INSERT INTO routes (session_key, session_id, epoch, last_active) VALUES ('k', 'a', 1, 1)",
    "two receipts of one event": 2 * f"{_INBOX} 'e', 'open', '', NULL);",
    "an open message without its text": f"{_INBOX} 'e', 'open', NULL, NULL)",
    "a set aside message without its text": f"{_INBOX} 'e', 'parked', NULL, 1)",
    "a finished message with its text": f"{_INBOX} 'e', 'done', '', 1)",
    "a finished message without a reply": f"{_INBOX} 'e', 'done', NULL, 1)",
    "a closed reply without a date": f"{_OUTBOX} '{{}}', 0, 'sent', NULL, NULL)",
    "a dead reply without a reason": f"{_OUTBOX} '{{}}', 0, 'dead', 1, NULL)",
    "a send without an attempt": f"{_OUTBOX} '{{}}', 0, 'sending', NULL, NULL)",
    "a reply to no message": f"{_OUTBOX} '{{}}', 7, 'sent', 1, NULL)",
    "two replies of one turn": 2 * f"""{_OUTBOX} '{{"kind":"reply"}}', 7, 'sent', 1, NULL);""",
    "a call of a finished turn": "INSERT INTO once_calls (turn_id, tool, arguments, ordinal, "
    "begun_at) VALUES (7, 't', '{}', 0, 1)",
    "a decision without a moment": f"{_APPROVAL} 'approved', 0, NULL)",
    "a question from the future": f"{_INBOX} 'e', 'open', '', NULL); "
    f"{_APPROVAL} 'pending', 9, NULL)",
    "a question without its message": f"{_APPROVAL} 'pending', 0, 7)",
    "a reset without a new session": "INSERT INTO boundaries (event, session_key, session_id, "
    "platform, reason, created_at) VALUES ('on_session_reset', 'k', 's', 'p', 'r', 1)",
    "a paired user with a wrong role": "INSERT INTO principals VALUES ('p', '', 'u', 'god', '', 1)",
    "a pairing that ends before it begins": "INSERT INTO pairings "
    "VALUES ('p', '', 'u', 'k', '{}', '', '', 2, 1)",
    "a recorded turn without a session": f"{_TURN} (9, 7, 1, 0, 1, 1, 'complete', NULL)",
    "a recorded turn of no message": f"{_ONE} {_TURN} (1, 7, 1, 0, 1, 1, 'complete', NULL)",
    "a recorded text that no session uses": "INSERT INTO contents VALUES (1, 'd', 'text')",
    "a recorded call without its text": f"{_ONE} {_INBOX} 'e', 'done', NULL, 1); {_TURN} "
    """(1, 1, 1, 0, 1, 1, 'complete', '{"calls":[[5]]}')""",
    "a lease without a token": "INSERT INTO leases VALUES ('s', 'h', 0, 1, 1)",
    "not answered": f"{_INBOX} 'e', 'open', '', NULL)",
    "not sent": f"{_OUTBOX} '{{}}', 0, 'pending', NULL, NULL)",
    "an open boundary": "INSERT INTO boundaries (event, session_key, session_id, platform, "
    "reason, created_at) VALUES ('on_session_switch', 'k', 's', 'p', 'r', 1)",
}
RELAXED = """
PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON;
DROP INDEX one_compression_child; DROP TRIGGER only_arrivals_move_into_ended_sessions;
DROP TRIGGER ended_sessions_take_no_rows;
"""
WITHOUT_IDENTITY = """
DROP TRIGGER sending_shows_a_question;
CREATE TABLE copy AS SELECT * FROM inbox; DROP TABLE inbox; ALTER TABLE copy RENAME TO inbox;
"""


@pytest.mark.mutant
@pytest.mark.parametrize("what", ALWAYS | LATER)
def test_the_checker_finds(path, what):
    SessionStore(path).close()
    assert violations(path, ALWAYS | LATER) == []
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute(RELAXED)
        if what == "two receipts of one event":
            db.execute(WITHOUT_IDENTITY)
        db.execute(CORRUPTIONS[what])
    assert what in {found.split(":")[0] for found in violations(path, ALWAYS | LATER)}
