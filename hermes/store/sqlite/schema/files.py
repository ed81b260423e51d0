"""The steps of the schema about files, API requests and sign-ins; `schema` lists all of them."""

from __future__ import annotations

# The content of a blob is named by its hash (files/contents.py). A file is a
# name for a blob, with a random id; it is kept while a session, an open message or a reply that is
# not sent names it. A session names a file if any of its rows does, a hidden one included: rows are
# deleted only with their session. A finished message is in the transcript, a sent reply too.
# `steady_at` is on the machine's steady clock, by which a sweep knows how old a file is at least.
ATTACHMENTS = """
CREATE TABLE blobs (
  hash TEXT PRIMARY KEY,
  size INTEGER NOT NULL,
  created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE files (
  id TEXT PRIMARY KEY,
  hash TEXT NOT NULL REFERENCES blobs (hash),
  size INTEGER NOT NULL,
  media_type TEXT NOT NULL,
  name TEXT,
  width INTEGER,
  height INTEGER,
  session_key TEXT,
  principal TEXT,
  created_at REAL NOT NULL,
  steady_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX files_of_blob ON files (hash);
CREATE INDEX files_of_key ON files (session_key) WHERE session_key IS NOT NULL;
CREATE INDEX files_of_principal ON files (principal) WHERE principal IS NOT NULL;
CREATE TABLE session_files (
  session_no INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
  file_id TEXT NOT NULL REFERENCES files (id),
  PRIMARY KEY (session_no, file_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_of_file ON session_files (file_id);
CREATE TABLE inbox_files (
  inbox_id INTEGER NOT NULL REFERENCES inbox (id) ON DELETE CASCADE,
  file_id TEXT NOT NULL REFERENCES files (id),
  PRIMARY KEY (inbox_id, file_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX messages_of_file ON inbox_files (file_id);
CREATE TABLE outbox_files (
  outbox_id INTEGER NOT NULL REFERENCES outbox (id) ON DELETE CASCADE,
  file_id TEXT NOT NULL REFERENCES files (id),
  PRIMARY KEY (outbox_id, file_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX replies_of_file ON outbox_files (file_id);
CREATE TRIGGER finished_messages_need_no_files AFTER UPDATE OF state ON inbox
WHEN NEW.state = 'done'
BEGIN DELETE FROM inbox_files WHERE inbox_id = NEW.id; END;
CREATE TRIGGER sent_replies_need_no_files AFTER UPDATE OF state ON outbox
WHEN NEW.state = 'sent'
BEGIN DELETE FROM outbox_files WHERE outbox_id = NEW.id; END;
"""

# The response to the request of an API client is added with its message, and deleted with the
# session of its turn (which may be another than that of the message). Messages that a command
# cancels together have one reply, in the row of the first. `connection` says whether a retry may
# attach to it: the client must have lost its connection (`cut_at`), or the process that served it
# must have died (`api_processes.alive_at` is its last sign of life). `items` are output items of
# attempts that were lost. A token is stored as a hash of its secret. A file with a purpose was
# uploaded for itself, and is kept until it is deleted.
# A request that is not stored belongs to no session. It is erased, with its message, an hour after
# a sweep has seen that it has ended (`ended_steady`, on the machine's steady clock); until then the
# message names its files. What it has cost is kept: then `usage.session_no` is NULL.
RESPONSES = """
CREATE TABLE responses (
  id TEXT PRIMARY KEY,
  credential TEXT NOT NULL,
  session_key TEXT NOT NULL,
  session_id TEXT NOT NULL,
  inbox_id INTEGER NOT NULL UNIQUE,
  path TEXT NOT NULL,
  digest TEXT NOT NULL,
  idempotency_key TEXT,
  echo TEXT NOT NULL,
  stored INTEGER NOT NULL CHECK (stored IN (0, 1)),
  created_at REAL NOT NULL,
  connection TEXT NOT NULL CHECK (connection IN ('open', 'cut', 'complete')),
  process TEXT NOT NULL,
  cut_at REAL,
  items TEXT,
  closed_at REAL,
  ended_steady REAL,
  reply TEXT
) STRICT;
CREATE UNIQUE INDEX one_idempotency_key ON responses (credential, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX interrupted_responses ON responses (credential, path, digest)
  WHERE connection <> 'complete';
CREATE INDEX responses_of_session ON responses (session_id);
CREATE INDEX unstored_responses ON responses (closed_at) WHERE stored = 0;
DROP TRIGGER finished_messages_need_no_files;
CREATE TRIGGER finished_messages_need_no_files AFTER UPDATE OF state ON inbox
WHEN NEW.state = 'done'
  AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.inbox_id = NEW.id AND r.stored = 0)
BEGIN DELETE FROM inbox_files WHERE inbox_id = NEW.id; END;
CREATE TABLE new_usage (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  session_no INTEGER REFERENCES sessions (no) ON DELETE CASCADE,
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
  created_at REAL NOT NULL,
  payer TEXT
) STRICT;
INSERT INTO new_usage SELECT id, session_no, turn_id, purpose, model, provider, input_tokens,
  output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost, created_at, payer
FROM usage;
DROP TABLE usage;
ALTER TABLE new_usage RENAME TO usage;
CREATE INDEX usage_of_session ON usage (session_no, id);
CREATE INDEX usage_by_time ON usage (created_at);
CREATE TRIGGER finished_messages_have_a_response AFTER UPDATE OF state ON inbox
WHEN NEW.state <> 'open'
BEGIN
  UPDATE responses SET
    reply = coalesce(NEW.reply, (SELECT t.reply FROM inbox t WHERE t.id = NEW.turn_id)),
    session_id = CASE WHEN NEW.reply ->> '$.messages' IS NULL THEN session_id
      ELSE NEW.reply ->> '$.session_id' END,
    closed_at = NEW.closed_at
  WHERE inbox_id = NEW.id;
END;
CREATE TABLE api_processes (id TEXT PRIMARY KEY, alive_at REAL NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  digest TEXT NOT NULL UNIQUE,
  namespace TEXT NOT NULL,
  roles TEXT NOT NULL,
  keys TEXT NOT NULL,
  created_at REAL NOT NULL,
  expires_at REAL,
  revoked_at REAL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX one_token_name ON tokens (name) WHERE revoked_at IS NULL;
ALTER TABLE files ADD COLUMN purpose TEXT;
"""

# A web session is a token of the platform "web", whose secret is in a cookie. `sign_ins` has the
# one-time tokens that open one.
WEB_SESSIONS = """
ALTER TABLE tokens ADD COLUMN platform TEXT NOT NULL DEFAULT 'http'
  CHECK (platform IN ('http', 'web'));
ALTER TABLE tokens ADD COLUMN client TEXT;
DROP INDEX one_token_name;
CREATE UNIQUE INDEX one_token_name ON tokens (name) WHERE revoked_at IS NULL AND platform = 'http';
CREATE TABLE sign_ins (
  digest TEXT PRIMARY KEY,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('user', 'operator')),
  created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
"""
