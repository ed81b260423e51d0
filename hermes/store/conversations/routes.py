"""Routes: the current session of each session_key, with an epoch and an expiry time.

The epoch grows whenever the session of a key changes; `commit_turn` and `rotate` compare it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeAlias

from hermes.errors import UnknownSession
from hermes.messages import ExpiryPolicy, Head, InboxReply, JsonObject, Route, Source, Title
from hermes.store.conversations import boundaries, inbox, lineage, sessions, titles
from hermes.store.transaction import Transaction

MAX_KEY = 1000
_NAMES = (
    "session_key, session_id, epoch, platform, chat_type, user_id, pending_title, notice, "
    "expires_at, last_active, settings"
)
_COLUMNS = f"r.{_NAMES.replace(', ', ', r.')}"
# The session may have no row yet.
_CURRENT = (
    f"SELECT {_COLUMNS}, s.end_reason, coalesce(s.message_count, 0), coalesce(s.revision, 0), "
    "coalesce(s.rewrites, 0) FROM routes r LEFT JOIN sessions s ON s.id = r.session_id "
    "WHERE r.session_key = ?"
)


Current: TypeAlias = tuple[Route, Head, str | None]
"""A route, the head of its session, and the end reason of that session."""


def get_route(tx: Transaction, session_key: str) -> Route | None:
    """Return the route of a key, or None."""
    row = tx.one(f"SELECT {_COLUMNS} FROM routes r WHERE session_key = ?", session_key)
    return None if row is None else Route(*row)


def current(tx: Transaction, session_key: str) -> Current | None:
    """Return the route of a key, the head of its session, and why the session has ended."""
    row = tx.one(_CURRENT, session_key)
    if row is None:
        return None
    *route, end_reason, message_count, revision, rewrites = row
    return Route(*route), Head(row[1], message_count, revision, rewrites), end_reason


def require_key(session_key: str) -> str:
    """Return the key, or raise `ValueError` if it is not a valid one."""
    if not 0 < len(session_key) <= MAX_KEY or not session_key.isprintable():
        start = session_key[:50]
        raise ValueError(f"a session_key is 1 to {MAX_KEY} printable characters: {start!r}")
    return session_key


def assign_session(
    tx: Transaction, session_key: str, session_id: str, *, is_new: bool = False
) -> Route:
    """Make this the session of the key, and return its route with the new epoch.

    `is_new` says that the key has no route yet. No other function writes `routes.session_id`.
    """
    if not is_new:
        sessions.record_left(tx, session_key)
    row = tx.one(
        "INSERT INTO routes (session_key, session_id, epoch, last_active) VALUES (?, ?, 1, ?) "
        "ON CONFLICT (session_key) DO UPDATE SET session_id = excluded.session_id, "
        f"epoch = routes.epoch + 1, notice = NULL RETURNING {_NAMES}",
        require_key(session_key),
        session_id,
        tx.now,
    )
    assert row is not None
    return Route(*row)


def ensure_route(tx: Transaction, session_key: str) -> Route:
    """Return the route of a key; create it if there is none.

    A new route names a session that has no row until its first message.
    """
    route = get_route(tx, session_key)
    return route or assign_session(tx, session_key, tx.new_session_id(), is_new=True)


def ensure_open(tx: Transaction, session_key: str, found: Current | None) -> tuple[Route, Head]:
    """Return the route of a key, and the head of a session that accepts messages.

    `found` is what `current` returned. If the session has been compressed, the route moves to the
    tip. If the session ended by accident, it is reopened. If it ended for another reason, or the
    key has no route, the route gets a new session.
    """
    if found is None:
        route = assign_session(tx, session_key, tx.new_session_id(), is_new=True)
        return route, Head(route.session_id)
    return found[:2] if found[2] is None else _renew(tx, found[0])


def _renew(tx: Transaction, route: Route) -> tuple[Route, Head]:
    session_key, route = route.session_key, _follow_compression(tx, route)
    reason = _end_reason(tx, route.session_id)
    if reason in sessions.ACCIDENTAL_ENDS:
        sessions.reopen_session(tx, route.session_id)
    elif reason is not None:
        assign_session(tx, session_key, tx.new_session_id())
    renewed = current(tx, session_key)
    assert renewed is not None
    return renewed[:2]


def _current_route(tx: Transaction, session_key: str) -> Route | None:
    """Return the route of a key, moved to the tip if its session has been compressed."""
    route = get_route(tx, session_key)
    return None if route is None else _follow_compression(tx, route)


def _follow_compression(tx: Transaction, route: Route) -> Route:
    # Only an ended session can have a compression child; this check avoids the recursive query.
    if _end_reason(tx, route.session_id) is None:
        return route
    tip = lineage.get_compression_tip(tx, route.session_id)
    if tip == route.session_id:
        return route
    return assign_session(tx, route.session_key, tip)


def _end_reason(tx: Transaction, session_id: str) -> str | None:
    row = tx.one("SELECT end_reason FROM sessions WHERE id = ?", session_id)
    return None if row is None else row[0]


def new_session(  # noqa: PLR0913
    tx: Transaction,
    session_key: str,
    *,
    reason: str = "session_reset",
    title: str | None = None,
    platform: str | None = None,
    answer: InboxReply | None = None,
    metadata: JsonObject | None = None,
) -> Route:
    """End the current session of a key and start a new one.

    The row of the new session is created with its first message; until then `title` is stored as
    the pending title of the route. `metadata` is passed to the hooks; by default it is that of the
    command which `answer` answers. Raises `ValueError` if the title is too long, or if a session of
    the key has it.
    """
    if answer is not None:
        metadata = metadata or answer.metadata
    pending = titles.sanitize_unused(tx, title, session_key)
    route = _current_route(tx, session_key)
    old = None if route is None else route.session_id
    name = platform or ("embedded" if route is None else route.platform)
    new = tx.new_session_id()
    if old is not None:
        sessions.promote_to_session_reset(tx, old, reason)
        boundaries.record(
            tx, "on_session_finalize", session_key, old,
            platform=name, reason=reason, old=old, new=new, metadata=metadata,
        )  # fmt: skip
    assign_session(tx, session_key, new)
    boundaries.record(
        tx, "on_session_reset", session_key, new,
        platform=name, reason=reason, old=old, new=new, metadata=metadata,
    )  # fmt: skip
    tx.run(
        "UPDATE routes SET pending_title = ?, platform = ?, expires_at = NULL, last_active = ? "
        "WHERE session_key = ?",
        pending,
        name,
        tx.now,
        session_key,
    )
    inbox.close(tx, answer, new)
    return ensure_route(tx, session_key)


def close(tx: Transaction, session_key: str, *, reason: str = "closed") -> str | None:
    """Finalize and end the current session of a key; the next message starts a new one.

    Returns the id of the ended session, or None if the key has no route.
    """
    route = _current_route(tx, session_key)
    if route is None:
        return None
    sessions.end_session(tx, route.session_id, reason)
    boundaries.record(
        tx, "on_session_finalize", session_key, route.session_id,
        platform=route.platform, reason=reason, old=route.session_id,
    )  # fmt: skip
    assign_session(tx, session_key, tx.new_session_id())
    tx.run(
        "UPDATE routes SET pending_title = NULL, expires_at = NULL WHERE session_key = ?",
        session_key,
    )
    return route.session_id


def finalize(tx: Transaction, session_key: str, *, reason: str = "shutdown") -> str | None:
    """Run the finalize hooks for the current session without ending it, as at a shutdown.

    Returns the session id, or None if there is nothing to finalize because it has no messages, and
    no turn for its first message was started.
    """
    route = _current_route(tx, session_key)
    if route is None:
        return None
    if sessions.number(tx, route.session_id) is None and not inbox.has_started(tx, session_key):
        return None
    boundaries.record(
        tx, "on_session_finalize", session_key, route.session_id,
        platform=route.platform, reason=reason, old=route.session_id,
    )  # fmt: skip
    return route.session_id


def switch(
    tx: Transaction,
    session_key: str,
    target: str,
    *,
    any_key: bool = False,
    answer: InboxReply | None = None,
) -> Route:
    """Move a key to another of its sessions, given by id, title or unique prefix of an id.

    The route moves to the tip of that session's lineage, which is reopened if it has ended. The
    session left behind is neither ended nor finalized. With `any_key`, which is for operators, the
    session may belong to another key; from then on it belongs to this key too, and its title gets a
    number if another session of this key has it.

    Raises `UnknownSession`, and `AmbiguousTitle` if several sessions have the title.
    """
    session_id = titles.resolve_session(tx, target, session_key=session_key)
    if session_id is None and any_key:
        session_id = titles.resolve_session(tx, target)
    if session_id is None:
        raise UnknownSession(f"there is no session {target!r}")
    tip = lineage.get_compression_tip(tx, session_id)
    if any_key:
        titles.share(tx, session_key, tip)
    route = _current_route(tx, session_key)
    sessions.reopen_session(tx, tip)
    if route is None or route.session_id != tip:
        assign_session(tx, session_key, tip)
        boundaries.record(
            tx,
            "on_session_switch",
            session_key,
            tip,
            platform="embedded" if route is None else route.platform,
            reason="session_switch",
            old=None if route is None else route.session_id,
            new=tip,
            metadata=None if answer is None else answer.metadata,
        )
        tx.run("UPDATE routes SET pending_title = NULL WHERE session_key = ?", session_key)
    # A resumed conversation must not expire at its next message.
    tx.run(
        "UPDATE routes SET expires_at = NULL, last_active = ? WHERE session_key = ?",
        tx.now,
        session_key,
    )
    inbox.close(tx, answer, tip)
    return ensure_route(tx, session_key)


def overdue(tx: Transaction, limit: int = 100) -> list[tuple[str, int]]:
    """Return (session_key, epoch) of expired routes that have no open inbox rows."""
    rows = tx.all(
        "SELECT session_key, epoch FROM routes r WHERE expires_at <= ? AND NOT EXISTS ("
        "SELECT 1 FROM inbox i WHERE i.session_key = r.session_key AND i.state = 'open') "
        "ORDER BY expires_at, session_key LIMIT ?",
        tx.now,
        limit,
    )
    return [(row[0], row[1]) for row in rows]


def is_overdue(route: Route, now: float) -> bool:
    """Return whether the session of a route has expired."""
    return route.expires_at is not None and route.expires_at <= now


def expire(
    tx: Transaction, session_key: str, epoch: int, metadata: JsonObject | None = None
) -> str | None:
    """Start a new session for a key if its route has expired, and return the id of the ended one.

    `metadata` is that of the message which finds it expired.
    Returns None if the route has another epoch, is no longer due, or has open inbox rows.
    """
    route = get_route(tx, session_key)
    if route is None or route.epoch != epoch:
        return None
    if not is_overdue(route, tx.now) or inbox.count_open(tx, session_key):
        return None
    ended = _current_route(tx, session_key)
    assert ended is not None
    if sessions.number(tx, ended.session_id) is None:  # no messages, so nothing to end
        tx.run("UPDATE routes SET expires_at = NULL WHERE session_key = ?", session_key)
        return None
    new_session(tx, session_key, reason="session_expired", metadata=metadata)
    tx.run("UPDATE routes SET notice = 'expired' WHERE session_key = ?", session_key)
    return ended.session_id


def sweep_expired(tx: Transaction, limit: int = 100) -> list[str]:
    """Expire overdue routes. Return the ids of the sessions that ended."""
    due = overdue(tx, limit)
    tx.lock_keys(key for key, _ in due)
    ended = [expire(tx, key, epoch) for key, epoch in due]
    return [session_id for session_id in ended if session_id is not None]


def record_message(tx: Transaction, session_key: str, source: Source, policy: ExpiryPolicy) -> None:
    """Record a message: move the expiry time, and store the source of the latest message."""
    update = (
        "UPDATE routes SET last_active = ?, expires_at = ?, platform = ?, chat_type = ?, "
        "user_id = ? WHERE session_key = ?"
    )
    origin = (source.platform, source.chat_type, source.user_id)
    tx.run(update, tx.now, next_expiry(policy, tx.now), *origin, session_key)


def record_turn(tx: Transaction, session_key: str, policy: ExpiryPolicy | None) -> None:
    """Record a finished turn: move the expiry time, and clear the notice, which it included."""
    update = (
        "UPDATE routes SET last_active = ?, expires_at = coalesce(?, expires_at), notice = NULL "
        "WHERE session_key = ?"
    )
    expires_at = None if policy is None else next_expiry(policy, tx.now)
    tx.run(update, tx.now, expires_at, session_key)


def set_title(tx: Transaction, session_key: str, title: str | None) -> tuple[str, Title]:
    """Set or clear the title of a conversation. Return its session, and the title as stored.

    The title is pending until the session has a row. Raises `ValueError` if it is too long, or if
    another conversation has it that belongs to a key of this one.
    """
    tip = lineage.get_compression_tip(tx, ensure_route(tx, session_key).session_id)
    stored = titles.set_title_as(tx, [session_key], tip, title)
    set_pending_title(tx, session_key, None if stored else title)
    return tip, titles.get_title(tx, session_key)


def set_pending_title(tx: Transaction, session_key: str, title: str | None) -> None:
    """Store a title to apply once the session has a row; None clears it.

    Raises `ValueError` if it is too long, or if a session of the key has it.
    """
    pending = titles.sanitize_unused(tx, title, session_key)
    ensure_route(tx, session_key)
    tx.run("UPDATE routes SET pending_title = ? WHERE session_key = ?", pending, session_key)


def route_head(tx: Transaction, session_key: str) -> tuple[Route, Head] | None:
    """Return the route of a key, and the head of the tip of its session; None without a route.

    If another process has compressed the session, the head names another session than the route.
    `follow_route` then moves the route.
    """
    found = current(tx, session_key)
    if found is None:
        return None
    route, head, end_reason = found
    if end_reason is not None:
        head = sessions.head(tx, lineage.get_compression_tip(tx, route.session_id))
    return route, head


def follow_route(tx: Transaction, session_key: str) -> tuple[Route, Head] | None:
    """Move the route of a key to the tip of its session. Return the route, and the tip's head."""
    _current_route(tx, session_key)
    return route_head(tx, session_key)


def next_expiry(policy: ExpiryPolicy, active_at: float) -> float | None:
    """Return when a conversation that was last active at `active_at` expires, or None for never."""
    moments: list[float] = []
    if policy.mode in {"idle", "both"}:
        moments.append(active_at + policy.idle_minutes * 60)
    if policy.mode in {"daily", "both"}:
        moments.append(_next_hour(active_at, policy.at_hour))
    return min(moments, default=None)


def _next_hour(moment: float, hour: int) -> float:
    # By the calendar: a day on which the clocks change has 23 or 25 hours.
    local = datetime.fromtimestamp(moment).astimezone()
    today = local.replace(hour=hour, minute=0, second=0, microsecond=0, tzinfo=None)
    due = today.timestamp()
    return due if due > moment else (today + timedelta(days=1)).timestamp()
