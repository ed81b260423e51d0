"""The `meta` table: small persistent values by name."""

from __future__ import annotations

from hermes.store.transaction import Transaction


def get_meta(tx: Transaction, name: str) -> str | None:
    """Return the value with this name, or None."""
    row = tx.one("SELECT value FROM meta WHERE key = ?", name)
    return None if row is None else str(row[0])


def delete_session_values(tx: Transaction, session_id: str) -> None:
    """Delete the values that belong to a session."""
    for name in ("compression", "imported", "left"):
        tx.run("DELETE FROM meta WHERE key = ?", f"{name}:{session_id}")


def set_meta(tx: Transaction, name: str, value: str | None, *, replace: bool = True) -> None:
    """Set the value with this name; None deletes it. Without `replace`, an earlier one stays."""
    if not replace:
        sql = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
        tx.run(sql, name, value)
    elif value is None:
        tx.run("DELETE FROM meta WHERE key = ?", name)
    else:
        tx.run(
            "INSERT INTO meta (key, value) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            name,
            value,
        )
