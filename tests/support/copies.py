"""Copies of stores in tests: what is in a database, whatever its engine."""

from __future__ import annotations

import apsw

from hermes.config import is_database_url
from hermes.store.choosing import side_of
from hermes.store.copying.copy import move, snapshot
from hermes.store.postgres.address import parse
from hermes.store.postgres.driver import connect

INDEX = ("search", "stems", "sqlite_")
"""Tables that are built from others."""
CLOCKS = {"leases": {"holder", "expires"}, "files": {"steady_at"}, "responses": {"ended_steady"}}
"""Columns about processes and their clocks, which a copy does not have."""
ENGINE = {
    "routes": {"owner", "fence"},
    "inbox": {"via"},
    "messages": {"words"},
    "blobs": {"content_id"},
}
"""Columns of one engine."""
OF_POSTGRES = {
    "hermes_schema", "writers", "nodes", "roles", "listeners", "file_contents", "file_chunks",
}  # fmt: skip


def ignore(_table, _rows):
    """Report no progress."""


def copied(source, target, clock, *, run=move):
    """Copy a store and return the report."""
    return run(side_of(source), side_of(target), clock, ignore)


def snapshotted(source, target, clock):
    return copied(source, target, clock, run=snapshot)


def content(database):
    """Return all rows that a copy must have, by table, in no particular order."""
    found = _of_postgres(database) if is_database_url(database) else _of_sqlite(database)
    arrivals = found.pop("arrivals", [])
    for row in arrivals:
        row.pop("n")
        found["messages"].append({"live": 1, "compacted": 0, **row})
    found["meta"] = [row for row in found.get("meta", []) if row["key"] != "copy"]
    return {table: sorted(map(_shown, rows)) for table, rows in found.items()}


def _shown(row):
    return repr(sorted(row.items()))


def _kept(table, names):
    left_out = CLOCKS.get(table, set()) | ENGINE.get(table, set())
    return [name for name in names if name not in left_out]


def _of_sqlite(path):
    db = apsw.Connection(str(path))
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = {}
    for table in tables:
        if not table.startswith(INDEX):
            names = [
                name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))
            ]
            kept = _kept(table, names)
            rows = db.execute(f"SELECT {', '.join(kept)} FROM {table}").fetchall()
            found[table] = [dict(zip(kept, row, strict=True)) for row in rows]
    db.close()
    return found


def _of_postgres(url):
    with connect(parse(url)) as db:
        tables = db.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        found = {}
        for (table,) in tables:
            if table not in OF_POSTGRES:
                cursor = db.execute(f"SELECT * FROM {table}")
                names = [column.name for column in cursor.description or ()]
                kept = _kept(table, names)
                found[table] = [
                    {name: value for name, value in zip(names, row, strict=True) if name in kept}
                    for row in cursor.fetchall()
                ]
    return found
