"""The tables, as an append-only list of migrations: a released migration is never edited."""

from __future__ import annotations

from hermes.store.sqlite.schema.files import ATTACHMENTS, RESPONSES, WEB_SESSIONS
from hermes.store.sqlite.schema.tools import ALLOWED, APPROVALS, QUESTIONS, TOOLS, TURNS

APPLICATION_ID = 0x48524D53  # "HRMS"
COPY_ID = 0x48524D43  # "HRMC": an incomplete copy of a store, which is no store yet

# The id of a message consists of the number of its session and a sequence number: no << 32 | seq.
# So a transcript is one contiguous range of the table, and the id is the rowid of the search index.
# With a hundred active sessions, each commit would write to a hundred pages. So a new row is first
# appended to `arrivals`; a little later, many rows are moved to `messages` and indexed at once.
# This writes 0.3 pages per append instead of 2.1.
# The rows of a session in `arrivals` always follow its rows in `messages`.
# A parent is always older than its child, so the lineage cannot contain a cycle.
CONVERSATIONS = """
CREATE TABLE sessions (
  no INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE CHECK (length(id) BETWEEN 1 AND 200),
  source TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('new', 'compression', 'branch', 'fork', 'import')),
  parent_no INTEGER REFERENCES sessions (no) ON DELETE SET NULL CHECK (parent_no < no),
  title TEXT,
  model TEXT,
  user_id TEXT,
  session_key TEXT,
  chat_id TEXT,
  chat_type TEXT,
  thread_id TEXT,
  cwd TEXT,
  profile TEXT,
  started_at REAL NOT NULL,
  ended_at REAL,
  end_reason TEXT,
  last_active REAL NOT NULL,
  seq INTEGER NOT NULL DEFAULT 0,
  message_count INTEGER NOT NULL DEFAULT 0,
  tool_call_count INTEGER NOT NULL DEFAULT 0,
  revision INTEGER NOT NULL DEFAULT 0,
  rewrites INTEGER NOT NULL DEFAULT 0,
  api_call_count INTEGER NOT NULL DEFAULT 0,
  input_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0,
  cache_read_tokens INTEGER NOT NULL DEFAULT 0,
  cache_write_tokens INTEGER NOT NULL DEFAULT 0,
  reasoning_tokens INTEGER NOT NULL DEFAULT 0,
  cost REAL NOT NULL DEFAULT 0,
  rotation_id TEXT,
  CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) STRICT;
CREATE UNIQUE INDEX one_title ON sessions (title) WHERE title IS NOT NULL;
CREATE UNIQUE INDEX one_compression_child ON sessions (parent_no) WHERE kind = 'compression';
CREATE INDEX children ON sessions (parent_no) WHERE parent_no IS NOT NULL;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX sessions_of_key ON sessions (session_key, started_at) WHERE session_key IS NOT NULL;
-- Long texts live apart, so that counting a message does not rewrite them.
CREATE TABLE session_texts (
  session_no INTEGER PRIMARY KEY REFERENCES sessions (no) ON DELETE CASCADE,
  system_prompt TEXT,
  model_config TEXT
) STRICT;
CREATE TABLE messages (
  id INTEGER PRIMARY KEY,
  role TEXT NOT NULL,
  content TEXT,
  created_at REAL NOT NULL,
  platform_message_id TEXT,
  live INTEGER NOT NULL DEFAULT 1 CHECK (live IN (0, 1)),
  extra TEXT
) STRICT;
CREATE UNIQUE INDEX one_platform_message ON messages (id >> 32, platform_message_id)
  WHERE platform_message_id IS NOT NULL AND live = 1;
CREATE TABLE arrivals (
  n INTEGER PRIMARY KEY,
  id INTEGER NOT NULL UNIQUE,
  role TEXT NOT NULL,
  content TEXT,
  created_at REAL NOT NULL,
  platform_message_id TEXT,
  extra TEXT
) STRICT;
CREATE UNIQUE INDEX one_platform_arrival ON arrivals (id >> 32, platform_message_id)
  WHERE platform_message_id IS NOT NULL;
CREATE TRIGGER ended_sessions_take_no_rows BEFORE INSERT ON arrivals
WHEN (SELECT ended_at IS NOT NULL FROM sessions WHERE no = NEW.id >> 32) IS NOT 0
BEGIN SELECT RAISE(ABORT, 'the session has ended or does not exist'); END;
CREATE TRIGGER only_arrivals_move_into_ended_sessions BEFORE INSERT ON messages
WHEN (SELECT ended_at IS NOT NULL FROM sessions WHERE no = NEW.id >> 32) IS NOT 0
  AND NOT EXISTS (SELECT 1 FROM arrivals WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'the session has ended or does not exist'); END;
CREATE VIEW all_messages AS
SELECT id, role, content, created_at, platform_message_id, live, extra FROM messages
UNION ALL
SELECT id, role, content, created_at, platform_message_id, 1, extra FROM arrivals;
CREATE TABLE usage (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  session_no INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
  turn_id INTEGER,
  purpose TEXT NOT NULL,
  model TEXT,
  provider TEXT,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cache_read_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  cost REAL,
  created_at REAL NOT NULL
) STRICT;
CREATE INDEX usage_of_session ON usage (session_no, id);
-- `expires` is on the machine's steady clock, so that setting the date ends nobody's lease.
CREATE TABLE leases (
  session_id TEXT PRIMARY KEY,
  holder TEXT,
  token INTEGER NOT NULL,
  expires REAL NOT NULL,
  ttl REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

RUNTIME = """
CREATE TABLE routes (
  session_key TEXT PRIMARY KEY CHECK (length(session_key) BETWEEN 1 AND 1000),
  session_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  platform TEXT NOT NULL DEFAULT 'embedded',
  chat_type TEXT NOT NULL DEFAULT 'dm',
  user_id TEXT,
  pending_title TEXT,
  notice TEXT,
  expires_at REAL,
  last_active REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX routes_of_session ON routes (session_id);
CREATE INDEX routes_due ON routes (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE inbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  platform TEXT NOT NULL,
  account TEXT NOT NULL,
  event_id TEXT NOT NULL,
  session_key TEXT NOT NULL,
  session_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  body TEXT,
  accepted_at REAL NOT NULL,
  state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done', 'parked')),
  attempts INTEGER NOT NULL DEFAULT 0,
  closed_at REAL,
  note TEXT,
  UNIQUE (platform, account, event_id)
) STRICT;
CREATE INDEX inbox_open ON inbox (session_key, id) WHERE state = 'open';
CREATE INDEX inbox_closed ON inbox (closed_at) WHERE closed_at IS NOT NULL;
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  session_key TEXT NOT NULL,
  turn_id INTEGER NOT NULL,
  lane TEXT NOT NULL,
  body TEXT NOT NULL,
  state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'sent', 'dead')),
  attempts INTEGER NOT NULL DEFAULT 0,
  recovered INTEGER NOT NULL DEFAULT 0 CHECK (recovered IN (0, 1)),
  created_at REAL NOT NULL,
  closed_at REAL,
  note TEXT
) STRICT;
CREATE INDEX outbox_open ON outbox (lane, id) WHERE state IN ('pending', 'sending');
CREATE INDEX outbox_closed ON outbox (closed_at) WHERE closed_at IS NOT NULL;
CREATE TABLE boundaries (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  event TEXT NOT NULL,
  session_key TEXT NOT NULL,
  session_id TEXT NOT NULL,
  platform TEXT NOT NULL,
  reason TEXT NOT NULL,
  old_session_id TEXT,
  new_session_id TEXT,
  created_at REAL NOT NULL,
  closed_at REAL,
  error TEXT
) STRICT;
CREATE INDEX boundaries_open ON boundaries (id) WHERE closed_at IS NULL;
CREATE INDEX boundaries_closed ON boundaries (closed_at) WHERE closed_at IS NOT NULL;
"""

# Indexed text never changes: an edit is a new row. The index takes its text from the messages, so
# it can be rebuilt from them. The SQL functions are registered per connection (search.py).
# hermes_words separates Chinese characters: unicode61 would take a run of them for one word.
SEARCH = """
CREATE VIEW message_text (id, content, tools) AS
SELECT id, hermes_words(content), hermes_tools(extra) FROM messages;
CREATE VIRTUAL TABLE search USING fts5 (
  content, tools, content = 'message_text', content_rowid = 'id', tokenize = 'unicode61'
);
INSERT INTO search (search) VALUES ('rebuild');
"""

# Budgets read the cost of the current day before each call.
LEDGER = """
CREATE INDEX usage_by_time ON usage (created_at);
"""

# A long reply is sent in parts, and parts that arrived are not sent again. The index finds the few
# replies that were given up among the many that were sent.
DELIVERY = """
ALTER TABLE outbox ADD COLUMN parts_sent INTEGER NOT NULL DEFAULT 0;
CREATE INDEX outbox_dead ON outbox (closed_at) WHERE state = 'dead';
"""

# Paired users, pairing requests, and operators who entered wrong codes. The code itself is not
# stored. `name` is self-declared and only displayed.
ADMISSION = """
CREATE TABLE principals (
  platform TEXT NOT NULL,
  account TEXT NOT NULL,
  user_id TEXT NOT NULL CHECK (length(user_id) > 0),
  role TEXT NOT NULL CHECK (role IN ('user', 'operator')),
  name TEXT,
  paired_at REAL NOT NULL,
  PRIMARY KEY (platform, account, user_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE pairings (
  platform TEXT NOT NULL,
  account TEXT NOT NULL,
  user_id TEXT NOT NULL CHECK (length(user_id) > 0),
  session_key TEXT NOT NULL,
  source TEXT NOT NULL,
  salt TEXT NOT NULL,
  digest TEXT NOT NULL,
  asked_at REAL NOT NULL,
  expires_at REAL NOT NULL,
  PRIMARY KEY (platform, account, user_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE wrong_codes (
  platform TEXT NOT NULL,
  account TEXT NOT NULL,
  user_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  latest REAL NOT NULL,
  PRIMARY KEY (platform, account, user_id)
) STRICT, WITHOUT ROWID;
"""

# The payer of a call is the user who asked, since many users may share a conversation.
PAYERS = """
ALTER TABLE usage ADD COLUMN payer TEXT;
UPDATE usage SET payer =
  (SELECT source || '/' || coalesce(user_id, '') FROM sessions WHERE no = session_no);
"""

# `scope` is the session_key if the event id is unique within its conversation only, else ''. The
# digest tells a repeated event from another one with the same id; NULL in older rows. Inbox ids are
# turn ids, so the table keeps them and their sequence.
IDENTITY = """
CREATE TABLE new_inbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  platform TEXT NOT NULL,
  account TEXT NOT NULL,
  event_id TEXT NOT NULL,
  scope TEXT NOT NULL,
  digest TEXT,
  session_key TEXT NOT NULL,
  session_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  body TEXT,
  accepted_at REAL NOT NULL,
  state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done', 'parked')),
  attempts INTEGER NOT NULL DEFAULT 0,
  closed_at REAL,
  note TEXT,
  UNIQUE (platform, account, event_id, scope)
) STRICT;
INSERT INTO new_inbox (
  id, platform, account, event_id, scope, session_key, session_id, epoch, body, accepted_at, state,
  attempts, closed_at, note
) SELECT
  id, platform, account, event_id, '', session_key, session_id, epoch, body, accepted_at, state,
  attempts, closed_at, note
FROM inbox ORDER BY id;
DELETE FROM sqlite_sequence WHERE name = 'new_inbox';
INSERT INTO sqlite_sequence (name, seq)
SELECT 'new_inbox', seq FROM sqlite_sequence WHERE name = 'inbox';
DROP TABLE inbox;
ALTER TABLE new_inbox RENAME TO inbox;
CREATE INDEX inbox_open ON inbox (session_key, id) WHERE state = 'open';
CREATE INDEX inbox_closed ON inbox (closed_at) WHERE closed_at IS NOT NULL;
CREATE TRIGGER finished_turns_need_no_calls AFTER UPDATE OF state ON inbox
WHEN NEW.state <> 'open'
BEGIN DELETE FROM once_calls WHERE turn_id = NEW.id; END;
"""

# Titles are unique per session_key; sessions without a key share one namespace. A session belongs
# to the key in its row and to the keys in `shared_sessions`: until now a key could be moved to any
# session, so a session is shared with each key whose route names its lineage.
# A platform id is no identity: platforms edit messages, and their ids may start again. A repeated
# event is recognized in the inbox, where `reply` answers its sender again. A message with another
# `turn_id` was answered by that turn, together with others.
# `compacted` rows are hidden because hermes-agent summarized them; they are still searched.
OWNERSHIP = """
DROP INDEX one_title;
CREATE UNIQUE INDEX one_title ON sessions (title, coalesce(session_key, ''))
  WHERE title IS NOT NULL;
ALTER TABLE sessions ADD COLUMN subagent INTEGER NOT NULL DEFAULT 0 CHECK (subagent IN (0, 1));
ALTER TABLE sessions ADD COLUMN archived_at REAL;
CREATE TABLE shared_sessions (
  session_key TEXT NOT NULL,
  session_no INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
  PRIMARY KEY (session_key, session_no)
) STRICT, WITHOUT ROWID;
CREATE INDEX shared_by_session ON shared_sessions (session_no);
INSERT INTO shared_sessions (session_key, session_no)
WITH RECURSIVE up (session_key, no, parent_no, kind) AS (
  SELECT r.session_key, s.no, s.parent_no, s.kind
  FROM routes r JOIN sessions s ON s.id = r.session_id WHERE s.session_key IS NOT r.session_key
  UNION
  SELECT up.session_key, s.no, s.parent_no, s.kind
  FROM up JOIN sessions s ON s.no = up.parent_no WHERE up.kind = 'compression'
), line (session_key, no) AS (
  SELECT session_key, no FROM up
  UNION
  SELECT line.session_key, s.no
  FROM line JOIN sessions s ON s.parent_no = line.no AND s.kind = 'compression'
)
SELECT session_key, no FROM line;
DROP INDEX one_platform_message;
DROP INDEX one_platform_arrival;
CREATE INDEX platform_messages ON messages (id >> 32, platform_message_id)
  WHERE platform_message_id IS NOT NULL AND live = 1;
CREATE INDEX platform_arrivals ON arrivals (id >> 32, platform_message_id)
  WHERE platform_message_id IS NOT NULL;
ALTER TABLE messages ADD COLUMN compacted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE inbox ADD COLUMN turn_id INTEGER;
ALTER TABLE inbox ADD COLUMN reply TEXT;
ALTER TABLE routes ADD COLUMN settings TEXT;
ALTER TABLE boundaries ADD COLUMN metadata TEXT;
"""

# `stems` finds other forms of a word: "heron" finds "herons". Phrases and prefixes are searched in
# `search`. Messages up to `stems_left` are not in it yet: after the upgrade they are added in
# steps, newest first (word_forms.py). The table is empty when all are.
WORD_FORMS = """
CREATE VIRTUAL TABLE stems USING fts5 (
  content, tools, content = 'message_text', content_rowid = 'id', tokenize = 'porter unicode61'
);
CREATE TABLE stems_left (upto INTEGER NOT NULL) STRICT;
INSERT INTO stems_left SELECT max(id) FROM messages HAVING count(*) > 0;
"""

MIGRATIONS: tuple[str, ...] = (
    CONVERSATIONS, RUNTIME, SEARCH, TOOLS, LEDGER, DELIVERY, ADMISSION, PAYERS, IDENTITY, OWNERSHIP,
    APPROVALS, QUESTIONS, ALLOWED, WORD_FORMS, ATTACHMENTS, RESPONSES, WEB_SESSIONS, TURNS,
)  # fmt: skip
