"""The schema on PostgreSQL: an append-only list of migrations, and how they are applied.

A released migration is never edited. A change of the schema adds one here and one for SQLite.
"""

from __future__ import annotations

from hermes.errors import StoreRefused
from hermes.store.postgres.driver import Driver
from hermes.store.postgres.tables import ACCESS, CONVERSATIONS, FILES, RUNTIME

TRIGGERS = """
CREATE FUNCTION hermes_close_inbox() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  DELETE FROM once_calls WHERE turn_id = NEW.id;
  IF NEW.state = 'done' AND NOT EXISTS
    (SELECT 1 FROM responses r WHERE r.inbox_id = NEW.id AND r.stored = 0)
  THEN DELETE FROM inbox_files WHERE inbox_id = NEW.id; END IF;
  UPDATE responses SET
    reply = coalesce(NEW.reply, (SELECT t.reply FROM inbox t WHERE t.id = NEW.turn_id)),
    session_id = CASE WHEN NEW.reply::json ->> 'messages' IS NULL THEN session_id
      ELSE NEW.reply::json ->> 'session_id' END,
    closed_at = NEW.closed_at
  WHERE inbox_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER finished_messages AFTER UPDATE OF state ON inbox
  FOR EACH ROW WHEN (NEW.state <> 'open') EXECUTE FUNCTION hermes_close_inbox();
CREATE FUNCTION hermes_show_question() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  UPDATE approvals SET shown_after = (SELECT coalesce(max(id), 0) FROM inbox)
  WHERE question = NEW.id AND shown_after IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER sending_shows_a_question AFTER UPDATE OF state ON outbox FOR EACH ROW
  WHEN (OLD.state = 'pending' AND NEW.state = 'sending') EXECUTE FUNCTION hermes_show_question();
CREATE FUNCTION hermes_hide_question() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  UPDATE approvals SET shown_after = NULL WHERE question = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER an_unsent_question_is_not_shown AFTER UPDATE OF state ON outbox FOR EACH ROW
  WHEN (OLD.state = 'sending' AND NEW.state IN ('pending', 'dead') AND NEW.recovered = 0)
  EXECUTE FUNCTION hermes_hide_question();
CREATE FUNCTION hermes_forget_files() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  DELETE FROM outbox_files WHERE outbox_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER sent_replies_need_no_files AFTER UPDATE OF state ON outbox FOR EACH ROW
  WHEN (NEW.state = 'sent') EXECUTE FUNCTION hermes_forget_files();
"""

# `writers` has a row for each connection that writes. Each of its transactions advances `batch`,
# which tells after a lost connection whether the last one was committed.
# An advisory lock stands for a key without a route: there is no row to lock. Keys that have a route
# are locked in their row too, which is what other nodes look at when they claim it.
WRITERS = """
CREATE TABLE writers (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  batch bigint NOT NULL,
  used_at double precision NOT NULL
) WITH (fillfactor = 50);
CREATE FUNCTION hermes_lock_keys(keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE locked text; BEGIN
  FOR locked IN SELECT DISTINCT k COLLATE "C" FROM unnest(keys) k ORDER BY 1 LOOP
    PERFORM pg_advisory_xact_lock(hashtextextended(locked, 0));
    PERFORM 1 FROM routes WHERE session_key = locked FOR NO KEY UPDATE;
  END LOOP;
END $$;
"""

MIGRATIONS: tuple[str, ...] = (CONVERSATIONS + RUNTIME + ACCESS + FILES + TRIGGERS + WRITERS,)

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('hermes schema', 0))"
_TABLES = (
    "SELECT count(*), count(*) FILTER (WHERE relname = 'hermes_schema') FROM pg_class "
    "WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND relnamespace = current_schema()::regnamespace"
)
_CREATE = (
    "CREATE TABLE hermes_schema (version bigint NOT NULL); INSERT INTO hermes_schema VALUES (0)"
)


def migrate(db: Driver, label: str) -> None:
    """Create the tables in an empty database, or bring those of an older version up to date.

    Raises `StoreRefused` if the database has a newer schema or tables of another program; nothing
    is changed then.
    """
    if _version(db, label) == len(MIGRATIONS):
        return
    with db.transaction():
        db.execute(_LOCK)  # another process may be doing the same
        version = _version(db, label)
        for statements in MIGRATIONS[version:]:
            db.execute(statements, prepare=False)
        if not version:
            db.execute(_CREATE, prepare=False)
        db.execute("UPDATE hermes_schema SET version = $1", [len(MIGRATIONS)])


def _version(db: Driver, label: str) -> int:
    """Return how many migrations the database has. Raises `StoreRefused`."""
    [(tables, known)] = db.execute(_TABLES).fetchall()
    if not known:
        if tables:
            raise StoreRefused(
                f"{label} has tables of another program; create an empty database for Hermes"
            )
        return 0
    [(version,)] = db.execute("SELECT version FROM hermes_schema").fetchall()
    if version > len(MIGRATIONS):
        raise StoreRefused(
            f"{label} has schema {version}, and this version of Hermes knows {len(MIGRATIONS)}; "
            "use the newer version"
        )
    return int(version)
