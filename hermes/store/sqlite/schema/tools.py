"""Steps of the schema about tool calls, their approval, and turns; `schema` has the list of all."""

from __future__ import annotations

# A turn that was committed or parked never runs again, so its calls are deleted.
# An approval expires by time in any state, so 'expired' is not a stored state.
TOOLS = """
CREATE TABLE once_calls (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  turn_id INTEGER NOT NULL,
  tool TEXT NOT NULL,
  arguments TEXT NOT NULL,
  ordinal INTEGER NOT NULL,
  result TEXT,
  failed INTEGER NOT NULL DEFAULT 0 CHECK (failed IN (0, 1)),
  begun_at REAL NOT NULL,
  UNIQUE (turn_id, tool, arguments, ordinal)
) STRICT;
CREATE TRIGGER finished_turns_need_no_calls AFTER UPDATE OF state ON inbox
WHEN NEW.state <> 'open'
BEGIN DELETE FROM once_calls WHERE turn_id = NEW.id; END;
CREATE TABLE approvals (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  asked_of TEXT NOT NULL,
  session_key TEXT NOT NULL,
  session_id TEXT,
  tool TEXT NOT NULL,
  arguments TEXT NOT NULL,
  state TEXT NOT NULL DEFAULT 'pending'
    CHECK (state IN ('pending', 'approved', 'denied', 'used')),
  asked_at REAL NOT NULL,
  expires_at REAL NOT NULL
) STRICT;
CREATE INDEX approvals_open ON approvals (asked_of, id) WHERE state IN ('pending', 'approved');
CREATE INDEX approvals_due ON approvals (expires_at);
CREATE INDEX approvals_of_session ON approvals (session_id) WHERE session_id IS NOT NULL;
"""

# A command decides only about calls that its user had been shown when it was accepted. Inbox ids
# are the sequence: `shown_after` and `decided_after` are the highest one at that moment. A question
# is shown when its outbox row `question` is sent, unless that certainly failed, or when the turn
# `turn_id` ends. The questions of earlier versions are dated by the clock.
APPROVALS = """
ALTER TABLE approvals ADD COLUMN question INTEGER;
ALTER TABLE approvals ADD COLUMN turn_id INTEGER;
ALTER TABLE approvals ADD COLUMN shown_after INTEGER;
ALTER TABLE approvals ADD COLUMN decided_after INTEGER;
UPDATE approvals SET shown_after =
  (SELECT coalesce(max(id), 0) FROM inbox WHERE accepted_at < asked_at);
CREATE INDEX approvals_by_question ON approvals (question) WHERE question IS NOT NULL;
CREATE INDEX approvals_by_turn ON approvals (turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX approvals_decided ON approvals (asked_of, decided_after) WHERE decided_after NOT NULL;
CREATE TRIGGER sending_shows_a_question AFTER UPDATE OF state ON outbox
WHEN OLD.state = 'pending' AND NEW.state = 'sending' BEGIN
  UPDATE approvals SET shown_after = (SELECT coalesce(max(id), 0) FROM inbox)
  WHERE question = NEW.id AND shown_after IS NULL; END;
CREATE TRIGGER an_unsent_question_is_not_shown AFTER UPDATE OF state ON outbox
WHEN OLD.state = 'sending' AND NEW.state IN ('pending', 'dead') AND NOT NEW.recovered
BEGIN UPDATE approvals SET shown_after = NULL WHERE question = NEW.id; END;
CREATE TRIGGER a_reply_shows_its_questions AFTER UPDATE OF state ON inbox
WHEN NEW.state <> 'open'
BEGIN UPDATE approvals SET shown_after = (SELECT max(id) FROM inbox) WHERE turn_id = NEW.id; END;
"""

# A question without an outbox row is shown by whoever delivers it to the user, and says so. Then
# `shown_after` is the highest inbox id that it knew, but at least `asked_after`, the highest one
# when the question was asked.
QUESTIONS = """
DROP TRIGGER a_reply_shows_its_questions;
DROP INDEX approvals_by_turn;
ALTER TABLE approvals DROP COLUMN turn_id;
ALTER TABLE approvals ADD COLUMN asked_after INTEGER NOT NULL DEFAULT 0;
"""

# Tools that a user has allowed in a conversation for good.
ALLOWED = """
CREATE TABLE allowed_tools (
  session_key TEXT NOT NULL,
  tool TEXT NOT NULL,
  allowed_at REAL NOT NULL,
  PRIMARY KEY (session_key, tool)
) STRICT, WITHOUT ROWID;
"""

# What is recorded of a turn: `details` has its model calls and events as JSON
# (recordings/rows.py). The rows of the turn are `row_count` messages from `first_id` on. A text
# that is not a row (a system prompt, tools, what is injected) is stored once, and kept while a
# session has a turn that names it. Both are deleted with their session. Rows of `turns` are long:
# in a table without rowids, the end of most would take a page of its own.
TURNS = """
CREATE TABLE turns (
  session_no INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
  id INTEGER NOT NULL,
  first_id INTEGER NOT NULL,
  row_count INTEGER NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL NOT NULL,
  status TEXT NOT NULL,
  details TEXT,
  PRIMARY KEY (session_no, id)
) STRICT;
CREATE TABLE contents (
  id INTEGER PRIMARY KEY,
  digest TEXT NOT NULL UNIQUE,
  content TEXT NOT NULL
) STRICT;
CREATE TABLE session_contents (
  session_no INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
  content_id INTEGER NOT NULL REFERENCES contents (id),
  PRIMARY KEY (session_no, content_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_of_content ON session_contents (content_id);
"""
