"""Settings of conversations, kept with their routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from hermes.messages import ConversationSettings
from hermes.store.conversations import routes
from hermes.store.transaction import Transaction
from hermes.transcript.validate import stored_metadata

MAX_NAME = 200


def configure(
    tx: Transaction,
    session_key: str,
    *,
    agent: str | UnsetType | None = UNSET,
    model: str | UnsetType | None = UNSET,
    metadata: Mapping[str, Any] | UnsetType | None = UNSET,
) -> ConversationSettings:
    """Change the settings of a conversation, and return all of them.

    What is not passed stays as it is; None restores the default. Raises `ValueError` if a value
    cannot be stored.
    """
    given = {"agent": agent, "model": model, "metadata": metadata}
    changes = {name: value for name, value in given.items() if value is not UNSET}
    route = routes.get_route(tx, session_key)
    before = ConversationSettings.from_json(None if route is None else route.settings)
    settings = ConversationSettings(**{**asdict(before), **_checked(changes)})
    routes.ensure_route(tx, session_key)
    stored = None if settings == ConversationSettings() else settings.to_json()
    tx.run("UPDATE routes SET settings = ? WHERE session_key = ?", stored, session_key)
    return settings


def _checked(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the changes as they are stored."""
    for name in ("agent", "model"):
        value = changes.get(name)
        if value is not None and not _is_name(value):
            raise ValueError(f"{name} must be a printable name of at most {MAX_NAME} characters")
    if "metadata" not in changes:
        return changes
    metadata = {} if changes["metadata"] is None else changes["metadata"]
    metadata = dict(metadata) if isinstance(metadata, Mapping) else metadata
    return {**changes, "metadata": stored_metadata(metadata)}


def _is_name(value: object) -> bool:
    if not isinstance(value, str) or len(value) > MAX_NAME:
        return False
    return value.isprintable() and bool(value.strip())
