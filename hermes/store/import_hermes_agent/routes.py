"""The routes of a hermes-agent home, with session keys translated to those of Hermes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import msgspec

from hermes.messages import Source
from hermes.sanitize import scrub
from hermes.session_keys import session_key
from hermes.store.conversations import codec, routes, sessions
from hermes.store.import_hermes_agent.report import ImportNotes

MAX_FILE = 64 * 1024 * 1024
FLAG_NOTES = {
    "suspended": "suspended",
    "resume_pending": "resume-pending",
    "model_override": "model-override",
}


@attrs.frozen(kw_only=True)
class SourceRoute:
    """The current session of a chat; `finalized` is None if the route does not say."""

    source_key: str
    """The key that hermes-agent uses."""
    session_key: str
    session_id: str
    platform: str
    chat_type: str
    user_id: str | None
    last_active: float | None
    finalized: bool | None


def read_routes(
    table: Iterable[tuple[str, str, str]], folder: Path, notes: ImportNotes
) -> list[SourceRoute]:
    """Return the routes of the table, then those that only `sessions.json` has."""
    found: dict[str, SourceRoute] = {}
    seen: dict[str, str] = {}
    own_scope = str(folder.resolve())
    for scope, key, text in sorted(table, key=lambda row: row[0] != own_scope):
        if seen.setdefault(key, scope) != scope:
            notes.add("route-twice", key, scope)
            continue
        _add_route(found, key, _decode_json(text), notes)
    for key, entry in _read_file(folder, notes).items():
        if key not in seen and not key.startswith("_"):
            _add_route(found, key, entry, notes)
    return list(found.values())


def _add_route(found: dict[str, SourceRoute], key: str, entry: object, notes: ImportNotes) -> None:
    route = _route(key, entry, notes) if isinstance(entry, dict) else None
    if route is None:
        notes.add("bad-route", key)
    else:
        found[key] = route


def _decode_json(text: str) -> object:
    """Return the decoded JSON, or None if it is invalid."""
    if codec.is_too_deep(text):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _read_file(folder: Path, notes: ImportNotes) -> dict[str, Any]:
    """Return the entries of `sessions.json`, which is in one of two places."""
    for path in (folder / "sessions.json", folder.parent / "sessions.json"):
        if path.is_file():
            with path.open("rb") as file:
                text = file.read(MAX_FILE).decode(errors="replace")
            entries = _decode_json(text)
            if isinstance(entries, dict):
                return entries
            notes.add("bad-file", path.name)
    return {}


def _route(key: str, entry: Mapping[str, Any], notes: ImportNotes) -> SourceRoute | None:
    origin = entry.get("origin")
    chat = {**entry, **origin} if isinstance(origin, dict) else dict(entry)
    chat["user_id"] = chat.get("user_id_alt") or chat.get("user_id")
    session_id = entry.get("session_id")
    translated = translate_key(key, chat, notes)
    if not isinstance(session_id, str) or translated is None:
        return None
    try:
        sessions.require_id(session_id)
    except ValueError:
        return None
    for flag, code in FLAG_NOTES.items():
        if entry.get(flag):
            notes.add(code, key)
    finalized = entry.get("expiry_finalized", entry.get("memory_flushed"))
    return SourceRoute(
        source_key=key,
        session_key=translated,
        session_id=session_id,
        platform=_text(chat.get("platform")) or "unknown",
        chat_type=_text(chat.get("chat_type")) or "dm",
        user_id=_text(chat.get("user_id")),
        last_active=_timestamp(entry.get("updated_at")),
        finalized=None if finalized is None else bool(finalized),
    )


def _text(value: object) -> str | None:
    return scrub(str(value)) if isinstance(value, str | int) and value != "" else None


def _timestamp(text: object) -> float | None:
    try:
        timestamp = datetime.fromisoformat(text if isinstance(text, str) else "").timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return timestamp if timestamp > 0 else None


def translate_key(key: str, chat: Mapping[str, Any], notes: ImportNotes) -> str | None:
    """Return the key that the adapters of Hermes use for this chat, or None if it is not valid.

    Keys of hermes-agent have the same parts in the same order, but unescaped, and a shared thread
    cannot be told from a participant; so the key is built again from the parts.
    """
    try:
        routes.require_key(key)
    except ValueError:
        notes.add("key-dropped", repr(key[:60]))
        return None
    chat_id, thread, user = (_text(chat.get(name)) for name in ("chat_id", "thread_id", "user_id"))
    first, profile, platform, kind, *_ = [*key.split(":"), "", "", ""]
    prefix = f"agent:{profile}:{platform}:{kind}"
    shared = ":".join([prefix, *filter(None, (chat_id, thread))])
    personal = f"{shared}:{user}"
    if first != "agent" or not kind or not chat_id or key not in {shared, personal}:
        if key.count(":") > len(prefix.split(":")):
            notes.add("key-kept", key)
        return key
    source = Source(
        platform=platform, chat_id=chat_id, chat_type=kind, thread_id=thread, user_id=user
    )
    per_user = key == personal
    return session_key(
        source,
        profile=None if profile == "main" else profile,
        shared=not per_user,
        threads_per_user=per_user,
    )
