"""`chat_agents`: agents, compressor and titler for a runtime, with one HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import attrs
import httpx2
import trio

from hermes.agents.budgets import Spending
from hermes.agents.chat import ChatAgent, TurnFacts
from hermes.agents.compressor import SUMMARY_PROMPT, ModelCompressor
from hermes.agents.providers.anthropic_messages import AnthropicMessages
from hermes.agents.providers.base import Endpoint, Provider
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.agents.providers.redacting import EndpointRedactor, RedactingProvider
from hermes.agents.providers.retries import Retries
from hermes.agents.titler import TITLE_PROMPT, ModelTitler
from hermes.agents.tools.toolbox import Tool, Toolbox
from hermes.messages import AgentSpec, JsonObject, Source

Protocol: TypeAlias = Literal["openai", "anthropic"]
MAX_CONNECTIONS = 100


@attrs.frozen(kw_only=True)
class ChatAgents:
    """Builds the agents of a runtime; all of them share an HTTP client and the tool threads.

    Pass `build` and `agent_spec` to `open_runtime`, as `build_agent` and `agent_spec`. Usually made
    by `chat_agents`.
    """

    client: httpx2.AsyncClient
    endpoint: Endpoint
    protocol: Protocol = "openai"
    system: str | None = None
    """The system prompt."""
    tools: Sequence[Tool] = ()
    facts: TurnFacts | None = None
    """Returns text for the current turn only, such as the date."""
    retries: Retries = attrs.Factory(Retries)
    spending: Spending = attrs.Factory(Spending)
    """Prices and budgets."""
    redact: Callable[[str], str] | None = None
    """Removes secrets from the answers of the model and the output of tools. The credentials of the
    endpoint are removed in any case."""
    _redactor: EndpointRedactor = attrs.field(init=False, repr=False)
    _toolbox: Toolbox = attrs.field(init=False, repr=False)

    @_redactor.default
    def _make_redactor(self) -> EndpointRedactor:
        return EndpointRedactor(self.endpoint, self.redact)

    @_toolbox.default
    def _make_toolbox(self) -> Toolbox:
        return Toolbox(self.tools, redact=self._redactor)

    def agent_spec(self, session_key: str, source: Source) -> AgentSpec:
        """Return what an agent is built from; it is rebuilt only if this changes."""
        toolset = tuple(str(each["name"]) for each in self._toolbox.on(source.platform).schemas)
        return AgentSpec(
            session_key=session_key,
            platform=source.platform,
            user_id=source.user_id,
            model=self.endpoint.model,
            endpoint=self.endpoint.base_url,
            credential=self.endpoint.key.reveal(),
            toolset=toolset,
            system_prompt=self.system,
            settings=(
                ("protocol", self.protocol),
                ("parameters", repr(self.endpoint.parameters)),
                ("attachments", repr(self.endpoint.attachments)),
            ),
        )

    def build(self, spec: AgentSpec) -> ChatAgent:
        """Return an agent for one conversation, with its model and the tools of its platform."""
        toolbox = self._toolbox.on(spec.platform)
        endpoint = attrs.evolve(self.endpoint, model=spec.model or self.endpoint.model)
        provider = self._provider(endpoint, self.system, toolbox.schemas)
        return ChatAgent(
            provider, toolbox, facts=self.facts, retries=self.retries, spending=self.spending
        )

    def compressor(
        self, endpoint: Endpoint | None = None, *, window: int = 100_000
    ) -> ModelCompressor:
        """Return a compressor.

        Args:
            endpoint: The model that writes summaries; by default the model of the agents.
            window: The size of its context window in tokens.
        """
        provider = self._provider(endpoint or self.endpoint, SUMMARY_PROMPT, ())
        return ModelCompressor(provider=provider, window=window, spending=self.spending)

    def titler(self, endpoint: Endpoint | None = None) -> ModelTitler:
        """Return a titler that calls the model of `endpoint`; by default that of the agents."""
        provider = self._provider(endpoint or self.endpoint, TITLE_PROMPT, ())
        return ModelTitler(provider=provider, spending=self.spending)

    def _provider(
        self, endpoint: Endpoint, system: str | None, tools: tuple[JsonObject, ...]
    ) -> Provider:
        kind = AnthropicMessages if self.protocol == "anthropic" else OpenAIChat
        provider = kind(self.client, endpoint, system, tools)
        same = endpoint.secrets == self.endpoint.secrets
        redact = self._redactor if same else EndpointRedactor(endpoint, self._redactor)
        return RedactingProvider(provider, redact)


@asynccontextmanager
async def chat_agents(  # noqa: PLR0913 - all of it is shared by the agents
    endpoint: Endpoint,
    *,
    protocol: Protocol = "openai",
    system: str | None = None,
    tools: Sequence[Tool] = (),
    facts: TurnFacts | None = None,
    spending: Spending | None = None,
    redact: Callable[[str], str] | None = None,
) -> AsyncIterator[ChatAgents]:
    """Open an HTTP client and yield a `ChatAgents` that uses it.

    The connections are closed at the end of the block, so the runtime must be opened inside it.

    Args:
        endpoint: URL, model name and API key.
        protocol: `"openai"` for chat completions, `"anthropic"` for the Messages API.
        system: The system prompt.
        tools: The tools that the model may call.
        facts: Called with each turn; returns text that is true only now, such as the date. It is
            sent last and not stored, so it does not invalidate the prompt cache.
        spending: Prices and budgets.
        redact: Removes secrets from the answers of the model and the output of tools, before
            anything else sees them. The key of the endpoint, and credentials inside of its URL and
            headers, are removed in any case.
    """
    limits = httpx2.Limits(
        max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS
    )
    async with httpx2.AsyncClient(limits=limits, trust_env=True) as client:
        yield ChatAgents(
            client=client,
            endpoint=endpoint,
            protocol=protocol,
            system=system,
            tools=tools,
            facts=facts,
            spending=spending or Spending(),
            redact=redact,
        )
        await trio.lowlevel.checkpoint()
