"""The model that environment variables choose if the configuration names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_MODEL = "gpt-4.1-mini"
ANTHROPIC_MODEL = "claude-haiku-4-5"
OPENROUTER_MODEL = "openrouter/auto"
OPENROUTER_URL = "https://openrouter.ai/api/v1"
_BASE_URLS = {
    "openai": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
}


def with_environment(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of `[agent]`, with missing ones taken from environment variables."""
    agent = dict(values)
    if "kind" not in agent:
        variable = chosen_variable(agent, environment)
        if variable is None and "model" not in agent:
            return {**agent, "kind": "offline"}
        agent = {**_model(variable, environment), **agent}
    elif agent["kind"] == "openai" and environment.get("OPENAI_MODEL"):
        agent.setdefault("model", environment["OPENAI_MODEL"])
    elif agent["kind"] == "anthropic":
        if environment.get("ANTHROPIC_API_KEY"):
            agent.setdefault("key", "env:ANTHROPIC_API_KEY")
        if environment.get("ANTHROPIC_MODEL"):
            agent.setdefault("model", environment["ANTHROPIC_MODEL"])
    return agent


def chosen_variable(values: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the variable that chooses the model of an `[agent]` without a kind; None: no model.

    A key of Anthropic or OpenRouter is never used for a URL or together with a key of the file.
    """
    names = ["OPENAI_BASE_URL", "OPENAI_API_KEY"]
    if "base_url" not in values and "key" not in values:
        names += ["ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"]
    return next((name for name in names if environment.get(name)), None)


def _model(variable: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of `[agent]` for the model that a variable chooses."""
    key = f"env:{variable}"
    match variable:
        case "ANTHROPIC_API_KEY":
            model = environment.get("ANTHROPIC_MODEL") or ANTHROPIC_MODEL
            return {"kind": "anthropic", "model": model, "key": key}
        case "OPENROUTER_API_KEY":
            model = environment.get("OPENROUTER_MODEL") or OPENROUTER_MODEL
            url = environment.get("OPENROUTER_BASE_URL") or OPENROUTER_URL
            return {"kind": "openai", "model": model, "base_url": url, "key": key}
    return {"kind": "openai", "model": environment.get("OPENAI_MODEL") or DEFAULT_MODEL}


def default_base_url(kind: str, environment: Mapping[str, str]) -> str:
    """Return the URL of the endpoint for a kind of agent if the settings name none."""
    variable, default = _BASE_URLS[kind]
    return environment.get(variable) or default
