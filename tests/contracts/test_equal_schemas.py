"""Both engines have the same tables; what differs is listed here."""

from __future__ import annotations

import re

import apsw
import psycopg
import pytest

from hermes.store import SessionStore
from tests.support.folders import quick_folder
from tests.support.postgres_databases import plain

SQLITE_TABLES = {"arrivals", "stems_left"}
"""Tables that only SQLite has: new messages wait in the first for the index."""
POSTGRES_TABLES = {
    *("hermes_schema", "writers"),
    *("nodes", "roles", "listeners"),
    *("file_contents", "file_chunks"),
}
"""Tables that only PostgreSQL has: the version, which SQLite has in its header, the writers, the
nodes of a cluster, and the content of files, which SQLite has in a folder."""
POSTGRES_COLUMNS = {
    ("messages", "words"),
    ("routes", "owner"),
    ("routes", "fence"),
    ("blobs", "content_id"),
}
"""Columns that only PostgreSQL has: the words of a message, for the search; which node serves a
conversation; and the content of a file."""
DIFFERENT_UNIQUE = {"md5(arguments)": "arguments"}
"""An index of PostgreSQL takes no long texts, so it has their hash."""
TYPES = {"bigint": "INTEGER", "double precision": "REAL", "text": "TEXT"}
COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable = 'YES', collation_name
FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
"""
UNIQUE = """
SELECT i.indrelid::regclass::text, i.indpred IS NOT NULL,
  array(SELECT pg_get_indexdef(i.indexrelid, k, false) FROM generate_series(1, i.indnkeyatts) k)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
"""


@pytest.fixture(scope="module")
def sqlite():
    with quick_folder() as folder:
        SessionStore(folder / "state.db").close()
        db = apsw.Connection(str(folder / "state.db"), flags=apsw.SQLITE_OPEN_READONLY)
        yield db
        db.close()


@pytest.fixture
def postgres_db(postgres_url):
    SessionStore(postgres_url).close()
    with psycopg.connect(plain(postgres_url)) as db:
        yield db


def sqlite_tables(db):
    found = db.execute("SELECT name, wr FROM pragma_table_list WHERE type = 'table'")
    hidden = re.compile("sqlite_|(search|stems)_(data|idx|docsize|config)$")
    return {name for name, _ in found if not hidden.match(name)}


def test_the_tables_have_the_same_columns(sqlite, postgres_db):
    theirs = {
        (table, name): (TYPES[kind], nullable)
        for table, name, kind, nullable, _ in postgres_db.execute(COLUMNS).fetchall()
        if table not in POSTGRES_TABLES and (table, name) not in POSTGRES_COLUMNS
    }
    ours = {
        (table, name): (kind, not (needed or key))
        for table in sqlite_tables(sqlite) - SQLITE_TABLES
        for _, name, kind, needed, _, key in sqlite.execute(f"PRAGMA table_info({table})")
    }
    assert theirs == ours


def test_texts_are_compared_by_code_point(postgres_db):
    found = postgres_db.execute(COLUMNS).fetchall()
    texts = {collation for _, _, kind, _, collation in found if kind == "text"}
    assert texts == {"C"}


def test_the_same_is_unique(sqlite, postgres_db):
    theirs = set()
    for table, partial, columns in postgres_db.execute(UNIQUE).fetchall():
        if table not in POSTGRES_TABLES and (table, columns[0]) not in POSTGRES_COLUMNS:
            names = [DIFFERENT_UNIQUE.get(each, each) for each in columns]
            theirs.add((table, partial, frozenset("(…)" if "(" in n else n for n in names)))
    ours = set()
    for table in sqlite_tables(sqlite) - SQLITE_TABLES:
        key = [row[1] for row in sqlite.execute(f"PRAGMA table_info({table})") if row[5]]
        if key:
            ours.add((table, False, frozenset(key)))
        for _, index, unique, _, partial in sqlite.execute(f"PRAGMA index_list({table})"):
            names = [row[2] or "(…)" for row in sqlite.execute(f"PRAGMA index_info({index})")]
            if unique:
                ours.add((table, bool(partial), frozenset(names)))
    assert theirs == ours


def test_the_same_rows_refer_to_others(sqlite, postgres_db):
    theirs = set(
        postgres_db.execute(
            "SELECT conrelid::regclass::text, confrelid::regclass::text, confdeltype::text "
            "FROM pg_constraint WHERE contype = 'f' AND connamespace = 'public'::regnamespace "
            "AND confrelid <> 'file_contents'::regclass"
        ).fetchall()
    )
    actions = {"CASCADE": "c", "SET NULL": "n", "NO ACTION": "a"}
    ours = {
        (table, row[2], actions[row[6]])
        for table in sqlite_tables(sqlite)
        for row in sqlite.execute(f"PRAGMA foreign_key_list({table})")
    }
    assert theirs == ours
