"""The providers that `hermes setup` offers."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hermes.agents.factory import Protocol
from hermes.settings.environment import (
    ANTHROPIC_MODEL,
    DEFAULT_MODEL,
    OPENROUTER_MODEL,
    OPENROUTER_URL,
)

OLLAMA_PORT = 11434


@attrs.frozen(kw_only=True)
class Provider:
    """A provider of models, or a program on this machine that serves them."""

    id: str
    """The name of the key file."""
    name: str
    base_url: str
    kind: Protocol = "openai"
    url_variable: str | None = None
    """The environment variable that replaces the URL."""
    own_url: bool = False
    """Whether everybody has another URL, so that it is asked for."""
    key_variable: str | None = None
    """The environment variable with the API key; None: no key is needed."""
    has_key: bool = True
    """Whether there can be a key at all."""
    model: str | None = None
    """The model that is proposed; None: the first one that the server lists."""

    def url(self, environment: Mapping[str, str]) -> str:
        """Return the URL of the provider, or the one that the environment names."""
        if self.id == "ollama":
            return ollama_url(environment.get("OLLAMA_HOST", ""))
        named = environment.get(self.url_variable) if self.url_variable else None
        return named or self.base_url


OPENAI = Provider(
    id="openai",
    name="OpenAI",
    base_url="https://api.openai.com/v1",
    url_variable="OPENAI_BASE_URL",
    key_variable="OPENAI_API_KEY",
    model=DEFAULT_MODEL,
)
ANTHROPIC = Provider(
    id="anthropic",
    name="Anthropic",
    kind="anthropic",
    base_url="https://api.anthropic.com",
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    model=ANTHROPIC_MODEL,
)
OPENROUTER = Provider(
    id="openrouter",
    name="OpenRouter",
    base_url=OPENROUTER_URL,
    url_variable="OPENROUTER_BASE_URL",
    key_variable="OPENROUTER_API_KEY",
    model=OPENROUTER_MODEL,
)
OLLAMA = Provider(
    id="ollama",
    name="Ollama",
    base_url=f"http://127.0.0.1:{OLLAMA_PORT}/v1",
    own_url=True,
    has_key=False,
)
VLLM = Provider(
    id="vllm", name="vLLM, on a server of yours", base_url="http://127.0.0.1:8000/v1", own_url=True
)
COMPATIBLE = Provider(
    id="model", name="another URL, with OpenAI's protocol", base_url="", own_url=True
)
PROVIDERS = (OPENAI, ANTHROPIC, OPENROUTER, OLLAMA, VLLM, COMPATIBLE)


def ollama_url(host: str) -> str:
    """Return the URL of Ollama for a value of OLLAMA_HOST, such as `box:8080` or `http://box`."""
    if "://" in host:
        return f"{host.rstrip('/')}/v1"
    name, _, port = host.partition(":")
    if name in {"", "0.0.0.0"}:  # a server on all interfaces is reached at this one
        name = "127.0.0.1"
    return f"http://{name}:{port or OLLAMA_PORT}/v1"
