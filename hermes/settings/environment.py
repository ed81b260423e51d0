"""Defaults of the agent that come from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_MODEL = "gpt-4.1-mini"
_BASE_URLS = {
    "openai": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
}


def with_environment(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of `[agent]`, with missing ones taken from environment variables."""
    agent = dict(values)
    if "kind" not in agent:
        connected = environment.get("OPENAI_API_KEY") or environment.get("OPENAI_BASE_URL")
        if not connected and "model" not in agent:
            return {**agent, "kind": "offline"}
        model = environment.get("OPENAI_MODEL") or DEFAULT_MODEL
        agent = {"model": model, **agent, "kind": "openai"}
    elif agent["kind"] == "openai" and environment.get("OPENAI_MODEL"):
        agent.setdefault("model", environment["OPENAI_MODEL"])
    elif agent["kind"] == "anthropic" and environment.get("ANTHROPIC_API_KEY"):
        agent.setdefault("key", "env:ANTHROPIC_API_KEY")
    return agent


def default_base_url(kind: str, environment: Mapping[str, str]) -> str:
    """Return the URL of the endpoint for a kind of agent if the settings name none."""
    variable, default = _BASE_URLS[kind]
    return environment.get(variable) or default
