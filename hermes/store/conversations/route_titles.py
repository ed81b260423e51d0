"""The title of a conversation: of the tip of its session, or pending until that has a row."""

from __future__ import annotations

from hermes.messages import Title
from hermes.store.conversations import lineage, routes, titles
from hermes.store.transaction import Transaction


def get_title(tx: Transaction, session_key: str) -> Title:
    """Return the title of a conversation; `pending` if it is not stored in the session yet."""
    route = routes.get_route(tx, session_key)
    if route is None:
        return Title(None)
    if route.pending_title is not None:
        return Title(route.pending_title, pending=True)
    tip = lineage.get_compression_tip(tx, route.session_id)
    row = tx.one("SELECT title FROM sessions WHERE id = ?", tip)
    return Title(None if row is None else row[0])


def set_title(tx: Transaction, session_key: str, title: str | None) -> tuple[str, Title]:
    """Set or clear the title of a conversation. Return its session, and the title as stored.

    The title is pending until the session has a row. Raises `ValueError` if it is too long, or if
    another conversation of the key has it.
    """
    route = routes.ensure_route(tx, session_key)
    tip = lineage.get_compression_tip(tx, route.session_id)
    stored = titles.set_session_title(tx, tip, title)
    set_pending_title(tx, session_key, None if stored else title)
    return tip, get_title(tx, session_key)


def set_pending_title(tx: Transaction, session_key: str, title: str | None) -> None:
    """Store a title to apply once the session has a row; None clears it.

    Raises `ValueError` if it is too long, or if a session of the key has it.
    """
    pending = titles.sanitize_title(title)
    if pending is not None:
        titles.require_unused(tx, pending, session_key)
    routes.ensure_route(tx, session_key)
    tx.run("UPDATE routes SET pending_title = ? WHERE session_key = ?", pending, session_key)


def apply_pending_title(tx: Transaction, session_key: str) -> str | None:
    """Apply the pending title to the current session, and return it as stored.

    A title that is taken by now gets a number. Returns None if there is no pending title, or if
    the session has no row yet.
    """
    route = routes.get_route(tx, session_key)
    if route is None or route.pending_title is None:
        return None
    title, tip = route.pending_title, lineage.get_compression_tip(tx, route.session_id)
    row = tx.one("SELECT session_key FROM sessions WHERE id = ?", tip)
    if row is None:
        return None
    try:
        titles.set_session_title(tx, tip, title)
    except ValueError:
        title = titles.unused_title(tx, title, row[0])
        titles.set_session_title(tx, tip, title)
    set_pending_title(tx, session_key, None)
    return title
