"""Settings of conversations, kept with their routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from hermes.messages import ConversationSettings
from hermes.store.conversations import codec, routes
from hermes.store.transaction import Transaction

MAX_NAME = 200
MAX_METADATA = 10_000
"""The longest metadata, in characters of JSON."""


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
    settings = _checked({**asdict(before), **changes})
    routes.ensure_route(tx, session_key)
    stored = None if settings == ConversationSettings() else settings.to_json()
    tx.run("UPDATE routes SET settings = ? WHERE session_key = ?", stored, session_key)
    return settings


def _checked(values: Mapping[str, Any]) -> ConversationSettings:
    for name in ("agent", "model"):
        value = values[name]
        if value is not None and not _is_name(value):
            raise ValueError(f"{name} must be a printable name of at most {MAX_NAME} characters")
    metadata = {} if values["metadata"] is None else values["metadata"]
    if not isinstance(metadata, Mapping) or not all(isinstance(name, str) for name in metadata):
        raise ValueError("metadata must be a mapping of names to JSON values")
    try:
        text = codec.encode_json(dict(metadata))
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be JSON: {error}") from None
    if len(text) > MAX_METADATA:
        raise ValueError(f"metadata must be at most {MAX_METADATA} characters of JSON")
    return ConversationSettings(
        agent=values["agent"], model=values["model"], metadata=msgspec.json.decode(text)
    )


def _is_name(value: object) -> bool:
    if not isinstance(value, str) or len(value) > MAX_NAME:
        return False
    return value.isprintable() and bool(value.strip())
