"""The migrations of the search index; `hermes.store.schema` has the list of all."""

from __future__ import annotations

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
