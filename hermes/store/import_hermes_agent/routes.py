"""The routes of a hermes-agent home: which conversation a chat is in, in our keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import msgspec

from hermes.messages import Source
from hermes.session_keys import session_key as our_key
from hermes.store.conversations import codec, routes, sessions
from hermes.store.import_hermes_agent.report import ImportNotes

MAX_FILE = 64 * 1024 * 1024
FLAGS = {
    "suspended": "suspended",
    "resume_pending": "resume-pending",
    "model_override": "model-override",
}


@attrs.frozen(kw_only=True)
class ForeignRoute:
    """Where a chat is; `finalized` is None where nothing is said about it."""

    their_key: str
    session_key: str
    session_id: str
    platform: str
    chat_type: str
    user_id: str | None
    last_active: float | None
    finalized: bool | None


def read_routes(
    table: Iterable[tuple[str, str, str]], folder: Path, notes: ImportNotes
) -> list[ForeignRoute]:
    """The routes of the table, then those that only `sessions.json` has."""
    found: dict[str, ForeignRoute] = {}
    seen: dict[str, str] = {}
    here = str(folder.resolve())
    for scope, key, text in sorted(table, key=lambda row: row[0] != here):
        if seen.setdefault(key, scope) != scope:
            notes.add("route-twice", key, scope)
            continue
        _take(found, key, _entry(text), notes)
    for key, entry in _file(folder, notes).items():
        if key not in seen and not key.startswith("_"):
            _take(found, key, entry, notes)
    return list(found.values())


def _take(found: dict[str, ForeignRoute], key: str, entry: object, notes: ImportNotes) -> None:
    route = _route(key, entry, notes) if isinstance(entry, dict) else None
    if route is None:
        notes.add("bad-route", key)
    else:
        found[key] = route


def _entry(text: str) -> object:
    if codec.is_deep(text):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _file(folder: Path, notes: ImportNotes) -> dict[str, Any]:
    for path in (folder / "sessions.json", folder.parent / "sessions.json"):
        if path.is_file():
            with path.open("rb") as file:
                text = file.read(MAX_FILE).decode(errors="replace")
            entries = _entry(text)
            if isinstance(entries, dict):
                return entries
            notes.add("bad-file", path.name)
    return {}


def _route(key: str, entry: Mapping[str, Any], notes: ImportNotes) -> ForeignRoute | None:
    origin = entry.get("origin")
    where = {**entry, **origin} if isinstance(origin, dict) else dict(entry)
    where["user_id"] = where.get("user_id_alt") or where.get("user_id")
    session_id = entry.get("session_id")
    translated = translate_key(key, where, notes)
    if not isinstance(session_id, str) or translated is None:
        return None
    try:
        sessions.require_id(session_id)
    except ValueError:
        return None
    for flag, code in FLAGS.items():
        if entry.get(flag):
            notes.add(code, key)
    flagged = entry.get("expiry_finalized", entry.get("memory_flushed"))
    return ForeignRoute(
        their_key=key,
        session_key=translated,
        session_id=session_id,
        platform=_word(where.get("platform")) or "unknown",
        chat_type=_word(where.get("chat_type")) or "dm",
        user_id=_word(where.get("user_id")),
        last_active=_moment(entry.get("updated_at")),
        finalized=None if flagged is None else bool(flagged),
    )


def _word(value: object) -> str | None:
    return codec.whole_text(str(value)) if isinstance(value, str | int) and value != "" else None


def _moment(text: object) -> float | None:
    try:
        moment = datetime.fromisoformat(text if isinstance(text, str) else "").timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment > 0 else None


def translate_key(key: str, where: Mapping[str, Any], notes: ImportNotes) -> str | None:
    """The key under which our adapters would look for this chat.

    Theirs are made of the same parts in the same order, but unescaped, and a thread that all share
    looks like a participant; so ours is made again of the parts.
    """
    try:
        routes.require_key(key)
    except ValueError:
        notes.add("key-dropped", repr(key[:60]))
        return None
    chat, thread, user = (_word(where.get(name)) for name in ("chat_id", "thread_id", "user_id"))
    begin, profile, platform, kind, *_ = [*key.split(":"), "", "", ""]
    place = f"agent:{profile}:{platform}:{kind}"
    shared = ":".join([place, *filter(None, (chat, thread))])
    alone = f"{shared}:{user}"
    if begin != "agent" or not kind or not chat or key not in {shared, alone}:
        if key.count(":") > len(place.split(":")):
            notes.add("key-kept", key)
        return key
    source = Source(platform=platform, chat_id=chat, chat_type=kind, thread_id=thread, user_id=user)
    per_user = key == alone
    return our_key(
        source,
        profile=None if profile == "main" else profile,
        shared=not per_user,
        threads_per_user=per_user,
    )
