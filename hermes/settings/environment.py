"""What the environment says where the file says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL = "gpt-4.1-mini"
_ADDRESSES = {
    "openai": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
}


def agent_of(said: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """What was said of the agent, and where that leaves it open, what the environment says."""
    agent = dict(said)
    if "kind" not in agent:
        connected = environment.get("OPENAI_API_KEY") or environment.get("OPENAI_BASE_URL")
        if not connected and "model" not in agent:
            return {**agent, "kind": "offline"}
        agent = {"model": environment.get("OPENAI_MODEL") or MODEL, **agent, "kind": "openai"}
    elif agent["kind"] == "openai" and environment.get("OPENAI_MODEL"):
        agent.setdefault("model", environment["OPENAI_MODEL"])
    elif agent["kind"] == "anthropic" and environment.get("ANTHROPIC_API_KEY"):
        agent.setdefault("key", "env:ANTHROPIC_API_KEY")
    return agent


def base_url_of(kind: str, environment: Mapping[str, str]) -> str:
    """Where a model of this kind is, where the file does not say."""
    variable, usual = _ADDRESSES[kind]
    return environment.get(variable) or usual
