"""The step of the schema about attached files; `schema` has the list of all."""

from __future__ import annotations

# The content of a blob lies next to the database, named by its hash (files/blobs.py). A file is a
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
