"""What the environment says where the file says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL = "gpt-4.1-mini"
_ADDRESSES = {
    "openai": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
}


def agent_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """The agent that is meant where none was chosen: a model if one is connected."""
    if not environment.get("OPENAI_API_KEY") and not environment.get("OPENAI_BASE_URL"):
        return {"kind": "offline"}
    return {"kind": "openai", "model": environment.get("OPENAI_MODEL") or MODEL}


def base_url_of(kind: str, environment: Mapping[str, str]) -> str:
    """Where a model of this kind is, where the file does not say."""
    variable, usual = _ADDRESSES[kind]
    return environment.get(variable) or usual
