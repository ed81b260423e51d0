"""The schema on PostgreSQL: an append-only list of migrations, and how they are applied.

A released migration is never edited. A change of the schema adds one here and one for SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes.errors import StoreRefused
from hermes.store.postgres.driver import Driver
from hermes.store.postgres.fast_path.functions import FUNCTIONS
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

# Nodes that share the database (hermes.store.cluster). The fences of routes and roles come from one
# sequence, so that one which was used never comes back, even if its row was deleted.
CLUSTER = """
CREATE SEQUENCE fences;
CREATE TABLE nodes (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL,
  lease_until double precision NOT NULL,
  dead bigint NOT NULL DEFAULT 0 CHECK (dead IN (0, 1)),
  draining bigint NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),
  owned bigint NOT NULL DEFAULT 0,
  facts text COLLATE "C" NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE roles (
  name text COLLATE "C" PRIMARY KEY,
  owner bigint,
  fence bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE listeners (
  node bigint NOT NULL,
  session_key text COLLATE "C" NOT NULL,
  PRIMARY KEY (session_key, node)
);
CREATE INDEX listeners_of_node ON listeners (node);
"""

MIGRATIONS: tuple[str, ...] = (
    CONVERSATIONS + RUNTIME + ACCESS + FILES + TRIGGERS + WRITERS + CLUSTER + FUNCTIONS,
)

STORE, COPY = "hermes_schema", "hermes_copy"
"""The table with the version: of a store, and of an incomplete copy of one, which nothing else
opens. It becomes a store when that table gets the other name."""

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('hermes schema', 0))"
_NODES = (
    "SELECT name FROM nodes "
    "WHERE dead = 0 AND lease_until > extract(epoch FROM clock_timestamp()) ORDER BY id"
)
_OURS = "relnamespace = current_schema()::regnamespace"
_TABLES = (
    f"SELECT coalesce(array_agg(relname::text), '{{}}') FROM pg_class "
    f"WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND {_OURS}"
)
_WITH_TRIGGERS = (
    "SELECT DISTINCT relname::text FROM pg_class c JOIN pg_trigger t ON t.tgrelid = c.oid "
    f"WHERE NOT t.tgisinternal AND {_OURS} ORDER BY 1"
)


def migrate(db: Driver, label: str, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Create the tables in an empty database, or bring those of an older version up to date.

    Raises `StoreRefused` if the database has a newer schema, an incomplete copy, or tables of
    another program, or if nodes of an older version use it; nothing is changed then.
    """
    _migrate(db, label, STORE, migrations)


def open_copy(db: Driver, label: str) -> None:
    """Create the tables of an incomplete copy, or open one; no triggers run in it.

    Raises `StoreRefused` if the database is something else.
    """
    _migrate(db, label, COPY)
    for table in tables_with_triggers(db):
        db.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER", prepare=False)


def require_store(db: Driver, label: str) -> None:
    """Raise `StoreRefused` if there is no store, or if it needs a migration."""
    version = stored_version(db, label)
    if not version:
        raise StoreRefused(f"{label} has no store; name a database that has one")
    if version < len(MIGRATIONS):
        raise StoreRefused(
            f"{label} has schema {version}, but this version of Hermes needs {len(MIGRATIONS)}; "
            "run: hermes store migrate"
        )


def stored_version(db: Driver, label: str) -> int:
    """Return the version of the schema of a store; 0 in an empty database."""
    return _version(db, label, STORE)


def tables_with_triggers(db: Driver) -> list[str]:
    """Return the names of the tables that have triggers."""
    return [name for (name,) in db.execute(_WITH_TRIGGERS).fetchall()]


def _migrate(db: Driver, label: str, kind: str, migrations: Sequence[str] = MIGRATIONS) -> None:
    if _version(db, label, kind) == len(migrations):
        return
    with db.transaction():
        db.execute(_LOCK)  # another process may be doing the same
        version = _version(db, label, kind)
        if 0 < version < len(migrations):
            _require_no_nodes(db, label)
        for statements in migrations[version:]:
            db.execute(statements, prepare=False)
        if not version:
            db.execute(f"CREATE TABLE {kind} (version bigint NOT NULL)", prepare=False)
            db.execute(f"INSERT INTO {kind} VALUES (0)", prepare=False)
        db.execute(f"UPDATE {kind} SET version = $1", [len(migrations)])


def _require_no_nodes(db: Driver, label: str) -> None:
    """Raise `StoreRefused` if runtimes use the tables that are to be changed."""
    names = [name for (name,) in db.execute(_NODES).fetchall()]
    if names:
        raise StoreRefused(
            f"{label} is used by an older version of Hermes ({', '.join(names)}); "
            "stop all its nodes, then start this version"
        )


def _version(db: Driver, label: str, kind: str) -> int:
    """Return how many migrations the database has. Raises `StoreRefused` if it is not a `kind`."""
    [(tables,)] = db.execute(_TABLES).fetchall()
    if kind not in tables:
        if not tables:
            return 0
        raise StoreRefused(f"{label} {_other_kind(tables)}")
    [(version,)] = db.execute(f"SELECT version FROM {kind}").fetchall()
    if version > len(MIGRATIONS):
        raise StoreRefused(
            f"{label} has schema {version}, and this version of Hermes knows {len(MIGRATIONS)}; "
            "use the newer version"
        )
    return int(version)


def _other_kind(tables: Sequence[str]) -> str:
    """Return what a database is that cannot be used."""
    if COPY in tables:
        return "is an incomplete copy; complete it with `hermes store copy`, or drop the database"
    if STORE in tables:
        return "has a store already; choose another database for the copy"
    return "has tables of another program; create an empty database for Hermes"
