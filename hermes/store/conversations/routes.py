"""Routes: which session a session_key leads to, since when (the epoch), and until when."""

from __future__ import annotations

from hermes.errors import UnknownSession
from hermes.messages import ExpiryPolicy, Head, InboxReply, Route, SessionMatch, Source
from hermes.store.conversations import boundaries, inbox_end, lineage, sessions, titles
from hermes.store.conversations.expiry import next_expiry
from hermes.store.transaction import Transaction

MAX_KEY = 1000
_COLUMNS = (
    "session_key, session_id, epoch, platform, chat_type, user_id, pending_title, notice, "
    "expires_at, last_active"
)


def get_route(tx: Transaction, session_key: str) -> Route | None:
    """The route of this key."""
    row = tx.one(f"SELECT {_COLUMNS} FROM routes WHERE session_key = ?", session_key)
    return None if row is None else Route(*row)


def require_key(session_key: str) -> str:
    """The key itself, if it can be one."""
    if not 0 < len(session_key) <= MAX_KEY or not session_key.isprintable():
        shown = session_key[:50]
        raise ValueError(f"a session_key is 1 to {MAX_KEY} printable characters: {shown!r}")
    return session_key


def point(tx: Transaction, session_key: str, session_id: str) -> int:
    """Lead the key to the session, and return the new epoch. Nothing else writes this column."""
    tx.run(
        "INSERT INTO routes (session_key, session_id, epoch, last_active) VALUES (?, ?, 1, ?) "
        "ON CONFLICT (session_key) DO UPDATE SET session_id = excluded.session_id, "
        "epoch = epoch + 1, notice = NULL",
        require_key(session_key),
        session_id,
        tx.now,
    )
    row = tx.one("SELECT epoch FROM routes WHERE session_key = ?", session_key)
    assert row is not None
    return int(row[0])


def require_route(tx: Transaction, session_key: str) -> Route:
    """The route, which is made where there is none; it names a session that has no row yet."""
    route = get_route(tx, session_key)
    if route is None:
        point(tx, session_key, tx.new_session_id())
        route = get_route(tx, session_key)
        assert route is not None
    return route


def settle(tx: Transaction, session_key: str) -> Route:
    """The route, led on where its session has ended: to the tip, or to a new session.

    A session that ended by accident goes on.
    """
    route = _followed(tx, require_route(tx, session_key))
    reason = _end_reason(tx, route.session_id)
    if reason is None:
        return route
    if reason in sessions.ACCIDENTS:
        sessions.reopen_session(tx, route.session_id)
        return route
    point(tx, session_key, tx.new_session_id())
    return require_route(tx, session_key)


def current(tx: Transaction, session_key: str) -> Route | None:
    """The route, after it has followed compressions that others did."""
    route = get_route(tx, session_key)
    return None if route is None else _followed(tx, route)


def _followed(tx: Transaction, route: Route) -> Route:
    """The route at the tip; only an ended session can have one elsewhere, and most have not."""
    if _end_reason(tx, route.session_id) is None:
        return route
    tip = lineage.get_compression_tip(tx, route.session_id)
    if tip == route.session_id:
        return route
    point(tx, route.session_key, tip)
    return require_route(tx, route.session_key)


def _end_reason(tx: Transaction, session_id: str) -> str | None:
    row = tx.one("SELECT end_reason FROM sessions WHERE id = ?", session_id)
    return None if row is None else row[0]


def new_session(
    tx: Transaction,
    session_key: str,
    *,
    reason: str = "session_reset",
    title: str | None = None,
    platform: str | None = None,
    answer: InboxReply | None = None,
) -> Route:
    """End the conversation and begin another; its row comes with the first message."""
    pending = titles.sanitize_title(title)
    route = current(tx, session_key)
    old = None if route is None else route.session_id
    name = platform or ("embedded" if route is None else route.platform)
    new = tx.new_session_id()
    if old is not None:
        sessions.promote_to_session_reset(tx, old, reason)
        boundaries.record(
            tx, "on_session_finalize", session_key, old,
            platform=name, reason=reason, old=old, new=new,
        )  # fmt: skip
    point(tx, session_key, new)
    boundaries.record(
        tx, "on_session_reset", session_key, new, platform=name, reason=reason, old=old, new=new
    )
    tx.run(
        "UPDATE routes SET pending_title = ?, platform = ?, expires_at = NULL, last_active = ? "
        "WHERE session_key = ?",
        pending,
        name,
        tx.now,
        session_key,
    )
    inbox_end.close(tx, answer, new)
    return require_route(tx, session_key)


def close(tx: Transaction, session_key: str, *, reason: str = "closed") -> str | None:
    """Finalize and end the session the key leads to now; the next message begins a new one."""
    route = current(tx, session_key)
    if route is None:
        return None
    sessions.end_session(tx, route.session_id, reason)
    boundaries.record(
        tx, "on_session_finalize", session_key, route.session_id,
        platform=route.platform, reason=reason, old=route.session_id,
    )  # fmt: skip
    point(tx, session_key, tx.new_session_id())
    tx.run(
        "UPDATE routes SET pending_title = NULL, expires_at = NULL WHERE session_key = ?",
        session_key,
    )
    return route.session_id


def finalize(tx: Transaction, session_key: str, *, reason: str = "shutdown") -> str | None:
    """Let hooks finalize the current session without ending it: the conversation goes on later.

    A session that nothing was said in yet has nothing to finalize.
    """
    route = current(tx, session_key)
    if route is None or sessions.number(tx, route.session_id) is None:
        return None
    boundaries.record(
        tx, "on_session_finalize", session_key, route.session_id,
        platform=route.platform, reason=reason, old=route.session_id,
    )  # fmt: skip
    return route.session_id


def switch(
    tx: Transaction, session_key: str, target: str, *, answer: InboxReply | None = None
) -> Route:
    """Lead the key to another session, given by id, unique prefix or title; its tip is taken.

    The session that is left neither ends nor is finalized.
    """
    found = meant(tx, target)
    if found is None:
        raise UnknownSession(f"there is no session {target!r}")
    tip = lineage.get_compression_tip(tx, found)
    route = get_route(tx, session_key)
    sessions.reopen_session(tx, tip)
    if route is None or route.session_id != tip:
        point(tx, session_key, tip)
        boundaries.record(
            tx,
            "on_session_switch",
            session_key,
            tip,
            platform="embedded" if route is None else route.platform,
            reason="session_switch",
            old=None if route is None else route.session_id,
            new=tip,
        )
        tx.run("UPDATE routes SET pending_title = NULL WHERE session_key = ?", session_key)
    # Who resumes a conversation does not want it to expire at the next message.
    tx.run(
        "UPDATE routes SET expires_at = NULL, last_active = ? WHERE session_key = ?",
        tx.now,
        session_key,
    )
    inbox_end.close(tx, answer, tip)
    return require_route(tx, session_key)


def find(tx: Transaction, target: str) -> SessionMatch | None:
    """The conversation that an id, a unique prefix or a title means, at its tip.

    One that has no row yet is known by its whole id.
    """
    named = meant(tx, target)
    line = [target] if named is None else lineage.get_compression_lineage(tx, named)
    rows = tx.all("SELECT session_key FROM routes WHERE session_id = ? ORDER BY 1", line[-1])
    keys = tuple(row[0] for row in rows)
    if named is None and not keys:
        return None
    return SessionMatch(sessions.get_session(tx, line[-1]), tuple(line), keys)


def meant(tx: Transaction, target: str) -> str | None:
    """An exact id, else a title, else the beginning of an id."""
    if sessions.number(tx, target) is not None:
        return target
    by_title = titles.resolve_session_by_title(tx, target)
    return by_title or lineage.resolve_session_id(tx, target)


def open_rows(tx: Transaction, session_key: str) -> int:
    """How many accepted messages of this key no turn has finished."""
    row = tx.one("SELECT count(*) FROM inbox WHERE session_key = ? AND state = 'open'", session_key)
    assert row is not None
    return int(row[0])


def overdue(tx: Transaction, limit: int = 100) -> list[tuple[str, int]]:
    """Keys and epochs of routes whose time is over, by index."""
    rows = tx.all(
        "SELECT session_key, epoch FROM routes r WHERE expires_at <= ? AND NOT EXISTS ("
        "SELECT 1 FROM inbox i WHERE i.session_key = r.session_key AND i.state = 'open') "
        "ORDER BY expires_at LIMIT ?",
        tx.now,
        limit,
    )
    return [(row[0], row[1]) for row in rows]


def expire(tx: Transaction, session_key: str, epoch: int) -> str | None:
    """End the session if it is still due, at the same epoch, with nothing open; say which."""
    route = get_route(tx, session_key)
    if route is None or route.epoch != epoch:
        return None
    if route.expires_at is None or route.expires_at > tx.now or open_rows(tx, session_key):
        return None
    ended = current(tx, session_key)
    assert ended is not None
    if sessions.number(tx, ended.session_id) is None:  # nothing was said that could be over
        tx.run("UPDATE routes SET expires_at = NULL WHERE session_key = ?", session_key)
        return None
    new_session(tx, session_key, reason="session_expired")
    tx.run("UPDATE routes SET notice = 'expired' WHERE session_key = ?", session_key)
    return ended.session_id


def sweep_expired(tx: Transaction, limit: int = 100) -> list[str]:
    """Expire what is overdue; returns the sessions that ended."""
    ended = [expire(tx, key, epoch) for key, epoch in overdue(tx, limit)]
    return [session_id for session_id in ended if session_id is not None]


def touch(tx: Transaction, session_key: str, source: Source, policy: ExpiryPolicy) -> None:
    """The conversation is alive: move the time at which it would be over; note who speaks."""
    tx.run(
        "UPDATE routes SET last_active = ?, expires_at = ?, platform = ?, chat_type = ?, "
        "user_id = ? WHERE session_key = ?",
        tx.now,
        next_expiry(policy, tx.now),
        source.platform,
        source.chat_type,
        source.user_id,
        session_key,
    )


def take_notice(tx: Transaction, session_key: str) -> str | None:
    """What the user must be told once, for example that the last conversation expired."""
    row = tx.one("SELECT notice FROM routes WHERE session_key = ?", session_key)
    tx.run("UPDATE routes SET notice = NULL WHERE session_key = ?", session_key)
    return None if row is None else row[0]


def set_pending_title(tx: Transaction, session_key: str, title: str | None) -> None:
    """Keep a title for a session that has no row yet."""
    pending = titles.sanitize_title(title)
    require_route(tx, session_key)
    tx.run("UPDATE routes SET pending_title = ? WHERE session_key = ?", pending, session_key)


def apply_pending_title(tx: Transaction, session_key: str) -> str | None:
    """Give the waiting title to the session the key leads to; a refused title is dropped."""
    route = get_route(tx, session_key)
    if route is None or route.pending_title is None:
        return None
    tip = lineage.get_compression_tip(tx, route.session_id)
    try:
        applied = titles.set_session_title(tx, tip, route.pending_title)
    except ValueError:
        set_pending_title(tx, session_key, None)
        return None
    if not applied:
        return None
    set_pending_title(tx, session_key, None)
    return route.pending_title


def route_head(tx: Transaction, session_key: str) -> tuple[Route, Head] | None:
    """The route and the head of its session, from one transaction."""
    route = get_route(tx, session_key)
    return None if route is None else (route, sessions.head(tx, route.session_id))
